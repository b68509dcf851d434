"""The interfaces of sinks and their writers, and what these promise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from elasticutor.errors import ElasticutorError


class SinkError(ElasticutorError, RuntimeError):
    """A sink failed to take or publish outputs."""


class Writer(ABC):
    """Takes the outputs, inside the sink's process. Used by one thread only.

    Its outputs are visible at once, so in a run with a checkpoint it writes *at least once*: after
    a failure, outputs of the epoch that was under way are written again. Derive from `EpochWriter`
    for outputs that are seen exactly once.
    """

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch. Until it returns no other is taken, and back-pressure builds up."""

    def flush(self) -> None:  # noqa: B027 (most keep nothing back)
        """Pass on what was kept back. Called when an epoch ends, before it is committed."""

    def tick(self) -> None:  # noqa: B027 (most have nothing that grows old)
        """Do what is due by the clock. Called a few times a second, also when nothing arrives."""

    def close(self) -> None:  # noqa: B027 (most have nothing to close)
        """Close files and connections. Called once, also after a failure."""


class EpochWriter(Writer):
    """Publishes the outputs of each epoch once, whatever fails at any moment.

    The calls of one epoch, in their order:

    ```
    write(batch) …       outputs of epoch 7, not visible yet
    prepare(7)           all of them are safe, but not visible; returns a message
    write(batch) …       outputs of epoch 8 may come before 7 is committed
    commit(7, message)   now they are visible
    ```

    The message goes into the checkpoint's manifest with the state and the offsets of epoch 7. From
    then on the epoch counts, and `commit` is called at least once: here, or after a failure by
    this writer's successor, which may be another process on another machine that has never seen
    the data. So the message must contain all that `commit` needs, and a second `commit` of the
    same message must be harmless.

    A new attempt, the first one included, begins with `commit` of the last epoch's message, if
    there is one, and then `abort`.

    Epochs are numbered from 1 and rise, over restarts from the same checkpoint too. There may be
    gaps. Two epochs are never both prepared and not committed. Without a checkpoint there is one
    epoch, which ends with the run.

    `flush` is not called.
    """

    @abstractmethod
    def prepare(self, epoch: int) -> Any:
        """Make all that was written since the last `prepare` safe, without publishing it.

        Returns:
            What `commit` needs to publish it: numbers, text, bytes, truth values, None, and lists,
            tuples and dictionaries of them. It is kept in every manifest, so better small. None if
            there is nothing to publish; `commit` is then not called for this epoch.
        """

    @abstractmethod
    def commit(self, epoch: int, message: Any) -> None:
        """Publish what `prepare` has made safe, here or in an earlier life; may be a repetition.

        It must last: once it has returned, there may be no other call.
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop all that is not committed: what was written, and what was prepared.

        An earlier life may have left such things too; a writer that can find them removes them.
        """


@dataclass(frozen=True, slots=True)
class SinkRun:
    """The run in which a sink is opened."""

    sink: str = "out"
    """The sink's name in the topology."""
    run: str = ""
    """What distinguishes this run from all others."""
    job: str = ""
    """What stays the same when the run is started again from its checkpoint; empty if unknown."""
    checkpointed: bool = False
    """Whether there is a checkpoint: if so epochs end all the time, otherwise once, at the end."""


class Sink(ABC):
    """Base of all sinks; derive your own from it. Must survive `cloudpickle`.

    What happens after a failure is the writer's promise: with a `Writer`, outputs of the epoch that
    was under way are written again; with an `EpochWriter`, every epoch is seen once.
    """

    collects: bool = False
    """Whether the batches are wanted on the driver.

    If so the runtime ships them there, and opens the sink on the driver and not in the sink's
    process.
    """

    @abstractmethod
    def open(self, task: int, schema: pa.Schema) -> Writer:
        """Return a writer for outputs of this schema; tasks are counted from 0."""

    def open_in(self, run: SinkRun, task: int, schema: pa.Schema) -> Writer:
        """Return a writer that knows its run; the sink's process calls this one."""
        return self.open(task, schema)
