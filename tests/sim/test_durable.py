import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.errors import OutOfOrderError
from elasticutor.lab.check.world.durable import Durable
from elasticutor.state.backend import Value
from elasticutor.state.levels import Record

S0, S1 = ShardId(0), ShardId(1)
A1, A2 = Attempt(1), Attempt(2)
E0, E1, E2, E3 = Epoch(0), Epoch(1), Epoch(2), Epoch(3)


def records(epoch: Epoch, **items: bytes | None) -> tuple[Record, ...]:
    return tuple(Record(key.encode(), epoch, value) for key, value in items.items())


def test_at_first_there_is_the_empty_state_of_epoch_0() -> None:
    durable = Durable()
    assert durable.committed("count") == E0
    assert durable.read("count", S0, E0) == ()
    assert durable.state("count") == {}
    assert durable.notes == {}


def test_an_increment_counts_when_it_is_committed() -> None:
    durable = Durable()
    durable.write("count", E1, A1, {S0: records(E1, a=b"1"), S1: records(E1, b=b"1")})
    assert (durable.state("count"), durable.committed("count")) == ({}, E0)
    assert durable.read("count", S0, E0) == ()
    durable.commit("count", E1, A1)
    assert durable.committed("count") == E1
    assert durable.state("count") == {b"a": b"1", b"b": b"1"}
    assert durable.read("count", S0, E1) == records(E1, a=b"1")
    assert durable.read("count", S1, E1) == records(E1, b=b"1")


def test_nodes_write_their_shards_of_an_increment_one_by_one() -> None:
    durable = Durable()
    durable.write("count", E1, A1, {S0: records(E1, a=b"1")})
    durable.write("count", E1, A1, {S1: records(E1, b=b"1")})
    durable.write("count", E1, A1, {})
    durable.commit("count", E1, A1)
    assert durable.state("count") == {b"a": b"1", b"b": b"1"}


def test_an_epoch_may_change_nothing() -> None:
    durable = Durable()
    durable.write("count", E1, A1, {S0: records(E1, a=b"1")})
    durable.commit("count", E1, A1)
    durable.commit("count", E2, A1)
    assert durable.committed("count") == E2
    assert durable.read("count", S0, E2) == records(E2, a=b"1")


def test_increments_lie_on_top_of_earlier_ones_and_deletions_take_away() -> None:
    durable = Durable()
    durable.write("count", E1, A1, {S0: records(E1, a=b"1", b=b"1", c=b"1")})
    durable.commit("count", E1, A1)
    durable.write("count", E2, A1, {S0: records(E2, a=b"2", b=None, never=None)})
    durable.commit("count", E2, A1)
    assert durable.state("count") == {b"a": b"2", b"c": b"1"}
    assert set(durable.read("count", S0, E2)) == set(records(E2, a=b"2", c=b"1"))


@pytest.mark.parametrize("late", [False, True])
def test_an_increment_that_no_manifest_names_does_not_count(late: bool) -> None:
    """An attempt that was given up may write its increment before or after the one that counts."""
    durable = Durable()
    given_up = {S0: records(E1, a=b"given up", b=b"given up"), S1: records(E1, c=b"given up")}
    if not late:
        durable.write("count", E1, A1, given_up)
    durable.write("count", E1, A2, {S0: records(E1, a=b"counts")})
    if late:
        durable.write("count", E1, A1, given_up)
    durable.commit("count", E1, A2)
    assert durable.state("count") == {b"a": b"counts"}


def test_an_increment_left_behind_does_not_count_later_either() -> None:
    durable = Durable()
    durable.write("count", E1, A1, {S0: records(E1, a=b"given up")})
    durable.commit("count", E1, A2)
    durable.write("count", E1, A1, {S0: records(E1, a=b"too late")})
    durable.commit("count", E2, A2)
    durable.commit("count", E3, A1)
    assert (durable.state("count"), durable.committed("count")) == ({}, E3)


def test_executors_are_kept_apart() -> None:
    durable = Durable()
    for name in ("count", "join"):
        durable.write(name, E1, A1, {S0: records(E1, key=name.encode())})
    durable.commit("count", E1, A1)
    assert (durable.committed("count"), durable.committed("join")) == (E1, E0)
    assert (durable.state("count"), durable.state("join")) == ({b"key": b"count"}, {})
    durable.commit("join", E1, A1)
    assert durable.state("join") == {b"key": b"join"}


@pytest.mark.parametrize("epoch", [E0, E1, E3])
def test_only_the_newest_committed_epoch_can_be_read(epoch: Epoch) -> None:
    durable = Durable()
    durable.write("count", E3, A1, {S0: records(E3, a=b"3")})
    durable.commit("count", E2, A1)
    with pytest.raises(OutOfOrderError, match=f"epoch of count to restore must be 2; got {epoch}"):
        durable.read("count", S0, epoch)
    assert durable.read("count", S0, E2) == ()


def test_an_epoch_that_is_to_be_made_again_counts_for_readers_until_it_has_been() -> None:
    durable = Durable()
    for epoch in (E1, E3):
        durable.write("count", epoch, A1, {S0: records(epoch, a=b"%d" % epoch)})
        durable.commit("count", epoch, A1)
    durable.go_back("count", E1)
    assert (durable.committed("count"), durable.state("count")) == (E1, {b"a": b"1"})
    assert [durable.newest_below("count", at) for at in (E1, E3, Epoch(7))] == [E0, E1, E3]
    durable.commit("count", E2, A2)
    assert [durable.newest_below("count", at) for at in (E2, Epoch(7))] == [E1, E2]
    assert durable.state("count") == {b"a": b"1"}


def test_epochs_are_committed_in_order_and_one_goes_back_to_those_that_count_only() -> None:
    durable = Durable()
    durable.commit("count", E2, A1)
    with pytest.raises(OutOfOrderError, match="epoch of count must come after 2; got 1"):
        durable.commit("count", E1, A1)
    with pytest.raises(OutOfOrderError, match=r"epoch of count must be one of \[2\]; got 1"):
        durable.go_back("count", E1)
    durable.go_back("count", E0)
    assert durable.committed("count") == E0


changes = st.dictionaries(st.sampled_from("abcd"), st.none() | st.binary(max_size=2))


@given(st.lists(st.tuples(changes, changes, st.booleans()), max_size=6))
def test_the_state_is_what_the_committed_attempts_wrote(
    epochs: list[tuple[dict[str, Value], dict[str, Value], bool]],
) -> None:
    durable = Durable()
    model: dict[bytes, Value] = {}
    for number, (first, second, second_counts) in enumerate(epochs, start=1):
        epoch = Epoch(number)
        durable.write("count", epoch, A1, {S0: records(epoch, **first)})
        durable.write("count", epoch, A2, {S0: records(epoch, **second)})
        durable.commit("count", epoch, A2 if second_counts else A1)
        counts = second if second_counts else first
        model |= {key.encode(): value for key, value in counts.items()}
        expected = {key: value for key, value in model.items() if value is not None}
        assert durable.state("count") == expected
        found = durable.read("count", S0, epoch)
        assert {record.key: record.value for record in found} == expected
        assert {record.epoch for record in found} <= {epoch}
