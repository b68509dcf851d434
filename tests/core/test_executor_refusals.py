"""Whatever an executor refuses, it refuses by name and before anything has changed."""

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from tests.core.executor_rig import (
    S0,
    S1,
    S2,
    T0,
    T1,
    T2,
    A,
    B,
    D,
    Rig,
    U,
    V,
    move_of,
    snapshot,
)

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.reassignment import MovePhase
from elasticutor.core.measure.load import RowSeconds
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
from elasticutor.errors import (
    BadValueError,
    CreditExceededError,
    ElasticutorError,
    LastCoreError,
    OutOfOrderError,
    ProtocolError,
    StaleAttemptError,
    UnknownNodeError,
    UnknownPeerError,
    UnknownShardError,
    UnknownTaskError,
)

NOBODY = Peer("nobody")
NOWHERE = NodeId("nowhere")
NO_TASK = TaskId(99)
NOW, GIVEN_UP, FUTURE = Attempt(2), Attempt(1), Attempt(3)
COMMITTED, PREPARED, OPEN, LATER = (Epoch(number) for number in range(1, 5))

# Situations ---------------------------------------------------------------------------------------


def idle() -> Rig:
    """No attempt has begun."""
    return Rig(begin=False)


def coreless() -> Rig:
    return Rig(cores=())


def busy(config: ExecutorConfig | None = None) -> Rig:
    """In the second attempt epoch 1 is committed, 2 prepared, 3 open; each task has a chunk."""
    rig = Rig(config, cores=(A, B), upstreams=(U, V))
    rig.place(t0=[0, 1], t1=[2, 3])
    rig.end_epoch()
    rig.begin(1)
    rig.settle()
    rig.send(U, [0, 2])
    rig.end_epoch()
    rig.send(U, [0, 1, 2], size=30, after=1.0)
    assert (rig.attempt, rig.executor.epochs.open) == (NOW, OPEN)
    assert (rig.executor.epochs.committed, rig.executor.epochs.prepared) == (COMMITTED, PREPARED)
    assert len(rig.unanswered(do.Dispatch)) == 2
    return rig


def returning() -> Rig:
    return busy(ExecutorConfig(shards=4, outputs="return"))


def in_debt() -> Rig:
    """Upstream u has used up its credit."""
    rig = busy(ExecutorConfig(shards=4, min_credit_bytes=100))
    rig.send(U, [0], size=10**9)
    return rig


def in_credit() -> Rig:
    """Destination d takes a gigabyte."""
    rig = busy()
    rig.tell(ev.CreditGranted(D, NOW, 10**9))
    return rig


def marked() -> Rig:
    """Upstream u has ended the open epoch; the marker has committed the one before."""
    rig = busy()
    rig.mark(U)
    return rig


def all_marked() -> Rig:
    """The tasks are to flush behind a chunk each."""
    rig = marked()
    rig.mark(V)
    assert len(rig.unanswered(do.FlushTask)) == len(rig.unanswered(do.Dispatch)) == 2
    return rig


def flushing() -> Rig:
    rig = marked()
    rig.answer(do.Dispatch)
    rig.mark(V)
    assert len(rig.unanswered(do.FlushTask)) == 2
    return rig


def half_flushed() -> Rig:
    """Task 0 has flushed, task 1 has not."""
    rig = flushing()
    rig.answer(do.FlushTask, times=1)
    return rig


def persisting() -> Rig:
    """Epoch 3 is sealed; node a has persisted it, node b has not."""
    rig = flushing()
    rig.answer(do.FlushTask)
    rig.answer(do.PersistIncrement, times=1)
    assert rig.executor.epochs.ending == OPEN
    return rig


def rolling_back() -> Rig:
    """Task 0 has been reset, task 1 has not."""
    rig = Rig(cores=(A, B), begin=False)
    rig.begin(0)
    rig.begin(0)
    rig.answer(do.ResetTask, times=3)
    assert list(rig.executor._rollback.resetting) == [T1]
    return rig


def failed() -> Rig:
    rig = busy()
    rig.lose_task(T1)
    return rig


def starting() -> Rig:
    """Task 2 has not started."""
    rig = busy()
    rig.tell(ev.CoreGranted(B))
    return rig


