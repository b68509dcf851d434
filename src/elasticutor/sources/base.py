"""The interfaces of sources, their readers, and what these offer."""

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

    Latency counts from here, not from the poll: a reader that is polled late says how late.
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
    """Reads one task's part of a source. Used by one thread only."""

    exhausted: bool = False
    """Whether the source has ended for this task."""
    offset: Any = None
    """The position behind the last offer; never None after one.

    Of plain values: numbers, strings, bytes, and lists, tuples, dicts and sets of them.
    """
    rate: float | None = None
    """Tuples per second that it would offer unhindered, for the scheduler: infinity if it has all
    at once; None if it does not know, so that the rate is measured."""
    checkpointed: bool = False
    """Whether the run has a checkpoint, and `committed` is called; set before the first `poll`."""
    knows_when: bool = False
    """Whether `wait_s` is exact at any time, so that no `poll` is in vain."""

    @abstractmethod
    def poll(self, now: float, max_rows: int) -> Offer | None:
        """Return what is due by now, at most `max_rows` tuples (at least 1); None if nothing is.

        It should return within some milliseconds. Slow I/O may be done here: this task's process
        waits, and with it the markers that end an epoch, but no other source does.
        """

    def poll_rows(self, now: float, most: int) -> RowOffer | None:
        """Return what is due by now as rows, if that is 1 to `most` of them; else None.

        Called before `poll` where all destinations take rows. For readers that have rows at hand;
        making them of a batch gains nothing.
        """
        return None

    def wait_s(self, now: float) -> float:
        """Return the seconds until `poll` may have something; 0 for at once.

        Called when `poll` had nothing, and never on an exhausted reader.
        """
        return 0.01

    def committed(self, offset: Any) -> None:  # noqa: B027 (most keep nothing for a replay)
        """Learn that an epoch which ended at this offset is committed: no replay starts before it.

        A reader that keeps what it has read until then may delete or acknowledge it here. Offsets
        come in their order. After a failure some may be left out; the next one covers them. Called
        only in a run with a checkpoint.
        """

    def close(self) -> None:  # noqa: B027 (most have nothing to close)
        """Close files and connections. Called once, also after a failure."""


class Source(ABC):
    """Base of all sources; derive your own from it. Must survive `cloudpickle`."""

    schema: SchemaLike
    """Schema of the tuples: an Arrow schema, a DDL string or Spark's `StructType`."""

    tasks: int = 1
    """How many processes read it, unless the topology says otherwise."""

    @abstractmethod
    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        """Return a reader for a task, counted from 0; all tasks together give every tuple once.

        `offset` is where to go on, as this task's reader had it; None to begin.
        """
