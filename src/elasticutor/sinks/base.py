"""What a sink is, and what its writers promise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from elasticutor.errors import ElasticutorError


class SinkError(ElasticutorError, RuntimeError):
    """A sink that did not take what it was given."""


class Writer(ABC):
    """What takes the outputs, inside the sink's process. Used by one thread only.

    Whatever it writes is seen at once, so in a run with a checkpoint it writes *at least once*:
    after a failure, outputs of the epoch that was under way are written again. Derive from
    `EpochWriter` for outputs that are seen exactly once.
    """

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch. While this lasts nothing else is taken, and back-pressure builds up."""

    def flush(self) -> None:  # noqa: B027 (most keep nothing back)
        """Pass on what was kept back. Called when an epoch ends, before it is committed."""

    def tick(self) -> None:  # noqa: B027 (most have nothing that grows old)
        """Some time has passed. Called a few times a second, also when nothing arrives."""

    def close(self) -> None:  # noqa: B027 (most have nothing to close)
        """Let go of files and connections. Called once, whatever happened."""


class EpochWriter(Writer):
    """Publishes the outputs of each epoch once, whatever fails and whenever.

    What it is asked, in the order of one epoch's life:

    ```
    write(batch) …       outputs of epoch 7, which nobody may see yet
    prepare(7)           all of them are safe, but not seen; returns a message
    write(batch) …       outputs of epoch 8 may come before 7 is committed
    commit(7, message)   now they are seen
    ```

    The message goes into the checkpoint's manifest with the state and the offsets of epoch 7. From
    then on the epoch counts, and `commit` is called at least once: here, or after a failure by
    whoever takes this writer's place, which may be another process on another machine that has
    never seen the data. So the message must say all that it takes, and a second `commit` of the
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
        """Make all that was written since the last `prepare` safe, without showing it.

        Returns:
            What `commit` needs to show it: numbers, text, bytes, truth values, None, and lists,
            tuples and dictionaries of them. It is kept in every manifest, so better small. None if
            there is nothing to show; `commit` is then not called for this epoch.
        """

    @abstractmethod
    def commit(self, epoch: int, message: Any) -> None:
        """Show what `prepare` has made safe, here or in an earlier life; maybe once more.

        Must last: when it returns, nobody will ask for this again.
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop all that is not committed: what was written, and what was prepared.

        An earlier life may have left such things too; whoever can find them removes them here.
        """


@dataclass(frozen=True, slots=True)
class SinkRun:
    """The run in which a sink is opened."""

    sink: str = "out"
    """What the topology calls the sink."""
    run: str = ""
    """What distinguishes this run from all others."""
    job: str = ""
    """What stays the same when the run is started again from its checkpoint; empty if unknown."""
    checkpointed: bool = False
    """Whether there is a checkpoint: if so epochs end all the time, otherwise once, at the end."""


class Sink(ABC):
    """Where outputs go; derive from it for your own. Must survive `cloudpickle`.

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
        """A writer for outputs of this schema; tasks are counted from 0."""

    def open_in(self, run: SinkRun, task: int, schema: pa.Schema) -> Writer:
        """The same, for sinks that want to know of the run; this is what the runtime calls."""
        return self.open(task, schema)