def leaving() -> Rig:
    """Task 1 has been told to leave and still has shards."""
    rig = busy()
    rig.tell(ev.CoreTaken(T1))
    assert T1 in rig.executor.tasks
    return rig


def moving(*steps: type[do.Instruction]) -> Callable[[], Rig]:
    """Shard 0 is on its way from task 0 to task 1 on the other node, so many steps far."""

    def situation() -> Rig:
        rig = busy()
        rig.ask(S0, T1)
        rig.answer(do.Dispatch)
        for step in steps:
            rig.answer(step)
        return rig

    return situation


def writing() -> Rig:
    """The source task writes what it has changed in the shard that is to move."""
    rig = busy()
    rig.writes_at_once = False
    rig.ask(S0, T1)
    rig.answer(do.OpenShard)
    assert [move.phase for move in rig.executor.moves] == [MovePhase.WRITING]
    return rig


opening = moving()
copying = moving(do.OpenShard)
draining = moving(do.OpenShard, do.CopyShard)
migrating = moving(do.OpenShard, do.CopyShard, do.SendLabel)
moved = moving(do.OpenShard, do.CopyShard, do.SendLabel, do.SendRest)


def waiting() -> Rig:
    """The label of a move waits for the end of the epoch."""
    rig = busy()
    while not rig.executor.waiting:
        rig.send(U, [2], size=1)
    rig.mark()
    rig.ask(S0, T1)
    rig.answer(do.OpenShard)
    rig.answer(do.CopyShard)
    assert [move.phase for move in rig.executor.moves] == [MovePhase.WAITING]
    return rig


def restoring() -> Rig:
    """The shards come from the checkpoint."""
    rig = Rig(begin=False)
    rig.begin(0)
    rig.settle()
    rig.begin(5)
    rig.settle(without=(do.RestoreShard,))
    assert len(rig.executor.moves) == 4
    return rig


# Events -------------------------------------------------------------------------------------------


def tuples(
    shards: Any = (0, 1), size: Any = 10, upstream: Peer = U, attempt: Attempt = NOW
) -> ev.TuplesArrived:
    whole = isinstance(shards, np.ndarray | list)
    array = shards if whole else np.array(shards, dtype=np.int32)
    return ev.TuplesArrived(upstream, attempt, "content", array, size)


def answer(
    *outputs: ev.Output,
    attempt: Attempt = NOW,
    useful_s: float = 0.1,
    row_seconds: npt.NDArray[np.float64] | None = None,
    chunks_later: int = 0,
) -> Callable[[Rig], ev.ChunkProcessed]:
    """Task 0 answers its oldest chunk, which has two tuples."""

    def event(rig: Rig) -> ev.ChunkProcessed:
        chunk = next(one.chunk for one in rig.unanswered(do.Dispatch) if one.task == T0)
        chunk = ChunkId(chunk + chunks_later)
        return ev.ChunkProcessed(T0, attempt, chunk, useful_s, outputs, row_seconds)

    return event


def progress(
    rows: int, *, row_seconds: RowSeconds = None, attempt: Attempt = NOW
) -> Callable[[Rig], ev.ChunkProgressed]:
    """Task 0 is done with some tuples of its oldest chunk, which has two."""

    def event(rig: Rig) -> ev.ChunkProgressed:
        chunk = next(one.chunk for one in rig.unanswered(do.Dispatch) if one.task == T0)
        return ev.ChunkProgressed(T0, attempt, chunk, rows, 0.1, (), row_seconds)

    return event


def step(
    kind: type[ev.Event], *, size: int = 1, task: TaskId = T0, move: int | None = None
) -> Callable[[Rig], ev.Event]:
    """A step of a move; of that of shard 0, unless given."""

    def event(rig: Rig) -> ev.Event:
        number = move_of(rig, S0) if move is None else MoveId(move)
        if kind is ev.ShardOpened:
            return ev.ShardOpened(number)
        if kind is ev.LabelReached:
            return ev.LabelReached(task, number, size)
        if kind is ev.ShardWritten:
            return ev.ShardWritten(task, number, size)
        if kind is ev.CopyArrived:
            return ev.CopyArrived(number, size)
        return ev.StateArrived(number, size)

    return event


