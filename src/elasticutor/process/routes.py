"""The static tier (paper 2): the executor that every tuple of a stream goes to, for ever.

Sources do this for what they read, tasks for what their operator puts out. The key's hash is
computed here, once, and travels with the tuples: the receiving executor takes the shard from it.
Columns that a route's operator does not read are left out before anything is cut.

In the resource-centric paradigm it is not for ever: there the sources hold a table of shards, which
changes while they pause (`core.protocol.repartition`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elasticutor.core.keys import KeyHasher, executors_of, key_hasher, key_hashes, shards_of
from elasticutor.core.protocol.events import Output
from elasticutor.core.protocol.ids import Peer
from elasticutor.core.protocol.repartition import PausableRoute
from elasticutor.errors import ElasticutorError
from elasticutor.process.operator.rows import rows_of
from elasticutor.process.specs import Route
from elasticutor.transport.codec import RowOutput
from elasticutor.transport.messages import Hello
from elasticutor.transport.packets import Births, Packet, split_births
from elasticutor.transport.row_packets import MOST_BYTES, MOST_ROWS, RowFormat, RowPacket


class RowRouter:
    """Cuts few tuples of one stream into packets of rows. Made by `RowRouter.of`.

    Example:
        >>> route = Route("counts", ("user",), (Peer("counts.0"), Peer("counts.1")))
        >>> router = RowRouter.of([route], pa.schema({"user": pa.int64()}))
        >>> for output in router.split([(1,), (2,), (3,)], born_us=[100, 200, 300]):
        ...     output.destination, output.batch.born_us
        ('counts.0', [100])
        ('counts.1', [200, 300])
    """

    def __init__(
        self,
        routes: Sequence[Route],
        rows: RowFormat,
        keys: Sequence[_RowKey],
        columns: tuple[str, ...] | None = None,
    ) -> None:
        self.columns = columns
        """Those of the stream that its rows have; None: all of them."""
        every = tuple(rows.schema.names)
        taken = [every if route.columns is None else route.columns for route in routes]
        distinct = list(dict.fromkeys([every, *taken]))
        self._rows = rows
        self._parts = [_part([every.index(name) for name in some]) for some in distinct[1:]]
        """What takes from a row what some routes do, but for those that take it whole."""
        packings = map(distinct.index, taken)
        self._routes = list(zip(routes, keys, packings, strict=True))

    @classmethod
    def of(cls, routes: Sequence[Route], schema: pa.Schema) -> RowRouter | None:
        """The router of a stream's rows; None if these can only be sent as batches."""
        return cls._of(routes, schema, None)

    @classmethod
    def of_batches(cls, routes: Sequence[Route], schema: pa.Schema) -> RowRouter | None:
        """The router of rows that are read from a stream's batches; None if there cannot be one.

        They fit the schema, so columns that no route takes need neither be read (`columns`) nor be
        of types that rows may have.
        """
        taken: set[str] = set()
        for route in routes:
            taken.update(schema.names if route.columns is None else route.columns)
        if len(taken) == len(schema):
            return cls._of(routes, schema, None)
        columns = tuple(name for name in schema.names if name in taken)
        return cls._of(routes, pa.schema([schema.field(name) for name in columns]), columns)

    @classmethod
    def _of(
        cls, routes: Sequence[Route], schema: pa.Schema, columns: tuple[str, ...] | None
    ) -> RowRouter | None:
        rows = RowFormat.of(schema)
        keys = [_row_key(route, schema) for route in routes]
        if rows is None or not routes or any(key is None for key in keys):
            return None
        return cls(routes, rows, [key for key in keys if key is not None], columns)

    def rows_of(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]] | None:
        """The rows of a batch, for `split`; None if the batch had better travel as it is."""
        if batch.num_rows > MOST_ROWS or batch.nbytes > MOST_BYTES:
            return None
        try:
            return rows_of(batch, self.columns)
        except UnicodeDecodeError:  # a text that is none: refused where it is opened
            return None

    def split(
        self, rows: Sequence[tuple[Any, ...]], born_us: Sequence[int]
    ) -> list[RowOutput] | None:
        """Packets for all destinations; None if a row is not exactly of the schema, or is large.

        Args:
            rows: At least one.
            born_us: When each was due, in microseconds since 1970.
        """
        packed, size = [], 0
        for row in rows:
            one = self._rows.pack(row)
            if one is None:
                return None
            size += len(one)
            if size > MOST_BYTES:
                return None
            packed.append(one)
        packings = [packed]
        if self._parts:
            packings += [self._rows.pack_parts(map(part, rows)) for part in self._parts]
        outputs = []
        for route, (places, hashed), packing in self._routes:
            packed = packings[packing]
            if hashed is None:
                whole = RowPacket(list(born_us), [], packed)
                outputs.append(RowOutput(route.peers[0], whole, whole.size, len(packed)))
                continue
            peers = route.peers
            packets: dict[Peer, RowPacket] = {}
            for row, born, one in zip(rows, born_us, packed, strict=True):
                key_hash = hashed([row[place] for place in places])
                peer = peers[key_hash % len(peers)]
                packet = packets.get(peer)
                if packet is None:
                    packet = packets[peer] = RowPacket([], [], [])
                packet.born_us.append(born)
                packet.hashes.append(key_hash)
                packet.packed.append(one)
            outputs += [
                RowOutput(peer, packet, packet.size, len(packet.packed))
                for peer, packet in packets.items()
            ]
        return outputs


