import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.executor.routing import RoutingTable
from elasticutor.core.protocol.ids import ShardId, TaskId
from elasticutor.errors import BadValueError, UnknownShardError

SHARDS = 5

owners = st.none() | st.integers(0, 3).map(TaskId)
changes = st.dictionaries(st.integers(0, SHARDS - 1).map(ShardId), owners)


def table_of(*tasks: int | None) -> RoutingTable:
    changes = {ShardId(s): None if t is None else TaskId(t) for s, t in enumerate(tasks)}
    return RoutingTable.unplaced(len(tasks)).with_owners(changes)


def test_a_new_table_has_no_owners() -> None:
    table = RoutingTable.unplaced(SHARDS)
    assert (table.version, table.owners) == (0, (None,) * SHARDS)
    assert table.shards_of(None) == (0, 1, 2, 3, 4)


@given(st.lists(changes, max_size=6))
def test_the_latest_change_of_a_shard_counts_and_versions_count_changes(
    history: list[dict[ShardId, TaskId | None]],
) -> None:
    table = RoutingTable.unplaced(SHARDS)
    expected: dict[ShardId, TaskId | None] = {}
    for number, change in enumerate(history, start=1):
        table = table.with_owners(change)
        expected |= change
        assert table.version == number
    assert [table.owner(ShardId(s)) for s in range(SHARDS)] == [
        expected.get(ShardId(s)) for s in range(SHARDS)
    ]


@given(changes)
def test_every_shard_is_of_exactly_one_owner(change: dict[ShardId, TaskId | None]) -> None:
    table = RoutingTable.unplaced(SHARDS).with_owners(change)
    everybody: list[TaskId | None] = [None, *map(TaskId, range(4))]
    found = [shard for task in everybody for shard in table.shards_of(task)]
    assert sorted(found) == list(range(SHARDS))
    assert all(list(table.shards_of(task)) == sorted(table.shards_of(task)) for task in everybody)


def test_a_change_leaves_the_old_table_as_it_was() -> None:
    old = table_of(0, 1, 0)
    new = old.with_owners({ShardId(0): TaskId(1), ShardId(2): None})
    assert (old.version, old.owners) == (1, (0, 1, 0))
    assert (new.version, new.owners) == (2, (1, 1, None))


@pytest.mark.parametrize(("name", "value"), [("version", 7), ("owners", ()), ("other", 1)])
def test_a_table_cannot_be_changed(name: str, value: Any) -> None:
    table = table_of(0, 1)
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
        setattr(table, name, value)
    assert isinstance(table.owners, tuple)
    assert table == table_of(0, 1)


@pytest.mark.parametrize("shard", [-1, SHARDS, 10**9])
def test_unknown_shards_are_refused(shard: int) -> None:
    table = RoutingTable.unplaced(SHARDS)
    with pytest.raises(UnknownShardError, match=f"be 0 to 4; got {shard}"):
        table.owner(ShardId(shard))
    with pytest.raises(UnknownShardError):
        table.require(ShardId(shard))
    with pytest.raises(UnknownShardError):
        table.with_owners({ShardId(0): TaskId(0), ShardId(shard): TaskId(0)})


@pytest.mark.parametrize("shards", [0, -1])
def test_a_table_has_at_least_one_shard(shards: int) -> None:
    with pytest.raises(BadValueError, match="number of shards"):
        RoutingTable.unplaced(shards)