STEPS: tuple[type[ev.Event], ...] = (
    ev.ShardOpened,
    ev.CopyArrived,
    ev.ShardWritten,
    ev.LabelReached,
    ev.StateArrived,
)


def begun(attempt: Attempt, base: int, epoch: int, *upstreams: Peer) -> ev.AttemptBegun:
    return ev.AttemptBegun(attempt, Epoch(base), Epoch(epoch), upstreams, (D,))


def told(rig: Rig, event: Any) -> Any:
    """The event, or what it is in this situation."""
    return event(rig) if isinstance(event, FunctionType) else event


GOOD = ev.Output(D, "good", 10, 1)

OF_AN_ATTEMPT: list[tuple[str, Callable[[], Rig], Callable[[Attempt], Any]]] = [
    ("tuples", busy, lambda attempt: tuples(attempt=attempt)),
    ("marker", busy, lambda attempt: ev.MarkerArrived(U, attempt, OPEN)),
    ("credit", busy, lambda attempt: ev.CreditGranted(D, attempt, 10**9)),
    ("failure", busy, lambda attempt: ev.AttemptFailed(attempt, "the disk is full")),
    ("commit", busy, lambda attempt: ev.EpochCommitted(attempt, PREPARED)),
    ("answer", busy, lambda attempt: answer(attempt=attempt)),
    ("flush", flushing, lambda attempt: ev.TaskFlushed(T0, attempt, OPEN)),
    ("increment", persisting, lambda attempt: ev.IncrementPersisted(B, attempt, OPEN, 1)),
    ("reset", rolling_back, lambda attempt: ev.TaskReset(T1, attempt)),
    ("store", rolling_back, lambda attempt: ev.StoreRolledBack(A, attempt)),
]

# What is refused ----------------------------------------------------------------------------------

Refusal = tuple[str, Callable[[], Rig], Any, type[ElasticutorError]]

VALUES: list[Refusal] = [
    ("not an event", busy, "hello", BadValueError),
    ("an instruction", busy, do.EndTask(A, T0), BadValueError),
    ("negative size", busy, tuples(size=-1), BadValueError),
    ("one shard too far", busy, tuples([0, 4]), UnknownShardError),
    ("negative shard", busy, tuples([0, -1]), UnknownShardError),
    ("very negative shard", busy, tuples([-(2**31)]), UnknownShardError),
    ("fractional shard", busy, tuples(np.array([0.5])), UnknownShardError),
    ("whole floats", busy, tuples(np.array([0.0, 1.0])), UnknownShardError),
    ("words", busy, tuples(np.array(["0", "1"])), UnknownShardError),
    ("table of shards", busy, tuples(np.array([[0, 1]])), UnknownShardError),
    *(
        (f"useful time {bad}", busy, answer(useful_s=bad), BadValueError)
        for bad in (-1e-9, math.nan, math.inf, -math.inf)
    ),
    *(
        (f"row time {bad}", busy, answer(row_seconds=np.array([0.1, bad])), BadValueError)
        for bad in (-1e-9, math.nan, math.inf, -math.inf)
    ),
    *(
        (f"row times of shape {shape}", busy, answer(row_seconds=np.zeros(shape)), BadValueError)
        for shape in ((0,), (1,), (3,), (2, 1))
    ),
    ("output of negative size", busy, answer(GOOD, ev.Output(D, "x", -1)), BadValueError),
    ("output of negative rows", busy, answer(GOOD, ev.Output(D, "x", 1, -1)), BadValueError),
    ("negative state", busy, ev.StateMeasured(A, -1), BadValueError),
    ("negative increment", persisting, ev.IncrementPersisted(B, NOW, OPEN, -1), BadValueError),
    ("negative copy", copying, step(ev.CopyArrived, size=-1), BadValueError),
    ("negative written state", writing, step(ev.ShardWritten, size=-1), BadValueError),
    ("negative flush", draining, step(ev.LabelReached, size=-1), BadValueError),
    ("negative rest", migrating, step(ev.StateArrived, size=-1), BadValueError),
    ("negative restored state", restoring, step(ev.StateArrived, size=-1), BadValueError),
    ("base after epoch", busy, begun(FUTURE, 4, 3, U), BadValueError),
    ("base is epoch", busy, begun(FUTURE, 3, 3, U), BadValueError),
    ("negative base", busy, begun(FUTURE, -1, 3, U), BadValueError),
    ("no upstreams", busy, begun(FUTURE, 2, 3), BadValueError),
    ("a word for upstreams", busy, ev.AttemptBegun(FUTURE, PREPARED, OPEN, "uv"), BadValueError),  # type: ignore[arg-type]
    ("huge shard", busy, tuples(np.array([10**12])), UnknownShardError),
    ("large shard", busy, tuples(np.array([2 * 10**9], dtype=np.int32)), UnknownShardError),
    ("truth for shards", busy, tuples(np.array([True, False])), UnknownShardError),
    ("list with a shard too large", busy, tuples([0, 4]), UnknownShardError),
    ("list with a negative shard", busy, tuples([-1]), UnknownShardError),
    ("list of too many", busy, tuples([0] * 65), UnknownShardError),
    ("fraction of a shard", busy, ev.MoveAsked(1.5, T1), UnknownShardError),  # type: ignore[arg-type]
    ("negative credit", busy, ev.CreditGranted(D, NOW, -1), BadValueError),
    *(
        case
        for bad in (math.nan, math.inf, 1.5)
        for case in (
            (f"size {bad}", busy, tuples(size=bad), BadValueError),
            (f"state of {bad}", busy, ev.StateMeasured(A, bad), BadValueError),  # type: ignore[arg-type]
            (f"output of {bad}", busy, answer(ev.Output(D, "x", bad)), BadValueError),  # type: ignore[arg-type]
            (f"credit of {bad}", busy, ev.CreditGranted(D, NOW, bad), BadValueError),  # type: ignore[arg-type]
        )
    ),
]

