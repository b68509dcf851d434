"""The static tier as sources and tasks apply it: every tuple to one executor of every route."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticutor.core.keys import executors_of, key_hashes
from elasticutor.core.protocol.events import Output
from elasticutor.core.protocol.ids import Peer
from elasticutor.process.operator.rows import rows_of
from elasticutor.process.routes import Router, RowRouter, greetings
from elasticutor.process.specs import Route
from elasticutor.transport.codec import Result, decode, encode
from elasticutor.transport.packets import Births, born


def route(name: str, key: tuple[str, ...], executors: int) -> Route:
    return Route(name, key, tuple(Peer(f"{name}.{n}") for n in range(executors)))


SINK = Route("out", (), (Peer("out"),))


@st.composite
def streams(draw: st.DrawFn) -> tuple[pa.RecordBatch, Births, list[Route]]:
    """A batch with a number for every row, its births, and routes of all kinds."""
    keys = draw(st.lists(st.tuples(st.none() | st.integers(-5, 5), st.sampled_from("abc"))))
    rows = len(keys)
    batch = pa.record_batch(
        {
            "user": pa.array([user for user, _ in keys], pa.int64()),
            "city": pa.array([city for _, city in keys], pa.string()),
            "row": pa.array(range(rows), pa.int64()),
        }
    )
    more = batch.slice(0, draw(st.integers(0, 2)))  # sources cut batches from larger ones
    batch = pa.concat_batches([more, batch]).slice(more.num_rows)
    cuts = sorted(draw(st.lists(st.integers(0, rows), max_size=3)))
    counts = np.diff([0, *cuts, rows])
    births = np.stack([np.arange(len(counts)) * 10, counts], axis=1)
    key = st.sampled_from([("user",), ("city",), ("user", "city")])
    routes = [
        route(f"op{number}", chosen, draw(st.integers(1, 5)))
        for number, chosen in enumerate(draw(st.lists(key, min_size=1, max_size=3)))
    ]
    return batch, births, [*routes, SINK]


def by_peer(outputs: Sequence[Output]) -> dict[Peer, Output]:
    assert len({output.destination for output in outputs}) == len(outputs)
    return {output.destination: output for output in outputs}


def ages(births: Births) -> list[int]:
    return [when for when, count in births.tolist() for _ in range(count)]


@settings(max_examples=150)
@given(streams())
def test_every_tuple_goes_to_the_one_executor_that_its_key_names(
    stream: tuple[pa.RecordBatch, Births, list[Route]],
) -> None:
    batch, births, routes = stream
    outputs = by_peer(Router(routes).split(batch, births))
    assert set(outputs) <= {peer for route in routes for peer in route.peers}
    for way in routes:
        if not way.key:
            continue
        hashes = key_hashes(*(batch.column(name) for name in way.key))
        expected: dict[Peer, list[int]] = defaultdict(list)
        for row, owner in enumerate(executors_of(hashes, len(way.peers)).tolist()):
            expected[way.peers[owner]].append(row)
        theirs = {peer: outputs[peer] for peer in way.peers if peer in outputs}
        assert theirs.keys() == expected.keys()  # nobody is sent nothing
        for peer, output in theirs.items():
            rows = expected[peer]
            opened = output.batch.open(batch.schema)
            assert opened.equals(batch.take(pa.array(rows)))  # in their order
            assert list(output.batch.hashes) == hashes[rows].tolist()
            assert ages(output.batch.births) == [ages(births)[row] for row in rows]
            assert output.batch.rows == len(rows)
            assert output.size == output.batch.size


@settings(max_examples=150)
@given(streams())
def test_few_tuples_go_the_same_ways_one_by_one_as_in_a_batch(
    stream: tuple[pa.RecordBatch, Births, list[Route]],
) -> None:
    batch, births, routes = stream
    if not batch.num_rows:
        return
    router = RowRouter.of(routes, batch.schema)
    assert router is not None
    split = router.split([tuple(row.values()) for row in batch.to_pylist()], ages(births))
    assert split is not None
    singly, whole = by_peer(split), by_peer(Router(routes).split(batch, births))
    assert singly.keys() == whole.keys()
    for peer, output in singly.items():
        other = whole[peer].batch
        assert output.batch.open(batch.schema).equals(other.open(batch.schema))
        assert list(output.batch.hashes) == list(other.hashes)
        assert ages(output.batch.births) == ages(other.births)
        assert output.size == output.batch.size


def test_a_row_that_is_not_exactly_of_the_schema_is_left_to_the_batch() -> None:
    router = RowRouter.of([SINK], pa.schema([("n", pa.float64())]))
    assert router is not None
    assert router.split([(1.5,), (1,)], [0, 0]) is None


@st.composite
def narrowed(draw: st.DrawFn) -> tuple[pa.RecordBatch, Births, list[Route]]:
    """The same with routes of which each takes some columns, its key's among them, or all."""
    batch, births, (*ways, sink) = draw(streams())
    names = batch.schema.names
    routes = []
    for way in ways:
        read = draw(st.sets(st.sampled_from(names))) | {*way.key}
        columns = tuple(name for name in names if name in read)
        routes.append(replace(way, columns=draw(st.sampled_from([columns, None]))))
    return batch, births, [*routes, sink] if draw(st.booleans()) else routes


