"""An elastic executor and the smallest world that answers it.

The rig hands events in, keeps every instruction in a log, and answers for tasks and nodes when it
is told to: `answer` for some kinds, `settle` for all. After every event it checks what must always
be true, and at the end `complete` says that no tuple was lost, doubled or overtaken.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from types import FunctionType, MethodType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from elasticutor.core.executor.batch import MOST_SINGLES
from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.executor import ElasticExecutor, Phase
from elasticutor.core.executor.tasks import TaskStatus, TaskView
from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import (
    Attempt,
    ChunkId,
    Epoch,
    MoveId,
    NodeId,
    Peer,
    ShardId,
    TaskId,
)
from elasticutor.core.protocol.task_inbox import Work
from elasticutor.errors import OutOfOrderError, StaleAttemptError

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
U, V = Peer("u"), Peer("v")
D, E = Peer("d"), Peer("e")
T0, T1, T2, T3 = (TaskId(number) for number in range(4))
S0, S1, S2, S3 = (ShardId(number) for number in range(4))

InstructionT = TypeVar("InstructionT", bound=do.Instruction)
"""One kind of instruction."""

USUAL_S = 0.001
FLUSHED_BYTES, COPIED_BYTES, REST_BYTES, RESTORED_BYTES, PERSISTED_BYTES = 10, 100, 5, 50, 7
WRITTEN_BYTES = 3


class Rig:
    """An executor on node `a`, begun with some cores and ready for tuples.

    Args:
        config: Settings; few shards unless given.
        cores: The node of each task that it begins with.
        upstreams: Who sends.
        destinations: Who takes outputs, where they are forwarded.
        base: The epoch to begin from.
        row_s: What a tuple of each shard costs; `USUAL_S` unless given.
        answers: What comes out of a chunk; nothing unless given.
    """

    def __init__(
        self,
        config: ExecutorConfig | None = None,
        *,
        cores: Sequence[NodeId] = (A, A),
        upstreams: tuple[Peer, ...] = (U,),
        destinations: tuple[Peer, ...] = (D,),
        base: int = 0,
        row_s: Mapping[int, float] | None = None,
        answers: Callable[[do.Dispatch], tuple[ev.Output, ...]] | None = None,
        begin: bool = True,
    ) -> None:
        self.config = config or ExecutorConfig(shards=4)
        self.executor = ElasticExecutor(self.config, A, now=0.0)
        self.upstreams, self.destinations = upstreams, destinations
        self.row_s = row_s or {}
        self.answers = answers or (lambda chunk: ())
        self.now = 0.0
        self.log: list[do.Instruction] = []
        self.pending: list[tuple[Attempt, do.Instruction]] = []
        self.nodes: dict[TaskId, NodeId] = {}
        self.sent: dict[tuple[Peer, int], list[int]] = defaultdict(list)
        self.done: dict[tuple[Peer, int], list[int]] = defaultdict(list)
        self.works: dict[ChunkId, Work] = {}
        self.writes_at_once = True
        """Tasks write shards that are about to move as soon as they are asked to."""
        self._serial = 0
        for node in cores:
            self.tell(ev.CoreGranted(node))
        self.answer(do.StartTask)
        if begin:
            self.begin(base)
            self.settle()
            assert do.ReportReady(self.attempt) in self.log

    # Telling

    @property
    def attempt(self) -> Attempt:
        return self.executor.epochs.attempt

    def tell(self, event: ev.Event, *, after: float = 0.0) -> list[do.Instruction]:
        """Hand an event in, so many seconds later, and check what must always be true."""
        self.now += after
        held = {move.shard for move in self.executor.moves if move.holds}
        out = self.executor.handle(event, self.now)
        for instruction in out:
            if isinstance(instruction, do.Dispatch):
                shards = np.concatenate([part.shards for part in instruction.parts])
                self.works[instruction.chunk] = Work(instruction.chunk, shards, instruction)
            elif isinstance(instruction, do.StartTask):
                self.nodes[instruction.task] = instruction.node
            elif isinstance(instruction, do.EndTask):
                assert not self._channel(instruction.task), "a task ends with nothing to do"
        self.log += out
        self._check(event, held, out)
        now = of(do.WriteShard, out) if self.writes_at_once else []
        later = [one for one in out if one not in now]
        self.pending += [(self.attempt, one) for one in later if type(one) in _ANSWERS]
        for write in now:
            later += self.tell(ev.ShardWritten(write.task, write.move, WRITTEN_BYTES))
        return later

    def begin(self, base: int, epoch: int | None = None) -> list[do.Instruction]:
        """Begin the next attempt; what was sent before is given up."""
        self.sent.clear()
        self.done.clear()
        return self.tell(
            ev.AttemptBegun(
                Attempt(self.attempt + 1),
                Epoch(base),
                Epoch(base + 1 if epoch is None else epoch),
                self.upstreams,
                self.destinations,
            )
        )

    def batch(self, upstream: Peer, shards: Sequence[int], size: int = 10) -> ev.TuplesArrived:
        """A batch whose content is a serial number for each tuple."""
        content = list(range(self._serial, self._serial + len(shards)))
        self._serial += len(shards)
        # Few tuples go another way through the receiver than many do: here, some do.
        if self._serial % 2 and len(shards) <= MOST_SINGLES:
            return ev.TuplesArrived(upstream, self.attempt, content, list(map(int, shards)), size)
        array = np.array(shards, dtype=np.int32)
        return ev.TuplesArrived(upstream, self.attempt, content, array, size)

    def send(
        self, upstream: Peer, shards: Sequence[int], size: int = 10, *, after: float = 0.0
    ) -> list[do.Instruction]:
        """Let tuples of these shards arrive, as one batch."""
        batch = self.batch(upstream, shards, size)
        for shard, serial in zip(shards, batch.batch, strict=True):
            self.sent[upstream, shard].append(serial)
        return self.tell(batch, after=after)

    def mark(self, *upstreams: Peer) -> list[do.Instruction]:
        """Let these upstreams (all, if none is named) end the open epoch."""
        out: list[do.Instruction] = []
        for upstream in upstreams or self.upstreams:
            out += self.tell(ev.MarkerArrived(upstream, self.attempt, self.executor.epochs.open))
        return out

    def end_epoch(self) -> None:
        """Let everybody end the open epoch, until it is prepared."""
        epoch = self.executor.epochs.open
        self.mark()
        self.settle()
        assert self.executor.epochs.prepared == epoch

    def ask(self, shard: ShardId, destination: TaskId) -> list[do.Instruction]:
        """Ask for a move."""
        return self.tell(ev.MoveAsked(shard, destination))

    def lose_task(self, task: TaskId) -> list[do.Instruction]:
        """Let a task be lost, with everything that was on its way to it."""
        self.forget_start(task)
        self._forget(lambda one: _task_of(one) == task)
        return self.tell(ev.TaskLost(task))

    def forget_start(self, task: TaskId) -> None:
        """A task that is taken or lost before it runs never says that it has started."""
        self._forget(lambda one: isinstance(one, do.StartTask) and one.task == task)

    def lose_node(self, node: NodeId) -> list[do.Instruction]:
        """Let a node be lost, with its tasks and everything on its way there."""
        gone = {task for task, where in self.nodes.items() if where == node}
        self._forget(lambda one: _task_of(one) in gone or getattr(one, "node", None) == node)
        return self.tell(ev.NodeLost(node))

    # Answering

    def answer(
        self, *kinds: type[do.Instruction], times: int | None = None, after: float = 0.0
    ) -> list[do.Instruction]:
        """Answer instructions of these kinds, oldest first, those that follow from it included."""
        out: list[do.Instruction] = []
        while times is None or times > 0:
            index = next((i for i, (_, one) in enumerate(self.pending) if type(one) in kinds), None)
            if index is None:
                break
            out += self.answer_one(index, after=after)
            times = None if times is None else times - 1
        return out

    def settle(self, *, without: tuple[type[do.Instruction], ...] = ()) -> list[do.Instruction]:
        """Answer everything, oldest first, until nothing is left to answer."""
        return self.answer(*(kind for kind in _ANSWERS if kind not in without))

    def answer_one(self, index: int, *, after: float = 0.0) -> list[do.Instruction]:
        """Answer one pending instruction; what comes late from what was given up is refused."""
        issued, instruction = self.pending[index]
        assert not self._ahead_of(index), "a task works in order"
        del self.pending[index]
        rows: list[tuple[Peer, int, int]] = []
        if isinstance(instruction, do.Dispatch):
            rows = self._begun(self.works[instruction.chunk])
        event = _ANSWERS[type(instruction)](self, instruction)
        try:
            out = self.tell(event, after=after)
        except StaleAttemptError:
            assert issued < self.attempt or self.executor.phase is Phase.FAILED
            return []
        self._note(rows)
        return out

    def interrupt(self, task: TaskId, done: int = 0) -> list[do.Instruction]:
        """Let a task answer its first label after so many tuples of the chunk under way."""
        channel = self._channel(task)
        label = of(do.SendLabel, channel)[0]
        before = channel[: channel.index(label)]
        out: list[do.Instruction] = []
        flushes = [place for place, one in enumerate(before) if isinstance(one, do.FlushTask)]
        if flushes:  # a label interrupts chunks, but never overtakes the end of an epoch
            for chunk in of(do.Dispatch, before[: flushes[-1]]):
                out += self.answer_of(chunk)
            before = before[flushes[-1] :]
        chunks = of(do.Dispatch, before)
        if chunks:
            work = self.works[chunks[0].chunk]
            self._note(self._begun(work, done))
            if work.owes(label.shard):
                answer = _progress(self, chunks[0]) if len(work.left) else _process(self, chunks[0])
                out += self.tell(answer)
        returned = sum(self.works[chunk.chunk].leave_out(label.shard) for chunk in chunks)
        over = [c for c in chunks if not len(self.works[c.chunk].left)]
        self._forget(lambda one: one is label or (one in over and not _owed(self, one)))
        return out + self.tell(ev.LabelReached(task, label.move, FLUSHED_BYTES, returned))

    def _begun(self, work: Work, count: int | None = None) -> list[tuple[Peer, int, int]]:
        rows = rows_of(work.content)
        return [rows[place] for place in work.begin(len(work.left) if count is None else count)]

    def _note(self, rows: Sequence[tuple[Peer, int, int]]) -> None:
        for upstream, shard, serial in rows:
            self.done[upstream, shard].append(serial)

    def answer_of(self, instruction: do.Instruction) -> list[do.Instruction]:
        """Answer this one."""
        places = [place for place, (_, one) in enumerate(self.pending) if one is instruction]
        return self.answer_one(places[0])

    def answerable(self) -> list[int]:
        """The pending instructions that may be answered next: the first of each task and node."""
        first: dict[Any, int] = {}
        for index, (_, instruction) in enumerate(self.pending):
            task = _task_of(instruction)
            if task is None:
                first.setdefault(getattr(instruction, "node", None), index)
            elif not self._ahead_of(index):
                first.setdefault((task, type(instruction)), index)
        return sorted(first.values())

    # Looking

    def logged(self, kind: type[InstructionT]) -> list[InstructionT]:
        """All instructions of a kind so far."""
        return of(kind, self.log)

    def unanswered(self, kind: type[InstructionT]) -> list[InstructionT]:
        """The instructions of a kind that wait for an answer."""
        return of(kind, [one for _, one in self.pending])

    def owner(self, shard: ShardId) -> TaskId | None:
        return self.executor.table.owner(shard)

    def owned(self, task: TaskId) -> tuple[ShardId, ...]:
        return self.executor.table.shards_of(task)

    def place(self, **tasks: Sequence[int]) -> None:
        """Have these shards with these tasks, as in `place(t0=[0, 1], t1=[2, 3])`."""
        for name, shards in tasks.items():
            for shard in shards:
                self.ask(ShardId(shard), TaskId(int(name[1:])))
                self.settle()
        for name, shards in tasks.items():
            assert list(self.owned(TaskId(int(name[1:])))) == list(shards)
        self.log.clear()

    def complete(self) -> None:
        """Every tuple sent was processed, once, and in the order of its upstream and shard."""
        assert self.executor.waiting == 0
        assert self.done == self.sent

    # What must always be true

    def _check(self, event: ev.Event, held: set[ShardId], out: list[do.Instruction]) -> None:
        executor = self.executor
        if isinstance(event, ev.MOVE_EVENTS):
            # The marker of an epoch whose end has waited for a move tells nothing of the move.
            marker = () if of(do.FlushTask, out) else (do.EmitMarker,)
            assert not of_any((do.GrantCredit, do.Emit, *marker), out), "upstreams hear of it"
        for shard, owner in enumerate(executor.table.owners):
            if owner is not None:
                assert executor.homes[shard] == executor.tasks[owner].node, "state is at its owner"
        on_the_move = [move.shard for move in executor.moves]
        assert len(set(on_the_move)) == len(on_the_move), "a shard moves once at a time"
        epoch = executor.epochs.open - bool(of(do.FlushTask, out))
        for one in out:
            if isinstance(one, do.FlushTask):
                epoch = executor.epochs.open  # tuples of the next epoch follow at once
            elif isinstance(one, do.SendLabel):
                held.add(one.shard)
            elif isinstance(one, do.ReportMove):
                held.discard(one.shard)
            elif isinstance(one, do.Dispatch):
                assert (one.attempt, one.epoch) == (executor.epochs.attempt, epoch)
                shards = {ShardId(s) for part in one.parts for s in part.shards.tolist()}
                assert not shards & held, "nothing overtakes a label"
                assert {executor.table.owner(shard) for shard in shards} == {one.task}

    def _ahead_of(self, index: int) -> list[do.Instruction]:
        """What a task answers before this.

        It writes what it flushes beside all that follows, and shards ahead of moves at any time.
        """
        instruction = self.pending[index][1]
        if isinstance(instruction, do.WriteShard):
            return []
        task = _task_of(instruction)
        earlier = [one for _, one in self.pending[:index] if _task_of(one) == task is not None]
        overtaken: tuple[type, ...] = (do.WriteShard,)
        if not isinstance(instruction, do.ResetTask):
            overtaken = (do.WriteShard, do.FlushTask)
        return [one for one in earlier if not isinstance(one, overtaken)]

    def _channel(self, task: TaskId) -> list[do.Instruction]:
        return [one for _, one in self.pending if _task_of(one) == task]

    def _forget(self, lost: Callable[[do.Instruction], bool]) -> None:
        self.pending = [(issued, one) for issued, one in self.pending if not lost(one)]


def of(kind: type[InstructionT], out: Sequence[do.Instruction]) -> list[InstructionT]:
    """The instructions of one kind among others."""
    return [one for one in out if isinstance(one, kind)]


def of_any(kinds: tuple[type, ...], out: Sequence[do.Instruction]) -> list[do.Instruction]:
    """The instructions of some kinds among others."""
    return [one for one in out if isinstance(one, kinds)]


def kinds(out: Sequence[do.Instruction]) -> list[str]:
    """What is to be done, by name."""
    return [type(one).__name__ for one in out]


def rows_of(chunk: do.Dispatch) -> list[tuple[Peer, int, int]]:
    """The tuples of a chunk: upstream, shard, serial number."""
    return [
        (part.batch.upstream, shard, part.batch.content[row])
        for part in chunk.parts
        for row, shard in zip(part.rows.tolist(), part.shards.tolist(), strict=True)
    ]


def processed(
    chunk: do.Dispatch,
    useful_s: float = 0.0,
    outputs: tuple[ev.Output, ...] = (),
    row_seconds: npt.NDArray[np.float64] | None = None,
) -> ev.ChunkProcessed:
    """The task is done with this chunk."""
    return ev.ChunkProcessed(chunk.task, chunk.attempt, chunk.chunk, useful_s, outputs, row_seconds)


def back_to_sender(size: int) -> Callable[[do.Dispatch], tuple[ev.Output, ...]]:
    """An operator that returns so many bytes for each chunk to the upstream it came from."""
    return lambda chunk: (ev.Output(chunk.parts[0].batch.upstream, chunk.chunk, size, 1),)


def _task_of(instruction: do.Instruction) -> TaskId | None:
    return instruction.task if isinstance(instruction, do.TO_TASK) else None


def _times(rig: Rig, chunk: do.Dispatch) -> npt.NDArray[np.float64]:
    work = rig.works[chunk.chunk]
    done = [shard for begun in work._done for shard in work.shards[begun].tolist()]
    assert work.report() == len(done)
    return np.array([rig.row_s.get(shard, USUAL_S) for shard in done])


def _owed(rig: Rig, chunk: do.Instruction) -> bool:
    return isinstance(chunk, do.Dispatch) and rig.works[chunk.chunk].unreported > 0


def _process(rig: Rig, chunk: do.Dispatch) -> ev.ChunkProcessed:
    times = _times(rig, chunk)
    return processed(chunk, float(times.sum()), rig.answers(chunk), times)


def _progress(rig: Rig, chunk: do.Dispatch) -> ev.ChunkProgressed:
    times = _times(rig, chunk)
    rows, useful_s = len(times), float(times.sum())
    return ev.ChunkProgressed(
        chunk.task, chunk.attempt, chunk.chunk, rows, useful_s, rig.answers(chunk), times
    )


_ANSWERS: dict[type[do.Instruction], Callable[[Rig, Any], ev.Event]] = {
    do.StartTask: lambda _, it: ev.TaskStarted(it.task),
    do.ResetTask: lambda _, it: ev.TaskReset(it.task, it.attempt),
    do.Dispatch: _process,
    do.WriteShard: lambda _, it: ev.ShardWritten(it.task, it.move, WRITTEN_BYTES),
    do.SendLabel: lambda _, it: ev.LabelReached(it.task, it.move, FLUSHED_BYTES),
    do.FlushTask: lambda _, it: ev.TaskFlushed(it.task, it.attempt, it.epoch),
    do.OpenShard: lambda _, it: ev.ShardOpened(it.move),
    do.CopyShard: lambda _, it: ev.CopyArrived(it.move, COPIED_BYTES),
    do.SendRest: lambda _, it: ev.StateArrived(it.move, REST_BYTES),
    do.RestoreShard: lambda _, it: ev.StateArrived(it.move, RESTORED_BYTES),
    do.DropShard: lambda _, it: ev.ShardDropped(it.node, it.shard),
    do.PersistIncrement: lambda _, it: ev.IncrementPersisted(
        it.node, it.attempt, it.epoch, PERSISTED_BYTES
    ),
    do.RollBackStore: lambda _, it: ev.StoreRolledBack(it.node, it.attempt),
}


def act(rig: Rig, what: str, x: int) -> None:
    """Let anything happen that can happen now; `x` says to whom. What cannot happen does not.

    Nothing is answered but by "answer", and each task and node answers in order.
    """
    executor, shards = rig.executor, rig.config.shards
    running = executor.phase is Phase.RUNNING
    tasks = sorted(executor.tasks)
    staying = [task for task in tasks if executor.tasks[task].staying]
    peer = rig.upstreams[x % len(rig.upstreams)]
    on_the_move = {move.shard for move in executor.moves}
    if what == "send" and running:
        rig.send(peer, [(x * 7 + row * row) % shards for row in range(1 + x % 9)], size=1)
    elif what == "answer" and rig.pending:
        choices = rig.answerable()
        rig.answer_one(choices[x % len(choices)])
    elif what == "interrupt" and running:
        labelled = sorted({label.task for label in rig.unanswered(do.SendLabel)})
        if labelled:
            rig.interrupt(labelled[x % len(labelled)], done=x % 4)
    elif what == "ask" and running and staying and x % shards not in on_the_move:
        _ask(rig, ShardId(x % shards), staying[(x // shards) % len(staying)])
    elif what == "balance":
        rig.tell(ev.BalanceDue(), after=0.1)
    elif what == "grant" and len(tasks) < 6:
        rig.tell(ev.CoreGranted((A, B, C)[x % 3]))
    elif what == "take" and len([t for t in tasks if _may_go(executor.tasks[t])]) > 1:
        going = [task for task in tasks if _may_go(executor.tasks[task])]
        task = going[x % len(going)]
        rig.forget_start(task)
        rig.tell(ev.CoreTaken(task))
    elif what == "mark" and running and executor.epochs.ending is None:
        if peer not in executor.epochs.marked:
            rig.mark(peer)
    elif what == "lose task" and tasks:
        rig.lose_task(tasks[x % len(tasks)])
    elif what == "lose node":
        remote = sorted({executor.tasks[task].node for task in tasks} - {A})
        if remote:
            rig.lose_node(remote[x % len(remote)])
    elif what == "begin":
        epochs = executor.epochs
        base = epochs.committed if epochs.prepared is None or x % 2 else epochs.prepared
        rig.begin(base)


def _ask(rig: Rig, shard: ShardId, destination: TaskId) -> None:
    dropped = do.DropShard(rig.executor.tasks[destination].node, shard)
    if rig.owner(shard) not in (destination, None) and dropped in rig.unanswered(do.DropShard):
        with pytest.raises(OutOfOrderError):
            rig.ask(shard, destination)
    else:
        rig.ask(shard, destination)


def _may_go(task: TaskView) -> bool:
    return task.status is not TaskStatus.LEAVING


def move_of(rig: Rig, shard: ShardId) -> MoveId:
    """The move that this shard is on."""
    return next(move.id for move in rig.executor.moves if move.shard == shard)


def snapshot(executor: ElasticExecutor) -> Any:
    """All of an executor's state as plain data that can be compared.

    The answer to the last event is left out: it belongs to whoever was given it.
    """
    return _plain({k: v for k, v in vars(executor).items() if k != "_out"}, {})


def _plain(value: Any, seen: dict[int, tuple[int, Any]]) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, np.generic)):
        return repr(value)  # so that NaN is itself
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, (FunctionType, MethodType)):
        return value.__qualname__
    if id(value) in seen:
        return f"the same as {seen[id(value)][0]}"
    seen[id(value)] = (len(seen), value)
    if isinstance(value, np.ndarray):
        return ["array", value.dtype.str, value.tolist()]
    if isinstance(value, LatencyHistogram):
        return [found.tolist() for found in value.filled()]
    if isinstance(value, Mapping):
        return [[_plain(k, seen), _plain(v, seen)] for k, v in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return [type(value).__name__, *(_plain(item, seen) for item in value)]
    if isinstance(value, AbstractSet):
        return sorted((_plain(item, seen) for item in value), key=repr)
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    fields = {name: getattr(value, name) for name in slots} | getattr(value, "__dict__", {})
    assert fields, f"{type(value)} hides its state"
    return [type(value).__name__, _plain(fields, seen)]