STRANGERS: list[Refusal] = [
    ("stranger's tuples", busy, tuples(upstream=NOBODY), UnknownPeerError),
    ("stranger's marker", busy, ev.MarkerArrived(NOBODY, NOW, OPEN), UnknownPeerError),
    ("stranger's credit", busy, ev.CreditGranted(NOBODY, NOW, 10**9), UnknownPeerError),
    ("upstream's credit", busy, ev.CreditGranted(U, NOW, 10**9), UnknownPeerError),
    ("stranger's output", busy, answer(GOOD, ev.Output(NOBODY, "x", 1)), UnknownPeerError),
    ("no task started", busy, ev.TaskStarted(NO_TASK), UnknownTaskError),
    ("no task reset", rolling_back, ev.TaskReset(NO_TASK, NOW), UnknownTaskError),
    ("no task's core", busy, ev.CoreTaken(NO_TASK), UnknownTaskError),
    ("no task lost", busy, ev.TaskLost(NO_TASK), UnknownTaskError),
    ("task lost again", failed, ev.TaskLost(T1), UnknownTaskError),
    ("no task answered", busy, ev.ChunkProcessed(NO_TASK, NOW, ChunkId(0), 0), UnknownTaskError),
    ("no task flushed", flushing, ev.TaskFlushed(NO_TASK, NOW, OPEN), UnknownTaskError),
    ("move to no task", busy, ev.MoveAsked(S0, NO_TASK), UnknownTaskError),
    ("move to a starting task", starting, ev.MoveAsked(S0, T2), UnknownTaskError),
    ("move to a leaving task", leaving, ev.MoveAsked(S0, T1), UnknownTaskError),
    ("move of no shard", busy, ev.MoveAsked(ShardId(4), T1), UnknownShardError),
    ("move of a negative shard", busy, ev.MoveAsked(ShardId(-1), T1), UnknownShardError),
    ("no node lost", busy, ev.NodeLost(NOWHERE), UnknownNodeError),
    ("local node lost", busy, ev.NodeLost(A), ProtocolError),
    ("no node's state", busy, ev.StateMeasured(NOWHERE, 1), UnknownNodeError),
    ("no node dropped", moved, ev.ShardDropped(NOWHERE, S0), UnknownNodeError),
    ("no node went back", rolling_back, ev.StoreRolledBack(NOWHERE, NOW), UnknownNodeError),
    (
        "no node persisted",
        persisting,
        ev.IncrementPersisted(NOWHERE, NOW, OPEN, 1),
        UnknownNodeError,
    ),
]

