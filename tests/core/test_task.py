import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, ChunkId, Epoch, MoveId, ShardId, TaskId
from elasticutor.core.protocol.task import Task
from elasticutor.core.protocol.task_inbox import SingleWork, TaskInbox, Work
from elasticutor.errors import OutOfOrderError, StaleAttemptError
from elasticutor.state.backend import MemoryBackend
from elasticutor.state.cache import Codec, StateCache
from elasticutor.state.levels import Levels

T = TaskId(7)
S0, S1 = ShardId(0), ShardId(1)
A1, A2, A3 = Attempt(1), Attempt(2), Attempt(3)
E0, E1, E2, E3 = Epoch(0), Epoch(1), Epoch(2), Epoch(3)


class Rig:
    """A task that runs for attempt 2 in epoch 1, on a store of its own."""

    def __init__(self, max_keys: int = 100, slice_records: int = 512) -> None:
        self.store = Levels.create(MemoryBackend(), attempt=A2, committed=E0)
        codec = Codec(str.encode, dump=str.encode, load=bytes.decode)
        self.cache = StateCache(
            self.store, codec, A2, E1, max_keys=max_keys, slice_records=slice_records
        )
        self.task = Task(T, self.cache)

    def flush(self, attempt: Attempt, epoch: Epoch) -> ev.TaskFlushed:
        """End the epoch, and write all of it; the answer comes with the last slice."""
        self.task.flush(do.FlushTask(T, attempt, epoch))
        while (answer := self.task.write_on()) is None:
            assert self.task.flushing
        assert self.task.write_on() is None
        return answer

    @property
    def at(self) -> tuple[Attempt, Epoch]:
        return self.cache.attempt, self.cache.epoch


@pytest.fixture
def rig() -> Rig:
    return Rig()


def chunk(attempt: Attempt = A2, epoch: Epoch = E1) -> do.Dispatch:
    return do.Dispatch(T, attempt, epoch, ChunkId(1), [])


def labelled(rig: Rig) -> ev.LabelReached:
    """The task's answer to a label of shard 0."""
    inbox = TaskInbox()
    inbox.put(do.SendLabel(T, MoveId(3), S0))
    (answer,) = rig.task.answer_labels(inbox, None, lambda: None)
    return answer


def test_a_label_writes_and_forgets_its_shard_and_no_other(rig: Rig) -> None:
    rig.cache.set(S0, "a", "12345")
    rig.cache.set(S1, "b", "1")
    answer = labelled(rig)
    assert answer == ev.LabelReached(T, MoveId(3), 1 + 5)
    assert rig.store.contents() == {b"a": b"12345"}
    assert (len(rig.cache), rig.cache.dirty) == (1, True)
    # Another task owns the shard now: what it writes is read, should the shard return.
    rig.store.write(A2, E1, S0, [(b"a", b"elsewhere")])
    rig.store.write(A2, E1, S1, [(b"b", b"elsewhere")])
    assert (rig.cache.get(S0, "a"), rig.cache.get(S1, "b")) == ("elsewhere", "1")


def test_a_label_forgets_what_was_only_read(rig: Rig) -> None:
    rig.store.write(A2, E1, S0, [(b"a", b"old")])
    assert (rig.cache.get(S0, "a"), rig.cache.get(S0, "b")) == ("old", None)
    assert labelled(rig).size == 0
    rig.store.write(A2, E1, S0, [(b"a", b"new"), (b"b", b"new")])
    assert (rig.cache.get(S0, "a"), rig.cache.get(S0, "b")) == ("new", "new")


def test_a_label_leaves_the_epoch_as_it_is(rig: Rig) -> None:
    labelled(rig)
    assert rig.at == (A2, E1)


def test_a_flush_writes_all_keeps_it_cached_and_opens_the_next_epoch(rig: Rig) -> None:
    rig.cache.set(S0, "a", "1")
    rig.cache.set(S1, "b", "1")
    assert rig.flush(A2, E1) == ev.TaskFlushed(T, A2, E1)
    assert rig.store.contents() == {b"a": b"1", b"b": b"1"}
    assert (len(rig.cache), rig.cache.dirty, rig.at) == (2, False, (A2, E2))
    rig.task.open_chunk(chunk(epoch=E2))
    rig.cache.set(S0, "a", "2")
    rig.task.close_chunk()
    rig.flush(A2, E2)
    assert [record.value for record in rig.store.increment(E1, S0)] == [b"1"]
    assert [record.value for record in rig.store.increment(E2, S0)] == [b"2"]


