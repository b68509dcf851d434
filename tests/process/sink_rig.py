"""A sink's process without a process: messages in, and a coordinator's memory of what counts.

What happens to a sink in the life of a run is a method here: tuples come, epochs end, manifests are
written, the process is killed or another one's failure ends the attempt. `counted` is what must be
seen in the end: a plain fold of the committed epochs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import cloudpickle
import pyarrow as pa

from elasticutor.core.protocol.coordinator import (
    BeginAttempt,
    CommitEpoch,
    ParticipantPrepared,
    ParticipantReady,
)
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer
from elasticutor.process.sink import SinkProcess
from elasticutor.process.specs import SinkSpec, Site, Tempo
from elasticutor.sinks import Sink
from elasticutor.transport import messages as say
from elasticutor.transport.codec import RowTuples, Tuples, decode, encode
from elasticutor.transport.packets import Packet, born
from elasticutor.transport.row_packets import RowFormat, RowPacket

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
_ROWS = cast("RowFormat", RowFormat.of(SCHEMA))
OUT, LEFT, RIGHT = Peer("out"), Peer("left"), Peer("right")


class KilledError(BaseException):
    """`kill -9`, at a place where a test wants it: nothing may catch it."""


class Mail:
    """Keeps what is sent, after a journey by wire."""

    endpoint: Any = None

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.dropped: list[str] = []

    def send(self, who: str, message: Any) -> None:
        frames = [bytes(frame) for frame in encode(message)]
        self.sent.append((who, decode(frames)))

    def drop(self, why: str) -> None:
        self.dropped.append(why)


class SinkRig:
    """One sink, its process, and the run around it."""

    def __init__(
        self,
        sink: Sink,
        *,
        upstreams: tuple[Peer, ...] = (LEFT, RIGHT),
        checkpointed: bool = True,
        credit_bytes: int = 1 << 30,
    ) -> None:
        none = cast("Any", None)
        site = Site("run-1", NodeId("n0"), "", "", none, none)
        self.spec = SinkSpec(
            site,
            OUT,
            cloudpickle.dumps(sink),
            SCHEMA,
            upstreams,
            credit_bytes,
            Tempo(),
            checkpointed,
            "file:///checkpoint",
        )
        self.attempt, self.base = 0, 0
        self.note: Any = None  # of the base
        self.counted: dict[int, list[int]] = {}
        self.prepared: tuple[Any, list[int]] | None = None  # with no manifest yet
        self.written: list[int] = []  # in the open epoch
        self.untold = False  # whether the sink has yet to hear of the last manifest
        self.numbers = self.sent = 0
        self.start()

    def start(self) -> None:
        """A new process, in place of one that is killed or the first one."""
        self.mail = Mail()
        self.process = SinkProcess(self.spec, cast("Any", self.mail))
        for upstream in self.spec.upstreams:
            self.take(say.Hello(upstream, SCHEMA.serialize().to_pybytes()))

    def take(self, message: Any) -> None:
        self.process.take(message)

    def begin(self) -> None:
        """The coordinator begins an attempt; whatever has no manifest is forgotten."""
        self.prepared, self.written, self.untold = None, [], False
        self.attempt += 1
        base, attempt = Epoch(self.base), Attempt(self.attempt)
        self.take(BeginAttempt(OUT, attempt, base, Epoch(base + 1), self.note))
        assert self.said(ParticipantReady)[-1].attempt == attempt

    def crash(self) -> None:
        """The process is gone, and another one takes its place."""
        self.start()
        self.begin()

    def send(self, upstream: Peer, *numbers: int) -> None:
        """Tuples of an upstream, in the epoch that it is in."""
        attempt = Attempt(self.attempt)
        self.sent += 1
        if self.sent % 2:  # few tuples may travel as rows or as a batch
            rows = RowPacket([0] * len(numbers), [], [_ROWS.pack((n,)) or b"" for n in numbers])
            self.take(RowTuples(upstream, attempt, rows.size, rows))
            return
        batch = pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)
        packet = Packet.of(batch, born(0.0, len(numbers)))
        self.take(Tuples(upstream, attempt, packet.size, packet))

    def mark(self, upstream: Peer, epoch: int) -> None:
        self.take(say.Marker(upstream, Attempt(self.attempt), Epoch(epoch)))

    def write(self, rows: int, upstream: Peer = LEFT) -> None:
        """So many new tuples."""
        numbers = range(self.numbers, self.numbers + rows)
        self.numbers += rows
        self.written.extend(numbers)
        self.send(upstream, *numbers)

    def prepare(self) -> Any:
        """The open epoch ends; returns the note."""
        self.untold = False
        epoch = self.base + 1
        for upstream in self.spec.upstreams:
            self.mark(upstream, epoch)
        prepared = self.said(ParticipantPrepared)[-1]
        assert (prepared.attempt, prepared.epoch) == (self.attempt, epoch)
        self.prepared, self.written = (prepared.note, self.written), []
        return prepared.note

    def write_manifest(self) -> None:
        """From now on the epoch counts."""
        assert self.prepared is not None
        self.base += 1
        self.note, rows = self.prepared
        if rows:
            self.counted[self.base] = rows
        self.prepared = None
        self.untold = True

    def commit(self) -> None:
        """The sink is told so."""
        self.untold = False
        self.take(CommitEpoch(OUT, Attempt(self.attempt), Epoch(self.base)))

    def end_epoch(self) -> None:
        """All of it."""
        self.prepare()
        self.write_manifest()
        self.commit()

    def said(self, kind: type) -> list[Any]:
        """What the sink has told the coordinator, of one kind."""
        told = [message.what for _, message in self.mail.sent if isinstance(message, say.Said)]
        return [what for what in told if isinstance(what, kind)]


def live(rig: SinkRig, choices: list[int], set_fuse: Callable[[int | None], None]) -> None:
    """Let things happen to a sink, in any order that the coordinator allows.

    Args:
        rig: The sink.
        choices: Each picks one of the things that can happen next.
        set_fuse: Called with a number, it lets the sink be killed in the midst of a commit, so many
            steps into it; with None it does not.
    """
    rig.begin()
    for choice in choices:
        what = _possible(rig)
        number, chosen = divmod(choice, len(what))
        set_fuse(number % 5 if what[chosen].endswith("killed") else None)
        try:
            _happen(rig, what[chosen], number)
        except KilledError:
            set_fuse(None)
            rig.crash()
    set_fuse(None)
    if rig.untold:
        rig.commit()


def _possible(rig: SinkRig) -> list[str]:
    what = ["write", "crash", "fail", "crash, killed", "fail, killed"]
    if rig.prepared is not None:
        return [*what, "manifest"] * 2
    if rig.untold:
        return [*what, "commit", "commit, killed", "prepare"]
    return [*what, "epoch", "prepare", "prepare"]


def _happen(rig: SinkRig, what: str, number: int) -> None:
    if what == "write":
        rig.write(number % 4)
    elif what == "epoch":
        rig.write(number % 4)
        rig.end_epoch()
    elif what == "prepare":  # with the word of the last commit still on its way, maybe
        rig.prepare()
    elif what == "manifest":
        rig.write_manifest()
    elif what.startswith("commit"):
        rig.commit()
    elif what.startswith("crash"):
        rig.crash()
    else:
        rig.begin()