CORES: list[Refusal] = [
    ("last core", leaving, ev.CoreTaken(T0), LastCoreError),
    ("only core", failed, ev.CoreTaken(T0), LastCoreError),
    ("a core of none", coreless, ev.CoreTaken(T0), UnknownTaskError),
    ("core taken twice", leaving, ev.CoreTaken(T1), OutOfOrderError),
    ("started again", busy, ev.TaskStarted(T0), OutOfOrderError),
    ("started when leaving", leaving, ev.TaskStarted(T1), OutOfOrderError),
]

FLOW: list[Refusal] = [
    ("debtor's tuples", in_debt, tuples(), CreditExceededError),
    ("debtor's empty batch", in_debt, tuples([], 0), CreditExceededError),
    ("falling credit", in_credit, ev.CreditGranted(D, NOW, 10**9 - 1), OutOfOrderError),
    ("later chunk", busy, answer(chunks_later=1), OutOfOrderError),
    ("chunk again", busy, answer(chunks_later=-1), OutOfOrderError),
    ("chunk unasked", flushing, ev.ChunkProcessed(T0, NOW, ChunkId(0), 0.1), OutOfOrderError),
    ("none of a chunk", busy, progress(0), OutOfOrderError),
    ("all of a chunk as a part of it", busy, progress(2), OutOfOrderError),
    ("times of more tuples", busy, progress(1, row_seconds=np.ones(2)), BadValueError),
    ("list of times of more tuples", busy, progress(1, row_seconds=[1.0, 1.0]), BadValueError),
    ("list with a negative time", busy, progress(1, row_seconds=[-1.0]), BadValueError),
    ("another's output", returning, answer(ev.Output(V, "x", 1)), OutOfOrderError),
]

EPOCHS: list[Refusal] = [
    ("marker twice", marked, ev.MarkerArrived(U, NOW, OPEN), OutOfOrderError),
    ("marker of the next but one", busy, ev.MarkerArrived(U, NOW, LATER), OutOfOrderError),
    ("marker of the last", busy, ev.MarkerArrived(U, NOW, PREPARED), OutOfOrderError),
    ("next marker too early", marked, ev.MarkerArrived(U, NOW, LATER), OutOfOrderError),
    ("marker while persisting", persisting, ev.MarkerArrived(U, NOW, LATER), OutOfOrderError),
    ("flushed unasked", busy, ev.TaskFlushed(T0, NOW, OPEN), OutOfOrderError),
    ("flushed before its chunks", all_marked, ev.TaskFlushed(T0, NOW, OPEN), OutOfOrderError),
    ("flushed twice", half_flushed, ev.TaskFlushed(T0, NOW, OPEN), OutOfOrderError),
    ("flushed the last epoch", flushing, ev.TaskFlushed(T0, NOW, PREPARED), OutOfOrderError),
    ("flushed the next epoch", flushing, ev.TaskFlushed(T0, NOW, LATER), OutOfOrderError),
    ("persisted unasked", busy, ev.IncrementPersisted(A, NOW, OPEN, 1), OutOfOrderError),
    ("persisted twice", persisting, ev.IncrementPersisted(A, NOW, OPEN, 1), OutOfOrderError),
    ("persisted the next", persisting, ev.IncrementPersisted(B, NOW, LATER, 1), OutOfOrderError),
    ("persisted the last", persisting, ev.IncrementPersisted(B, NOW, PREPARED, 1), OutOfOrderError),
    ("commit of the open", busy, ev.EpochCommitted(NOW, OPEN), OutOfOrderError),
    ("commit of the sealed", persisting, ev.EpochCommitted(NOW, OPEN), OutOfOrderError),
    ("commit of a far one", busy, ev.EpochCommitted(NOW, Epoch(9)), OutOfOrderError),
    ("commit of one long ago", busy, ev.EpochCommitted(NOW, Epoch(0)), OutOfOrderError),
]