def test_a_flush_keeps_what_has_changed_as_it_is_and_writes_it_beside_the_next_epoch() -> None:
    rig = Rig(slice_records=1)
    for shard, key in ((S0, "a"), (S0, "b"), (S0, "c"), (S1, "d")):
        rig.cache.set(shard, key, "1")
    rig.task.flush(do.FlushTask(T, A2, E1))
    assert (rig.store.contents(), rig.at) == ({}, (A2, E2))
    rig.task.open_chunk(chunk(epoch=E2))
    for shard, key in ((S0, "a"), (S0, "b"), (S1, "d")):
        assert rig.cache.get(shard, key) == "1"
        rig.cache.set(shard, key, "2")
    rig.task.close_chunk()
    slices = 0
    while rig.task.write_on() is None:
        slices += 1
    assert slices > 0
    assert {r.key: r.value for r in rig.store.increment(E1, S0)} == dict.fromkeys(
        (b"a", b"b", b"c"), b"1"
    )
    assert [record.value for record in rig.store.increment(E1, S1)] == [b"1"]
    assert rig.store.increment(E2, S0) == ()
    rig.flush(A2, E2)
    assert [record.key for record in rig.store.increment(E2, S0)] == [b"a", b"b"]


def test_a_label_writes_both_epochs_of_its_shard_and_leaves_the_rest_set_apart() -> None:
    rig = Rig(slice_records=1)
    rig.cache.set(S0, "a", "1")
    rig.cache.set(S1, "b", "1")
    rig.task.flush(do.FlushTask(T, A2, E1))
    rig.task.open_chunk(chunk(epoch=E2))
    rig.cache.set(S0, "a", "22")
    assert rig.task.label(do.SendLabel(T, MoveId(3), S0)).size == 1 + 1 + 1 + 2
    assert [record.value for record in rig.store.increment(E1, S0)] == [b"1"]
    assert [record.value for record in rig.store.increment(E2, S0)] == [b"22"]
    assert rig.store.increment(E1, S1) == ()
    assert rig.task.write_on() == ev.TaskFlushed(T, A2, E1)
    assert [record.value for record in rig.store.increment(E1, S1)] == [b"1"]


def test_the_next_epoch_is_not_flushed_before_the_last_is_written(rig: Rig) -> None:
    rig.cache.set(S0, "a", "1")
    rig.task.flush(do.FlushTask(T, A2, E1))
    with pytest.raises(OutOfOrderError, match="epoch to flush must come after epoch 1 is written"):
        rig.task.flush(do.FlushTask(T, A2, E2))
    assert rig.task.write_on() == ev.TaskFlushed(T, A2, E1)


def test_a_reset_forgets_what_was_set_apart(rig: Rig) -> None:
    rig.cache.set(S0, "a", "given up")
    rig.task.flush(do.FlushTask(T, A2, E1))
    rig.task.reset(do.ResetTask(T, A3))
    assert (rig.task.flushing, rig.task.write_on(), rig.store.contents()) == (False, None, {})
    assert rig.cache.get(S0, "a") is None


def test_a_task_that_had_nothing_to_do_flushes_an_epoch_it_never_met(rig: Rig) -> None:
    assert rig.flush(A2, E3) == ev.TaskFlushed(T, A2, E3)
    assert rig.at == (A2, Epoch(4))
    assert rig.store.contents() == {}


def test_a_later_attempt_may_begin_with_a_flush(rig: Rig) -> None:
    """Epochs of an attempt that goes on from what is prepared may be numbered as it likes."""
    rig.flush(A2, E2)
    assert rig.flush(A3, E1) == ev.TaskFlushed(T, A3, E1)
    assert rig.at == (A3, E2)


def test_an_epoch_that_was_flushed_is_not_flushed_again(rig: Rig) -> None:
    rig.flush(A2, E2)
    rig.cache.set(S0, "a", "1")
    for epoch in (E1, E2):
        with pytest.raises(OutOfOrderError, match="epoch to flush must be 3 or later"):
            rig.flush(A2, epoch)
    assert rig.at == (A2, E3)
    assert rig.cache.dirty
    assert rig.store.contents() == {}


def test_a_reset_forgets_what_was_not_written(rig: Rig) -> None:
    rig.store.write(A2, E1, S0, [(b"a", b"base")])
    rig.cache.set(S0, "a", "given up")
    rig.cache.set(S1, "b", "given up")
    assert rig.task.reset(do.ResetTask(T, A3)) == ev.TaskReset(T, A3)
    assert (len(rig.cache), rig.cache.dirty) == (0, False)
    assert rig.store.contents() == {b"a": b"base"}
    assert (rig.cache.get(S0, "a"), rig.cache.get(S1, "b")) == ("base", None)


