"""Chunks, put together from packets of rows and of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.executor.batch import Batch, Part
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, ChunkId, Epoch, Peer, TaskId
from elasticutor.process.chunks import Chunks
from elasticutor.transport.codec import Chunk, RowChunk
from elasticutor.transport.packets import Packet, born_at, open_batch
from elasticutor.transport.row_packets import RowFormat, RowPacket

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])
ROWS = RowFormat.of(SCHEMA)
CHUNKS = Chunks(SCHEMA)


def arrived(first: int, rows: int, *, packed: bool) -> Batch:
    """A packet of the rows from `first` on, each born at a hundred times its number."""
    numbers = range(first, first + rows)
    content: Packet | RowPacket
    if packed:
        assert ROWS is not None
        born_us = [100 * n for n in numbers]
        content = RowPacket(born_us, [0] * rows, [ROWS.pack((n, f"w{n}")) or b"" for n in numbers])
    else:
        batch = pa.record_batch([list(numbers), [f"w{n}" for n in numbers]], schema=SCHEMA)
        content = Packet.of(batch, born_at(100 * np.arange(first, first + rows)))
    return Batch(first, Peer("u"), content, rows, content.size, 0.0)


def part_of(batch: Batch, places: list[int]) -> Part:
    shards = np.array([place % 7 for place in places], np.int32)
    return Part(batch, np.array(places), shards, len(places))


def chunk_of(parts: list[Part]) -> Chunk | RowChunk:
    order = do.Dispatch(TaskId(0), Attempt(1), Epoch(1), ChunkId(0), parts)
    return CHUNKS.chunk(order)


parts = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(1, 5).flatmap(
            lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1).map(sorted))
        ),
    ),
    min_size=1,
    max_size=8,
)


@given(parts)
def test_a_chunk_has_the_tuples_of_its_parts_in_order_with_births_and_shards(
    drawn: list[tuple[bool, tuple[int, list[int]]]],
) -> None:
    given_parts: list[Part] = []
    wanted: list[tuple[int, int]] = []
    for number, (packed, (rows, places)) in enumerate(drawn):
        given_parts.append(part_of(arrived(10 * number, rows, packed=packed), places))
        wanted += [(10 * number + place, place % 7) for place in places]
    chunk = chunk_of(given_parts)
    found: list[Any]
    if isinstance(chunk, RowChunk):
        assert ROWS is not None
        found = [ROWS.unpack(one) for one in chunk.packed]
        born_us, shards = chunk.born_us, chunk.shards
    else:
        found = [
            tuple(row.values()) for row in open_batch(chunk.data, chunk.rows, SCHEMA).to_pylist()
        ]
        born_us = chunk.births[:, 0].repeat(chunk.births[:, 1]).tolist()
        shards = chunk.shards.tolist()
    assert isinstance(chunk, RowChunk) == all(packed for packed, _ in drawn)
    assert found == [(n, f"w{n}") for n, _ in wanted]
    assert born_us == [100 * n for n, _ in wanted]
    assert shards == [shard for _, shard in wanted]


def test_a_whole_packet_is_handed_on_as_it_came() -> None:
    batch = arrived(0, 3, packed=False)
    chunk = chunk_of([part_of(batch, [0, 1, 2])])
    assert isinstance(chunk, Chunk)
    assert chunk.data is batch.content.data


def test_tuples_that_came_one_by_one_share_a_batch_beside_one_that_came_as_such() -> None:
    class Counting:
        made = 0

        def batch(self, packed: list[bytes]) -> pa.RecordBatch:
            self.made += 1
            assert ROWS is not None
            return ROWS.batch(packed)

    chunks, counting = Chunks(SCHEMA), Counting()
    chunks._rows = counting  # type: ignore[assignment]
    rows = arrived(0, 4, packed=True)
    singles = [part_of(rows, [place]) for place in range(4)]
    order = do.Dispatch(
        TaskId(0),
        Attempt(1),
        Epoch(1),
        ChunkId(0),
        [*singles, part_of(arrived(10, 2, packed=False), [0])],
    )
    assert isinstance(chunks.chunk(order), Chunk)
    assert counting.made == 1