ATTEMPTS: list[Refusal] = [
    ("begun again", busy, begun(NOW, 2, 3, U), OutOfOrderError),
    ("begun with 0", idle, begun(Attempt(0), 0, 1, U), OutOfOrderError),
    ("begun too late", busy, begun(GIVEN_UP, 2, 3, U), StaleAttemptError),
    ("tuples before any", idle, tuples(attempt=GIVEN_UP), StaleAttemptError),
    ("marker before any", idle, ev.MarkerArrived(U, GIVEN_UP, COMMITTED), StaleAttemptError),
    ("reset twice", rolling_back, ev.TaskReset(T0, NOW), OutOfOrderError),
    ("reset unasked", busy, ev.TaskReset(T0, NOW), OutOfOrderError),
    ("store before tasks", rolling_back, ev.StoreRolledBack(A, NOW), OutOfOrderError),
    ("store unasked", busy, ev.StoreRolledBack(A, NOW), OutOfOrderError),
    *(
        (f"{name} of a {time} attempt", situation, event_of(attempt), error)
        for time, attempt, error in (
            ("given-up", GIVEN_UP, StaleAttemptError),
            ("future", FUTURE, OutOfOrderError),
        )
        for name, situation, event_of in OF_AN_ATTEMPT
    ),
]

MOVES: list[Refusal] = [
    ("asked again", opening, ev.MoveAsked(S0, T1), OutOfOrderError),
    ("asked back too early", moved, ev.MoveAsked(S0, T0), OutOfOrderError),
    ("asked when failed", failed, ev.MoveAsked(S0, T0), OutOfOrderError),
    ("asked when idle", idle, ev.MoveAsked(S0, T0), OutOfOrderError),
    ("asked when rolling back", rolling_back, ev.MoveAsked(S0, T0), OutOfOrderError),
    ("dropped unasked", busy, ev.ShardDropped(A, S0), OutOfOrderError),
    ("dropped too early", migrating, ev.ShardDropped(A, S0), OutOfOrderError),
    ("dropped another", moved, ev.ShardDropped(A, S1), OutOfOrderError),
    ("dropped on another node", moved, ev.ShardDropped(B, S0), OutOfOrderError),
    ("written at the destination", writing, step(ev.ShardWritten, task=T1), OutOfOrderError),
    ("label at the destination", draining, step(ev.LabelReached, task=T1), OutOfOrderError),
    ("label at no task", draining, step(ev.LabelReached, task=NO_TASK), OutOfOrderError),
    *(
        (f"{kind.__name__} when {phase}", situation, step(kind), OutOfOrderError)
        for phase, situation, right in (
            ("opening", opening, ev.ShardOpened),
            ("writing", writing, ev.ShardWritten),
            ("copying", copying, ev.CopyArrived),
            ("waiting", waiting, None),
            ("draining", draining, ev.LabelReached),
            ("migrating", migrating, ev.StateArrived),
            ("restoring", restoring, ev.StateArrived),
        )
        for kind in STEPS
        if kind is not right
    ),
    *(
        (f"{kind.__name__} of {which}", draining, step(kind, move=move), error)
        for which, move, error in (
            ("a move never started", 99, OutOfOrderError),
            ("a negative move", -1, OutOfOrderError),
            ("a move long done", 0, StaleAttemptError),
        )
        for kind in STEPS
    ),
]


REFUSALS = [*VALUES, *STRANGERS, *CORES, *FLOW, *EPOCHS, *ATTEMPTS, *MOVES]


@pytest.mark.parametrize(
    ("situation", "event", "error"),
    [pytest.param(*case, id=name.replace(" ", "-")) for name, *case in REFUSALS],
)
def test_refused_by_name_and_nothing_changed(
    situation: Callable[[], Rig], event: Any, error: type[ElasticutorError]
) -> None:
    rig = situation()
    event = told(rig, event)
    before = snapshot(rig.executor)
    with pytest.raises(ElasticutorError) as caught:
        rig.executor.handle(event, rig.now)
    assert type(caught.value) is error
    assert snapshot(rig.executor) == before


@pytest.mark.parametrize("now", [0.999, -1.0, math.nan, -math.inf])
@pytest.mark.parametrize("event", [ev.BalanceDue(), ev.CoreGranted(A), tuples(), answer()])
def test_time_that_runs_backwards_or_is_none_is_refused_and_nothing_changed(
    event: Any, now: float
) -> None:
    rig = busy()
    event = told(rig, event)
    before = snapshot(rig.executor)
    with pytest.raises(BadValueError, match="now"):
        rig.executor.handle(event, now)
    assert snapshot(rig.executor) == before