def test_after_a_reset_the_next_chunk_says_which_epoch_it_is(rig: Rig) -> None:
    """The new attempt may repeat an epoch that this task has flushed."""
    rig.flush(A2, E2)
    rig.task.reset(do.ResetTask(T, A3))
    rig.task.open_chunk(chunk(A3, E1))
    rig.cache.set(S0, "a", "1")
    rig.flush(A3, E1)
    assert [record.value for record in rig.store.increment(E1, S0)] == [b"1"]
    assert rig.at == (A3, E2)


def test_after_a_reset_any_epoch_can_be_flushed(rig: Rig) -> None:
    rig.flush(A2, E2)
    rig.task.reset(do.ResetTask(T, A3))
    assert rig.flush(A3, E1) == ev.TaskFlushed(T, A3, E1)


def test_a_chunk_of_the_same_epoch_keeps_what_is_cached(rig: Rig) -> None:
    rig.cache.set(S0, "a", "1")
    rig.task.open_chunk(chunk())
    assert (rig.cache.get(S0, "a"), rig.cache.dirty, rig.at) == ("1", True, (A2, E1))


def test_a_chunk_can_open_a_new_epoch_or_attempt_when_all_is_written(rig: Rig) -> None:
    rig.task.open_chunk(chunk(A2, E2))
    assert rig.at == (A2, E2)
    rig.task.open_chunk(chunk(A3, E1))
    assert rig.at == (A3, E1)


@pytest.mark.parametrize(("attempt", "epoch"), [(A2, E2), (A3, E1), (A3, E2)])
def test_a_chunk_of_another_epoch_is_refused_while_changes_are_unwritten(
    rig: Rig, attempt: Attempt, epoch: Epoch
) -> None:
    rig.cache.set(S0, "a", "1")
    with pytest.raises(OutOfOrderError, match="be flushed before the next one"):
        rig.task.open_chunk(chunk(attempt, epoch))
    assert (rig.at, rig.cache.dirty, rig.cache.get(S0, "a")) == ((A2, E1), True, "1")
    assert rig.store.contents() == {}


def test_stale_attempts_are_refused_and_change_nothing(rig: Rig) -> None:
    rig.cache.set(S0, "a", "1")
    with pytest.raises(StaleAttemptError, match="attempt must be 2 or later; got 1"):
        rig.task.open_chunk(chunk(A1, E1))
    with pytest.raises(StaleAttemptError):
        rig.flush(A1, E1)
    with pytest.raises(StaleAttemptError):
        rig.task.reset(do.ResetTask(T, A1))
    assert (rig.at, rig.cache.dirty, rig.cache.get(S0, "a")) == ((A2, E1), True, "1")
    assert rig.store.contents() == {}


def test_a_task_does_not_write_to_a_store_that_went_back_without_it(rig: Rig) -> None:
    rig.cache.set(S0, "a", "given up")
    rig.store.roll_back(A3, E0, keep=[])
    with pytest.raises(StaleAttemptError):
        labelled(rig)
    with pytest.raises(StaleAttemptError):
        rig.flush(A2, E1)
    assert rig.store.contents() == {}


def test_a_full_cache_is_relieved_between_chunks_only() -> None:
    rig = Rig(max_keys=1)
    rig.task.open_chunk(chunk())
    for key in "abc":
        rig.cache.set(S0, key, key)
    assert (len(rig.cache), rig.store.contents()) == (3, {})
    rig.task.close_chunk()
    assert (len(rig.cache), rig.cache.dirty) == (0, False)
    assert rig.store.contents() == {b"a": b"a", b"b": b"b", b"c": b"c"}


# Labels


def sent(rig: Rig, inbox: TaskInbox, work: Work | None) -> list[object]:
    """What the task sends when it answers the labels that wait."""
    out: list[object] = []

    def report() -> None:
        assert work is not None
        out.append(("done", work.report()))

    for answer in rig.task.answer_labels(inbox, work, report):
        out += [answer]
    return out


def work_of(number: int, *shards: int) -> Work:
    return Work(ChunkId(number), np.array(shards, np.int32))


def test_a_label_takes_its_shard_out_of_the_chunk_under_way_and_of_those_that_wait(
    rig: Rig,
) -> None:
    inbox, work = TaskInbox(), work_of(0, 1, 0, 1, 0, 1)
    for message in (work_of(1, 0, 1), work_of(2, 0, 0), do.SendLabel(T, MoveId(3), S0)):
        inbox.put(message)
    work.begin(2)
    assert sent(rig, inbox, work) == [("done", 2), ev.LabelReached(T, MoveId(3), 0, 4)]
    assert work.left.tolist() == [2, 4]
    assert inbox.pop().left.tolist() == [1]
    assert len(inbox) == 0  # nothing is left of the last