def whole(routes: Sequence[Route]) -> list[Route]:
    return [replace(way, columns=None) for way in routes]


def require_narrowed(
    came: Sequence[Any], expected: Sequence[Output], routes: Sequence[Route], schema: pa.Schema
) -> None:
    """What came is what would have come of all columns, without those that are not taken."""
    outputs, others = by_peer(came), by_peer(expected)
    assert outputs.keys() == others.keys()
    for way in routes:
        for peer in outputs.keys() & {*way.peers}:
            packet, other = outputs[peer].batch, others[peer].batch
            everything = other.open(schema)
            columns = everything.schema.names if way.columns is None else way.columns
            assert packet.open(way.schema(schema)).equals(everything.select(columns))
            assert list(packet.hashes) == list(other.hashes)
            assert ages(packet.births) == ages(other.births)
            assert outputs[peer].size == packet.size


@settings(max_examples=200)
@given(narrowed())
def test_to_leave_columns_out_first_is_to_leave_them_out_of_each_part(
    stream: tuple[pa.RecordBatch, Births, list[Route]],
) -> None:
    batch, births, routes = stream
    expected = Router(whole(routes)).split(batch, births)
    require_narrowed(Router(routes).split(batch, births), expected, routes, batch.schema)


@settings(max_examples=200)
@given(narrowed())
def test_to_leave_values_of_rows_out_first_is_to_leave_them_out_of_each_part(
    stream: tuple[pa.RecordBatch, Births, list[Route]],
) -> None:
    batch, births, routes = stream
    if not batch.num_rows:
        return
    expected = Router(whole(routes)).split(batch, births)
    of_rows = RowRouter.of(routes, batch.schema)
    of_batches = RowRouter.of_batches(routes, batch.schema)
    assert of_rows is not None
    assert of_batches is not None
    for router in (of_rows, of_batches):
        split = router.split(rows_of(batch, router.columns), ages(births))
        assert split is not None
        require_narrowed(split, expected, routes, batch.schema)


@settings(max_examples=60)
@given(narrowed())
def test_a_table_of_shards_counts_the_same_whatever_columns_are_sent(
    stream: tuple[pa.RecordBatch, Births, list[Route]],
) -> None:
    batch, births, routes = stream
    routes = [replace(way, shards=16 if way.key else 0) for way in routes]
    narrow, wide = Router(routes), Router(whole(routes))
    expected = wide.split(batch, births)
    require_narrowed(narrow.split(batch, births), expected, routes, batch.schema)
    assert narrow.tables.keys() == wide.tables.keys() == {way.name for way in routes if way.key}


def test_routes_that_take_the_same_columns_share_packed_rows() -> None:
    schema = pa.schema([("user", pa.int64()), ("city", pa.string()), ("at", pa.int64())])
    routes = [
        replace(route("a", ("user",), 1), columns=("user", "at")),
        replace(route("b", ("at",), 1), columns=("user", "at")),
        replace(route("c", ("user",), 1), columns=("user", "city", "at")),
        route("d", ("city",), 1),
        SINK,
    ]
    router = RowRouter.of(routes, schema)
    assert router is not None
    assert len(router._parts) == 1  # besides whole rows
    split = router.split([(1, "x", 7)], [0])
    assert split is not None
    packed = {name: one.batch.packed[0] for one in split for name in [one.destination[0]]}
    assert packed["a"] is packed["b"]
    assert packed["c"] is packed["d"] is packed["o"]
    assert len(packed["a"]) < len(packed["d"])


@pytest.mark.parametrize("row", [(1, 2**40), (1, "x"), (1,), (1, 2, 3)])
def test_a_row_must_be_of_the_schema_in_columns_that_nobody_takes_too(row: Any) -> None:
    """Whether an operator has failed must not depend on how many tuples came at a time."""
    way = replace(route("a", ("user",), 2), columns=("user",))
    router = RowRouter.of([way], pa.schema([("user", pa.int64()), ("n", pa.int32())]))
    assert router is not None
    assert router.split([(1, 2)], [0]) is not None
    assert router.split([row], [0]) is None


def test_of_a_batch_only_columns_that_somebody_takes_are_read() -> None:
    schema = pa.schema([("user", pa.int64()), ("at", pa.timestamp("us")), ("n", pa.int64())])
    way = replace(route("a", ("user",), 2), columns=("user", "n"))
    router = RowRouter.of_batches([way], schema)
    assert router is not None
    assert router.columns == ("user", "n")
    assert RowRouter.of([way], schema) is None  # rows of all columns cannot be checked
    assert RowRouter.of_batches([way, SINK], schema) is None
    simple = RowRouter.of_batches([way, SINK], schema.remove(1))
    assert simple is not None
    assert simple.columns is None


