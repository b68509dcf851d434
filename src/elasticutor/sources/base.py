"""Sources and readers: what a topology's tuples come through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.schemas import SchemaLike


@dataclass(frozen=True, slots=True)
class Offer:
    """Tuples that are due."""

    batch: pa.RecordBatch

    born: float
    """When the oldest of them was due, in seconds since 1970.

    Latency counts from here, and not from when the reader was asked: a reader that is asked late
    says how late.
    """

    due_us: npt.NDArray[np.int64] | None = None
    """When each of them was due, in microseconds since 1970, never falling; None: all together."""


@dataclass(frozen=True, slots=True)
class RowOffer:
    """Few tuples that are due, as rows: much cheaper than a batch of them."""

    rows: list[tuple[Any, ...]]
    """Values of exactly the schema's types: an `int` for an integer, a `str` for a string."""

    due_us: list[int]
    """When each of them was due, in microseconds since 1970, never falling."""


class Reader(ABC):
    """One task's way through a source. Attributes and methods are used by one thread only."""

    exhausted: bool = False
    """Whether nothing will ever come again."""

    offset: Any = None
    """The position behind the last offer; never None after one.

    Of plain values: numbers, strings, bytes, and lists, tuples, dicts and sets of them.
    """

    rate: float | None = None
    """What it would give per second if nothing held it up, for the scheduler: infinity if that is
    all it has at once; None where it does not know, and has to be measured."""

    checkpointed: bool = False
    """Whether the run has a checkpoint, and `committed` is called; set before the first `poll`."""

    knows_when: bool = False
    """Whether `wait_s` is exact and may be asked at any time: then `poll` is not called in vain."""

    @abstractmethod
    def poll(self, now: float, max_rows: int) -> Offer | None:
        """What is due by now, at most so many tuples (at least 1); None if nothing is yet.

        It should return within some milliseconds. One that must do slow I/O may do it here: its own
        process waits, so the markers that end an epoch do too, but no other source does.
        """

    def poll_rows(self, now: float, most: int) -> RowOffer | None:
        """What is due by now, as rows, if that is at least one and at most so many; else None.

        The source asks it before `poll`, where all takers can be sent rows. For readers that have
        rows at hand; to make them of a batch is no gain.
        """
        return None

    def wait_s(self, now: float) -> float:
        """Seconds until `poll` may have something; 0 for at once.

        Asked when `poll` had nothing, and never of a reader that is exhausted.
        """
        return 0.01

    def committed(self, offset: Any) -> None:  # noqa: B027 (most keep nothing for a replay)
        """An epoch that ended at this offset is committed: nothing before it is asked for again.

        For readers that hold on to what was read until then: they may delete or acknowledge it
        here. Offsets come in their order. After a failure some may be left out; the next one covers
        them. Only in a run with a checkpoint.
        """

    def close(self) -> None:  # noqa: B027 (most have nothing to close)
        """Let go of files and connections. Called once, whatever happened."""


class Source(ABC):
    """Where tuples come from; derive from it for your own. Must survive `cloudpickle`."""

    schema: SchemaLike
    """Of the tuples: Arrow schema, DDL string or Spark's `StructType`."""

    tasks: int = 1
    """How many processes read it, unless the topology says otherwise."""

    @abstractmethod
    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        """A reader for one of several tasks.

        Args:
            task: Which one, from 0.
            tasks: How many there are; together they give every tuple once.
            offset: Where to go on, as this task's reader had it; None to begin.
        """
