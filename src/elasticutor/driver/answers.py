"""What was asked for and has come to the driver: outputs, state, explanations."""

from __future__ import annotations

import threading

import cloudpickle

from elasticutor.core.protocol.coordinator import WaitExplained
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.plan import Plan
from elasticutor.sinks import EpochMemory, MemorySink
from elasticutor.transport import messages as say
from elasticutor.transport.packets import open_batch


class Answers:
    """Filled by the driver's loop, and read by other threads under `changed`."""

    def __init__(self, plan: Plan) -> None:
        self.changed = threading.Condition()
        """Notified when anything has come, or the run is in another phase."""
        self.collected: dict[str, EpochMemory] = {}
        """What memory sinks have taken."""
        self.recounts: dict[Peer, tuple[str, ...]] = {}
        """Why executors wait, in words."""
        self.state_read: dict[int, list[say.StateRead]] = {}
        """Parts of operators' state, by the number of the question."""
        self._schemas = {sink.name: sink.schema for sink in plan.sinks}
        for sink in plan.sinks:
            if sink.collects:
                made: MemorySink = cloudpickle.loads(sink.blob)
                self.collected[sink.name] = EpochMemory(sink.schema, made.max_rows)

    def collect(self, message: say.Collected) -> None:
        """Keep a batch of a memory sink.

        Raises:
            SinkError: It has more rows than it may keep.
        """
        if message.who in self.collected:
            batch = open_batch(message.data, message.rows, self._schemas[message.who])
            with self.changed:
                self.collected[message.who].write(message.attempt, message.epoch, batch)

    def begin(self, attempt: Attempt) -> None:
        """Drop what is not committed: it will come again."""
        with self.changed:
            for memory in self.collected.values():
                memory.begin(attempt)

    def commit(self, epoch: Epoch) -> None:
        """Keep what came with this epoch for good."""
        with self.changed:
            for memory in self.collected.values():
                memory.commit(epoch)
            self.changed.notify_all()

    def explain(self, answer: WaitExplained) -> None:
        """Take in why an executor waits."""
        with self.changed:
            self.recounts[answer.who] = answer.waits
            self.changed.notify_all()

    def read(self, answer: say.StateRead) -> None:
        """Take in what a node has of an operator's state."""
        with self.changed:
            self.state_read.setdefault(answer.ask, []).append(answer)
            self.changed.notify_all()

    def notify(self) -> None:
        """Wake all threads that wait."""
        with self.changed:
            self.changed.notify_all()