def test_everybody_is_greeted_with_the_schema_of_what_they_are_sent() -> None:
    schema = pa.schema([("user", pa.int64()), ("city", pa.string())])
    ways = [replace(route("a", ("user",), 2), columns=("user",)), SINK]
    told = {
        peer: (hello.sender, pa.ipc.read_schema(pa.py_buffer(hello.schema)).names)
        for peer, hello in greetings(Peer("up"), ways, schema)
    }
    some, everything = ("up", ["user"]), ("up", ["user", "city"])
    assert told == {"a.0": some, "a.1": some, "out": everything}


@pytest.mark.parametrize(
    "routes",
    [
        [],
        [SINK, Route("a", ("n",), (Peer("a.0"),), shards=4)],
        [Route("a", ("x",), (Peer("a.0"),))],
    ],
    ids=["none", "table of shards", "key hashed by column"],
)
def test_rows_are_not_routed_where_a_batch_is_needed(routes: list[Route]) -> None:
    assert RowRouter.of(routes, pa.schema([("n", pa.int64()), ("x", pa.float64())])) is None


@settings(max_examples=60)
@given(streams())
def test_a_sink_is_sent_the_whole_batch_without_hashes(
    stream: tuple[pa.RecordBatch, Births, list[Route]],
) -> None:
    batch, births, routes = stream
    outputs = by_peer(Router(routes).split(batch, births))
    if not batch.num_rows:
        assert not outputs
        return
    packet = outputs[Peer("out")].batch
    assert packet.open(batch.schema).equals(batch)
    assert ages(packet.births) == ages(births)
    assert len(packet.hashes) == 0


@settings(max_examples=60)
@given(streams())
def test_what_is_routed_survives_the_wire(
    stream: tuple[pa.RecordBatch, Births, list[Route]],
) -> None:
    batch, births, routes = stream
    outputs = Router(routes).split(batch, births)
    result: Any = Result(1, 1, 1, 0.5, None, outputs)  # type: ignore[arg-type]
    back = decode([bytes(memoryview(frame)) for frame in encode(result)])
    for sent, come in zip(outputs, back.outputs, strict=True):
        assert come.destination == sent.destination
        assert come.batch.open(batch.schema).equals(sent.batch.open(batch.schema))
        assert come.batch.births.tolist() == sent.batch.births.tolist()


def test_an_empty_batch_goes_nowhere() -> None:
    batch = pa.record_batch({"user": pa.array([], pa.int64())})
    assert Router([route("a", ("user",), 3), SINK]).split(batch, born(0.0, 0)) == []


def test_without_routes_tuples_go_nowhere() -> None:
    batch = pa.record_batch({"user": pa.array([1])})
    assert Router([]).split(batch, born(0.0, 1)) == []


def test_everybody_who_may_be_sent_something_is_named() -> None:
    router = Router([route("a", ("user",), 2), SINK])
    assert router.peers == ("a.0", "a.1", "out")


@pytest.mark.parametrize("births", [[[7, 4]], [[7, 1], [8, 0], [9, 3]]])
def test_births_add_up_over_all_executors(births: list[list[int]]) -> None:
    batch = pa.record_batch({"user": pa.array([1, 2, 3, 4])})
    outputs = Router([route("a", ("user",), 3)]).split(batch, np.array(births))
    assert sum(int(output.batch.births[:, 1].sum()) for output in outputs) == 4
    sums: dict[int, int] = defaultdict(int)
    for output in outputs:
        for when, count in output.batch.births.tolist():
            sums[when] += count
    assert sums == {when: count for when, count in births if count}


TEXTS = pa.schema([("user", pa.int64()), ("text", pa.string())])


@pytest.mark.parametrize(
    ("texts", "as_rows"),
    [(["a"] * 32, True), (["a"] * 33, False), (["a" * 1000] * 32, True), (["a" * 40_000], False)],
)
def test_few_tuples_travel_as_rows_unless_their_values_are_large(
    texts: list[str], as_rows: bool
) -> None:
    router = RowRouter.of([route("counts", ("user",), 1)], TEXTS)
    assert router is not None
    batch = pa.record_batch([range(len(texts)), texts], schema=TEXTS)
    assert (router.rows_of(batch) is not None) == as_rows
    if len(texts) <= 32:
        rows = list(enumerate(texts))
        assert (router.split(rows, [0] * len(rows)) is not None) == as_rows


def test_a_batch_with_a_text_that_is_none_travels_as_it_is() -> None:
    broken = pa.array([b"\xff"]).view(pa.string())
    router = RowRouter.of([route("counts", ("user",), 1)], TEXTS)
    assert router is not None
    assert router.rows_of(pa.record_batch([[1], broken], schema=TEXTS)) is None


def test_what_returns_to_a_query_travels_as_batches() -> None:
    assert RowRouter.of([Route("", (), (Peer(""),))], TEXTS) is None