def test_what_is_done_of_a_chunk_is_reported_only_before_labels_of_its_shards(rig: Rig) -> None:
    inbox, work = TaskInbox(), work_of(0, 1, 1, 0, 1)
    for move, shard in ((3, S0), (4, S1)):
        inbox.put(do.SendLabel(T, MoveId(move), shard))
    work.begin(1)
    assert sent(rig, inbox, work) == [
        ev.LabelReached(T, MoveId(3), 0, 1),
        ("done", 1),
        ev.LabelReached(T, MoveId(4), 0, 2),
    ]


def test_the_answer_to_a_label_does_not_wait_until_the_state_is_let_go(rig: Rig) -> None:
    rig.cache.set(S0, "a", "1")
    inbox = TaskInbox()
    inbox.put(do.SendLabel(T, MoveId(3), S0))
    answers = rig.task.answer_labels(inbox, None, lambda: None)
    assert next(answers) == ev.LabelReached(T, MoveId(3), 2)
    assert (rig.store.contents(), len(rig.cache)) == ({b"a": b"1"}, 1)
    assert list(answers) == []
    assert len(rig.cache) == 0


# Writing ahead


def test_a_shard_is_written_in_slices_and_what_changes_meanwhile_is_left_to_the_label() -> None:
    rig = Rig(slice_records=2)
    for key in "abcde":
        rig.cache.set(S0, key, "1")
    rig.cache.set(S1, "other", "1")
    steps = rig.task.write(do.WriteShard(T, MoveId(3), S0))
    assert next(steps) is None
    assert rig.store.contents() == {b"a": b"1", b"b": b"1"}
    assert [next(steps), next(steps)] == [None, None]
    rig.cache.set(S0, "a", "2")
    assert next(steps) == ev.ShardWritten(T, MoveId(3), 10)
    assert rig.store.contents() == {key.encode(): b"1" for key in "abcde"}
    assert len(rig.cache) == 6  # the task goes on working on the shard
    assert labelled(rig).size == 2
    assert rig.store.contents()[b"a"] == b"2"


@pytest.mark.parametrize("what", ["flush", "reset"])
def test_writing_ahead_ends_when_a_flush_or_a_reset_leaves_nothing_to_write(what: str) -> None:
    rig = Rig(slice_records=1)
    for key in "abc":
        rig.cache.set(S0, key, "1")
    steps = rig.task.write(do.WriteShard(T, MoveId(3), S0))
    next(steps)
    if what == "flush":
        rig.task.flush(do.FlushTask(T, A2, E1))
        while rig.task.write_on() is None:
            pass
    else:
        rig.task.reset(do.ResetTask(T, A3))
    assert next(steps) == ev.ShardWritten(T, MoveId(3), 2)


def test_writing_ahead_goes_on_with_what_a_flush_has_set_apart() -> None:
    rig = Rig(slice_records=1)
    for key in "abc":
        rig.cache.set(S0, key, "1")
    steps = rig.task.write(do.WriteShard(T, MoveId(3), S0))
    next(steps)
    rig.task.flush(do.FlushTask(T, A2, E1))
    rig.cache.set(S0, "b", "2")
    assert [answer for answer in steps if answer] == [ev.ShardWritten(T, MoveId(3), 6)]
    assert rig.store.contents() == {b"a": b"1", b"b": b"1", b"c": b"1"}
    assert labelled(rig).size == 2


uses = st.lists(
    st.tuples(st.sampled_from(["begin", "leave out", "report"]), st.integers(0, 3)), max_size=12
)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), uses)
def test_a_chunk_of_few_tuples_is_used_like_any_other(
    shards: list[int], history: list[tuple[str, int]]
) -> None:
    work = Work(ChunkId(0), np.array(shards, np.int32))
    single = SingleWork(ChunkId(0), list(shards))
    for what, number in history:
        if what == "begin":
            assert single.begin(number) == work.begin(number).tolist()
        elif what == "leave out":
            assert single.leave_out(ShardId(number)) == work.leave_out(ShardId(number))
        else:
            assert single.report() == work.report()
        assert single.left == work.left.tolist()
        assert single.unreported == work.unreported
        owed = [single.owes(ShardId(shard)) for shard in range(4)]
        assert owed == [work.owes(ShardId(shard)) for shard in range(4)]