def test_every_kind_of_event_is_refused_in_some_situation() -> None:
    """But for those that are always welcome."""
    tried = {type(told(situation(), event)) for _, situation, event, _ in REFUSALS}
    kinds = {kind for base in get_args(ev.Event) for kind in base.__subclasses__() or [base]}
    assert kinds - tried == {ev.CoreGranted, ev.BalanceDue}


# That the comparison above says something ---------------------------------------------------------


@pytest.mark.parametrize(
    ("situation", "event"),
    [
        (busy, tuples()),
        (busy, tuples([], 7)),
        (busy, answer()),
        (busy, ev.MarkerArrived(U, NOW, OPEN)),
        (busy, ev.CreditGranted(D, NOW, 10**9)),
        (busy, ev.StateMeasured(A, 1)),
        (busy, ev.EpochCommitted(NOW, PREPARED)),
        (busy, ev.MoveAsked(S0, T1)),
        (busy, ev.CoreGranted(A)),
        (busy, begun(FUTURE, 2, 3, U)),
        (starting, ev.CoreTaken(T2)),
        (moved, ev.ShardDropped(A, S0)),
        (flushing, ev.TaskFlushed(T0, NOW, OPEN)),
        (persisting, ev.IncrementPersisted(B, NOW, OPEN, 1)),
        (rolling_back, ev.TaskReset(T1, NOW)),
        (draining, step(ev.LabelReached)),
    ],
)
def test_the_snapshot_sees_what_an_event_changes(situation: Callable[[], Rig], event: Any) -> None:
    rig = situation()
    before = snapshot(rig.executor)
    assert snapshot(situation().executor) == before
    rig.tell(told(rig, event))
    assert snapshot(rig.executor) != before


def test_the_clock_goes_on_with_accepted_events_only() -> None:
    rig = busy()
    with pytest.raises(BadValueError):
        rig.executor.handle(tuples(size=-1), 5.0)
    rig.executor.handle(ev.BalanceDue(), 2.0)
    with pytest.raises(BadValueError, match=r"now must be .* 2\.0 or later; got 1\.5"):
        rig.executor.handle(ev.BalanceDue(), 1.5)


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf, 0.0])
@pytest.mark.parametrize(
    "event", [ev.CoreGranted(A), ev.TaskLost(T0), ev.BalanceDue(), tuples()], ids=repr
)
def test_a_time_that_cannot_be_changes_nothing(event: ev.Event, now: float) -> None:
    rig = busy()
    before = snapshot(rig.executor)
    with pytest.raises(BadValueError, match="now must be"):
        rig.executor.handle(event, now)
    with pytest.raises(BadValueError, match="now must be"):
        rig.executor.measure(now)
    assert snapshot(rig.executor) == before


def test_measuring_moves_the_clock_on() -> None:
    rig = busy()
    rig.executor.measure(10.0)
    with pytest.raises(BadValueError, match="now must be"):
        rig.executor.handle(ev.CoreGranted(A), 5.0)


@pytest.mark.parametrize("returned", [0, 2])
def test_a_label_is_not_reached_before_every_tuple_of_its_shard_is_answered_or_returned(
    returned: int,
) -> None:
    rig = Rig()
    rig.place(t0=[0, 1], t1=[2, 3])
    rig.send(U, [0, 1])
    rig.ask(S0, T1)
    before = snapshot(rig.executor)
    with pytest.raises(OutOfOrderError, match="answer its chunks first, or return 1 tuples of"):
        rig.tell(ev.LabelReached(T0, move_of(rig, S0), 0, returned))
    assert snapshot(rig.executor) == before


def test_an_error_names_who_must_what_and_what_was_got() -> None:
    rig = busy()
    with pytest.raises(UnknownTaskError, match=r"task must be one of \[0, 1\]; got 99"):
        rig.executor.handle(ev.CoreTaken(NO_TASK), rig.now)
    with pytest.raises(OutOfOrderError, match="marker from 'u' must end epoch 3; got 4"):
        rig.executor.handle(ev.MarkerArrived(U, NOW, LATER), rig.now)
    assert rig.owner(S2) == T1
