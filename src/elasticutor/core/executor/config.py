"""The settings of an elastic executor, as a value that is handed in."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from elasticutor.errors import BadValueError


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """How an elastic executor behaves; every default is meant to be left alone."""

    shards: int = 256
    """z: the most that the work of one executor can be divided."""
    outputs: Literal["forward", "return"] = "forward"
    """Forward outputs to destinations, or return each to the upstream that caused it."""
    window_s: float = 0.004
    """How much work a task is given ahead of time; what has to be done before a flush."""
    min_chunks: int = 2
    """How many chunks a task is given ahead of time, however expensive they are."""
    max_chunks: int = 32
    """How many chunks a task is given ahead of time, however cheap they are."""
    chunk_s: float = 0.002
    """How much work one chunk should be."""
    bulk_s: float = 0.002
    """How much work one chunk should be where its tuples are cheap; a window is two of them."""
    moving_chunk_s: float = 0.001
    """How much work one chunk may be while a shard is about to leave its task.

    An operator that takes a chunk at a time cannot be interrupted within one.
    """
    bulk_rows: int = 64
    """Tuples are cheap when this many are less than `chunk_s`: then a message costs more."""
    first_chunk_rows: int = 16
    """The size of chunks before anything has been measured."""
    max_chunk_rows: int = 8192
    """The size of chunks however cheap the work is."""
    credit_s: float = 0.020
    """How much work per core each upstream may have inside."""
    min_credit_bytes: int = 64 * 1024
    """What an upstream may have inside however expensive the work is.

    Also what every sender may send in an attempt before it is granted more; so it is the same for
    all that send to each other.
    """
    max_credit_bytes: int = 16 * 1024 * 1024
    """What an upstream may have inside however cheap the work is."""
    output_bytes: int = 4 * 1024 * 1024
    """What may wait to be sent on before no more is processed."""
    balance_threshold: float = 1.2
    """θ: the largest load of a task over the mean that is left alone (paper 3.1)."""
    chance: float = 2.0
    """How many standard deviations of mere chance a load may be uneven by beyond θ."""
    max_moves: int = 16
    """How many shards may be on the move at once."""
    load_half_life_s: float = 0.1
    """How fast the measured work of a shard is forgotten, to see what changes at once."""
    steady_half_life_s: float = 1.0
    """The same to see what is uneven for good, where chance makes more of a difference."""
    backlog_horizon_s: float = 0.1
    """How soon the backlog should be gone: it counts as load over this time."""

    def __post_init__(self) -> None:
        if self.outputs not in ("forward", "return"):
            raise BadValueError("outputs", 'be "forward" or "return"', self.outputs)
        bounds = {"max_chunks": self.min_chunks, "max_credit_bytes": self.min_credit_bytes}
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if type(field.default) is int:
                least = bounds.get(name, 1)
                if not isinstance(value, int) or value < least:
                    raise BadValueError(name, f"be a whole number, at least {least}", value)
            elif type(field.default) is float:
                floor = {"balance_threshold": 1.0, "chance": 0.0}.get(name, 1e-6)
                if not floor <= value < math.inf:
                    raise BadValueError(name, f"be at least {floor:g}", value)


LIVE = ExecutorConfig(chunk_s=0.004, window_s=0.008, bulk_s=0.004)
"""What executors are given unless the user says otherwise.

Passing a chunk on wakes up a task, the main process and a receiver, each of which finds its caches
cold: 0.2 to 0.5 ms of CPU time in all (docs/benchmarks.md). Chunks are full only where tuples wait;
there, smaller ones leave less of the machine for the work, and the median latency doubles.
"""

BATCHES = ExecutorConfig(outputs="return", chunk_s=0.05, window_s=0.1)
"""What executors are given that a query feeds batch by batch.

No output is seen before its batch is done, so chunks may be larger, and a task should never
have to wait for the next one: where all cores are busy, the main process is late to hand it over.
"""