_RowKey = tuple[list[int], KeyHasher | None]
"""The places of the key's columns, and what hashes them; None on the way to a sink."""


def _part(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function that takes the values at these rising places from a row."""
    first, end = places[0], places[-1] + 1
    if len(places) == end - first:  # one value alone would be no tuple otherwise
        return itemgetter(slice(first, end))
    return itemgetter(*places)


def _row_key(route: Route, schema: pa.Schema) -> _RowKey | None:
    """How to hash the keys of a route's tuples; None if it takes no rows.

    What returns to a query is put together to large batches there.
    """
    if route.shards or route.returns:
        return None
    if not route.key:
        return [], None
    hashed = key_hasher(*(schema.field(name).type for name in route.key))
    return None if hashed is None else ([schema.get_field_index(n) for n in route.key], hashed)


class Router:
    """Cuts batches of one stream into packets for all that take them.

    Example:
        >>> from elasticutor.transport.packets import born
        >>> route = Route("counts", ("user",), (Peer("counts.0"), Peer("counts.1")))
        >>> batch = pa.record_batch({"user": pa.array([1, 2, 3, 4])})
        >>> for output in Router([route]).split(batch, born(0.0, 4)):
        ...     output.destination, output.batch.open(batch.schema)["user"].to_pylist()
        ('counts.0', [1])
        ('counts.1', [2, 3, 4])
    """

    def __init__(self, routes: Sequence[Route], upstream: str = "") -> None:
        self._routes = tuple(routes)
        self.tables = {
            route.name: PausableRoute(
                Peer(upstream), shards=route.shards, executors=len(route.peers)
            )
            for route in routes
            if route.shards
        }
        """By operator, where the upstream holds the table of its shards."""

    @property
    def peers(self) -> tuple[Peer, ...]:
        """All destinations."""
        return tuple(peer for route in self._routes for peer in route.peers)

    @property
    def paused(self) -> bool:
        """Whether nothing may be cut now, since a table is about to change."""
        return any(table.paused for table in self.tables.values())

    def split(self, batch: pa.RecordBatch, births: Births) -> list[Output]:
        """Packets for all destinations that tuples go to, each in their order."""
        if not batch.num_rows:
            return []
        return [
            output
            for route in self._routes
            for output in _split(route, self.tables.get(route.name), batch, births)
        ]


def greetings(
    sender: Peer, routes: Sequence[Route], schema: pa.Schema
) -> Iterator[tuple[Peer, Hello]]:
    """For each taker of a stream: the schema of what it will be sent of it."""
    for route in routes:
        hello = Hello(sender, route.schema(schema).serialize().to_pybytes())
        for peer in route.peers:
            yield peer, hello


def require_schema(hello: Hello, schema: pa.Schema) -> None:
    """Refuse a stream that is not of the schema its receiver was made for."""
    theirs = pa.ipc.read_schema(pa.py_buffer(hello.schema))
    if not theirs.equals(schema):
        raise ElasticutorError(f"tuples from {hello.sender!r}", f"have the schema {schema}", theirs)


def _split(
    route: Route, table: PausableRoute | None, batch: pa.RecordBatch, births: Births
) -> Iterator[Output]:
    if route.columns is not None:
        batch = batch.select(route.columns)
    if not route.key:
        yield _outgoing(route.peers[0], Packet.of(batch, births))
        return
    hashes = key_hashes(*(batch.column(name) for name in route.key))
    if len(route.peers) == 1 and table is None:
        yield _outgoing(route.peers[0], Packet.of(batch, births, hashes))
        return
    owners: npt.NDArray[np.integer[Any]]
    if table is None:
        owners = executors_of(hashes, len(route.peers))
    else:
        owners = table.owners(shards_of(hashes, route.shards))
    runs = None if len(births) == 1 else np.repeat(np.arange(len(births)), births[:, 1])
    for number, rows in _groups(owners, len(route.peers)):
        taken = batch.take(pa.array(rows))
        if table is not None:
            table.sent(number, len(rows))
        if runs is None:
            theirs = np.array([[births[0, 0], len(rows)]], np.int64)
        else:
            theirs = split_births(births, runs[rows])
        yield _outgoing(route.peers[number], Packet.of(taken, theirs, hashes[rows]))


def _groups(
    owners: npt.NDArray[np.integer[Any]], count: int
) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """For each owner that has any: its number and its rows, in order."""
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=count))
    start = 0
    for number, end in enumerate(ends.tolist()):
        if end > start:
            yield number, order[start:end]
        start = end


def _outgoing(peer: Peer, packet: Packet) -> Output:
    return Output(peer, packet, packet.size, packet.rows)
