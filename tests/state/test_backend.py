"""What every backend promises; a new one joins by an entry in BACKENDS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.protocol.ids import ShardId
from elasticutor.state.backend import MISSING, Backend, MemoryBackend, Value
from elasticutor.state.lmdb_backend import LmdbBackend

OpenBackend = Callable[[], AbstractContextManager[Backend]]

S0, S1, S2 = ShardId(0), ShardId(1), ShardId(2)
LONG = b"x" * 600  # longer than some stores take as a key


@contextmanager
def memory() -> Iterator[Backend]:
    yield MemoryBackend()


@contextmanager
def shared() -> Iterator[Backend]:
    with TemporaryDirectory() as path, LmdbBackend.create(path, map_size=2**24) as backend:
        yield backend


BACKENDS: list[OpenBackend] = [memory, shared]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with request.param() as backend:
        yield backend


def test_an_empty_backend_has_nothing(backend: Backend) -> None:
    assert backend.get("t", S0, b"k") is MISSING
    assert backend.scan("t", S0) == []
    assert backend.shards("t") == ()


def test_a_record_is_read_as_it_was_put(backend: Backend) -> None:
    backend.put("t", S0, [(b"k", b"value"), (b"empty", b""), (b"", b"of the empty key")])
    assert backend.get("t", S0, b"k") == b"value"
    assert backend.get("t", S0, b"empty") == b""
    assert backend.get("t", S0, b"") == b"of the empty key"


def test_a_value_may_begin_with_any_byte(backend: Backend) -> None:
    records = [(b"%03d" % byte, bytes([byte]) * 3) for byte in range(256)]
    records += [(b"one byte %03d" % byte, bytes([byte])) for byte in range(256)]
    backend.put("t", S0, records)
    assert backend.scan("t", S0) == records
    assert [backend.get("t", S0, key) for key, _ in records] == [value for _, value in records]


def test_a_deleted_record_is_there_and_a_missing_one_is_not(backend: Backend) -> None:
    backend.put("t", S0, [(b"gone", None)])
    assert backend.get("t", S0, b"gone") is None
    assert backend.get("t", S0, b"never") is MISSING
    assert backend.scan("t", S0) == [(b"gone", None)]
    assert backend.shards("t") == (S0,)


def test_put_writes_over_values_and_deletions(backend: Backend) -> None:
    backend.put("t", S0, [(b"a", b"1"), (b"b", None), (b"c", b"1")])
    backend.put("t", S0, [(b"a", None), (b"b", b"2")])
    assert backend.scan("t", S0) == [(b"a", None), (b"b", b"2"), (b"c", b"1")]


def test_put_and_remove_take_what_can_be_read_only_once(backend: Backend) -> None:
    backend.put("t", S0, ((key, key) for key in (b"a", b"b", b"c")))
    backend.remove("t", S0, (key for key in (b"a", b"c")))
    assert backend.scan("t", S0) == [(b"b", b"b")]


def test_put_without_items_makes_no_shard(backend: Backend) -> None:
    backend.put("t", S0, [])
    assert backend.shards("t") == ()


def test_remove_leaves_no_trace_and_minds_no_absence(backend: Backend) -> None:
    backend.put("t", S0, [(b"a", b"1"), (b"b", b"2")])
    backend.remove("t", S0, [b"a", b"never"])
    backend.remove("t", S1, [b"b"])
    backend.remove("u", S0, [b"b"])
    assert backend.get("t", S0, b"a") is MISSING
    assert backend.scan("t", S0) == [(b"b", b"2")]


def test_long_keys_with_a_common_beginning_are_different_keys(backend: Backend) -> None:
    backend.put("t", S0, [(LONG + b"a", b"1"), (LONG + b"b", b"2"), (LONG, b"3")])
    backend.remove("t", S0, [LONG + b"b"])
    assert backend.get("t", S0, LONG + b"a") == b"1"
    assert backend.get("t", S0, LONG + b"b") is MISSING
    assert backend.get("t", S0, LONG) == b"3"
    assert dict(backend.scan("t", S0)) == {LONG + b"a": b"1", LONG: b"3"}


def test_scanning_in_pages_visits_every_long_key_once(backend: Backend) -> None:
    records = {LONG + b"%d" % number: b"%d" % number for number in range(20)}
    records |= {LONG[:length]: b"%d" % length for length in (0, 399, 400, 401, 511)}
    backend.put("t", S0, list(records.items()))
    found: list[tuple[bytes, Value]] = []
    while page := backend.scan("t", S0, found[-1][0] if found else None, 3):
        backend.remove("t", S0, [page[-1][0]])
        found += page
    assert len(found) == len(records)
    assert dict(found) == records


def test_long_keys_can_be_deleted_and_empty_like_short_ones(backend: Backend) -> None:
    backend.put("t", S0, [(LONG, None), (LONG + b"a", b"")])
    assert (backend.get("t", S0, LONG), backend.get("t", S0, LONG + b"a")) == (None, b"")
    assert dict(backend.scan("t", S0)) == {LONG: None, LONG + b"a": b""}


def test_the_last_of_several_values_put_for_a_key_is_kept(backend: Backend) -> None:
    backend.put("t", S0, [(b"k", b"2"), (b"j", b""), (b"k", b"1"), (b"k", None), (b"k", b"3")])
    assert backend.get("t", S0, b"k") == b"3"


def test_shards_are_found_however_far_apart_and_beside_tables_of_like_names(
    backend: Backend,
) -> None:
    far = ShardId(2**31 - 2)
    for table, shard in (("t", S0), ("t", far), ("tt", S1), ("s", S2)):
        backend.put(table, shard, [(b"k", b"1"), (b"l", b"1")])
    assert sorted(backend.shards("t")) == [S0, far]
    assert (backend.shards("tt"), backend.shards("s")) == ((S1,), (S2,))


def test_numbers_are_kept_under_their_name_and_beside_the_records(backend: Backend) -> None:
    assert backend.load("fence") == ()
    backend.save("fence", (1, -(2**40)))
    backend.put("fence", S0, [(b"k", b"1")])
    backend.save("other", (7,))
    assert (backend.load("fence"), backend.load("other")) == ((1, -(2**40)), (7,))
    backend.save("other", ())
    assert backend.load("other") == ()
    assert backend.scan("fence", S0) == [(b"k", b"1")]


def test_what_a_transaction_wrote_is_read_within_it_and_after_it(backend: Backend) -> None:
    with backend.transaction():
        backend.put("t", S0, [(b"a", b"1")])
        with backend.transaction(), backend.reading():
            assert backend.get("t", S0, b"a") == b"1"
            assert backend.shards("t") == (S0,)
        backend.save("n", (1,))
    with backend.reading(), backend.reading():
        assert (backend.scan("t", S0), backend.load("n")) == ([(b"a", b"1")], (1,))


def test_scan_goes_on_after_a_key_that_is_no_longer_there(backend: Backend) -> None:
    backend.put("t", S0, [(key, b"") for key in (b"a", b"b", b"c", b"d")])
    backend.remove("t", S0, [b"b"])
    assert backend.scan("t", S0, after=b"b") == [(b"c", b""), (b"d", b"")]
    assert backend.scan("t", S0, after=b"b", limit=1) == [(b"c", b"")]
    assert backend.scan("t", S0, after=b"d") == []


def test_scan_orders_keys_as_bytes_and_not_by_length_or_sign(backend: Backend) -> None:
    keys = [b"", b"\x00", b"\x00\x00", b"a", b"a\x00", b"aa", b"b", b"\x7f", b"\x80", b"\xff"]
    backend.put("t", S0, [(key, b"") for key in reversed(keys)])
    assert [key for key, _ in backend.scan("t", S0)] == keys
    assert [key for key, _ in backend.scan("t", S0, after=b"")] == keys[1:]


def test_tables_and_shards_are_kept_apart(backend: Backend) -> None:
    backend.put("t", S0, [(b"k", b"t0")])
    backend.put("t", S1, [(b"k", b"t1")])
    backend.put("u", S0, [(b"k", b"u0")])
    assert backend.scan("t", S0) == [(b"k", b"t0")]
    assert backend.scan("t", S1) == [(b"k", b"t1")]
    assert backend.scan("u", S0) == [(b"k", b"u0")]
    assert (set(backend.shards("t")), set(backend.shards("u"))) == ({S0, S1}, {S0})


def test_drop_empties_one_shard_of_one_table(backend: Backend) -> None:
    for table in ("t", "u"):
        for shard in (S0, S1):
            backend.put(table, shard, [(b"k", b"1"), (b"gone", None)])
    backend.drop("t", S0)
    backend.drop("t", S2)
    backend.drop("v", S0)
    assert backend.scan("t", S0) == []
    assert backend.get("t", S0, b"gone") is MISSING
    assert backend.shards("t") == (S1,)
    assert set(backend.shards("u")) == {S0, S1}
    backend.put("t", S0, [(b"new", b"2")])
    assert backend.scan("t", S0) == [(b"new", b"2")]


def test_some_shards_and_some_records_can_be_asked_for_and_dropped(backend: Backend) -> None:
    for shard in (S0, S1, S2):
        backend.put("t", shard, [(b"a", b"1"), (b"b", None), (b"c", b"3")])
    assert (len(backend.shards("t", 2)), backend.shards("t", 0)) == (2, ())
    assert backend.drop("t", S0, 2) == 2
    assert backend.scan("t", S0) == [(b"c", b"3")]
    assert (backend.drop("t", S0, 2), backend.drop("t", S0, 2)) == (1, 0)
    assert (backend.drop("t", S1), backend.drop("t", S1)) == (3, 0)
    assert backend.shards("t") == (S2,)


def test_moved_records_go_over_those_of_the_same_keys_and_deletions_leave_no_trace(
    backend: Backend,
) -> None:
    backend.put("t", S0, [(b"a", b"new"), (b"b", None), (b"c", b""), (LONG, b"new"), (b"x", None)])
    backend.put("t", S1, [(b"a", b"of another shard")])
    backend.put("u", S0, [(b"a", b"old"), (b"b", b"old"), (LONG, b"old"), (b"z", b"kept")])
    assert backend.move("t", "u", S0, 2) == 2
    assert backend.get("u", S0, b"a") == b"new"
    assert [key for key, _ in backend.scan("t", S0)] == [b"c", b"x", LONG]
    assert backend.get("u", S0, b"b") is MISSING
    assert (backend.move("t", "u", S0, 9), backend.move("t", "u", S0, 9)) == (3, 0)
    expected = {b"a": b"new", b"c": b"", LONG: b"new", b"z": b"kept"}
    assert dict(backend.scan("u", S0)) == expected
    assert (backend.shards("t"), backend.shards("u")) == ((S1,), (S0,))


def test_a_long_key_that_was_deleted_is_moved_as_such(backend: Backend) -> None:
    backend.put("t", S0, [(LONG, None)])
    backend.put("u", S0, [(LONG, b"old"), (LONG + b"a", b"kept")])
    assert backend.move("t", "u", S0, 1) == 1
    assert backend.scan("u", S0) == [(LONG + b"a", b"kept")]


def test_what_is_held_stays_as_it_was_whatever_happens(backend: Backend) -> None:
    backend.put("t", S0, [(b"a", b"1"), (b"b", None), (LONG, b"long")])
    backend.put("t", S1, [(b"not asked for", b"1")])
    held, forgotten = backend.hold("t", [S0, S2]), backend.hold("t", [S0])
    backend.put("t", S0, [(b"a", b"2"), (b"new", b"2")])
    backend.put("t", S2, [(b"new", b"2")])
    backend.move("t", "u", S0, 1)
    backend.drop("t", S0)
    forgotten.release()
    found = held.read()
    assert found.keys() == {S0}
    keys, values = found[S0]
    assert dict(zip(keys, values, strict=True)) == {b"a": b"1", b"b": None, LONG: b"long"}
    held.release()
    assert backend.hold("t", []).read() == {}


keys = st.binary(max_size=3)
values = st.none() | st.binary(max_size=3)
places = st.tuples(st.sampled_from(["t", "u"]), st.sampled_from([S0, S1]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), places, st.dictionaries(keys, values, max_size=5)),
        st.tuples(st.just("remove"), places, st.sets(keys, max_size=5)),
        st.tuples(st.just("drop"), places, st.just(())),
        st.tuples(st.just("move"), places, st.just(())),
    ),
    max_size=12,
)


@pytest.mark.parametrize("open_backend", BACKENDS)
@given(steps=steps, after=st.none() | keys, limit=st.none() | st.integers(0, 4))
def test_any_sequence_of_changes_leaves_what_a_dictionary_would_hold(
    open_backend: OpenBackend,
    steps: list[tuple[str, tuple[str, ShardId], dict[bytes, Value]]],
    after: bytes | None,
    limit: int | None,
) -> None:
    model: dict[tuple[str, ShardId], dict[bytes, Value]] = {}
    with open_backend() as backend:
        for what, place, content in steps:
            records = model.setdefault(place, {})
            if what == "put":
                backend.put(*place, list(content.items()))
                records.update(content)
            elif what == "remove":
                backend.remove(*place, list(content))
                model[place] = {k: v for k, v in records.items() if k not in content}
            elif what == "move":
                table, shard = place
                first = sorted(records)[:3]
                target = model.setdefault(("u" if table == "t" else "t", shard), {})
                target.update({key: records[key] for key in first})
                for key in first:
                    if records.pop(key) is None:
                        del target[key]
                assert backend.move(table, "u" if table == "t" else "t", shard, 3) == len(first)
            else:
                assert backend.drop(*place) == len(records)
                records.clear()
        for place, records in model.items():
            assert backend.scan(*place) == sorted(records.items(), key=lambda item: item[0])
            rest = sorted(key for key in records if after is None or key > after)[:limit]
            assert backend.scan(*place, after, limit) == [(key, records[key]) for key in rest]
        for table in ("t", "u"):
            expected = {shard for (t, shard), records in model.items() if t == table and records}
            assert set(backend.shards(table)) == expected
            assert len(backend.shards(table)) == len(expected)


@pytest.mark.parametrize("open_backend", BACKENDS)
@given(records=st.dictionaries(keys, values), limit=st.integers(1, 4))
def test_scanning_in_pages_visits_every_record_once(
    open_backend: OpenBackend, records: dict[bytes, Value], limit: int
) -> None:
    with open_backend() as backend:
        backend.put("t", S0, list(records.items()))
        found: list[tuple[bytes, Value]] = []
        while page := backend.scan("t", S0, found[-1][0] if found else None, limit):
            found += page
    assert len(found) == len(records)
    assert dict(found) == records
