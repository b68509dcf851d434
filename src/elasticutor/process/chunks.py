"""Puts chunks for tasks together from what upstreams have sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np
import pyarrow as pa

from elasticutor.core.executor.batch import Part
from elasticutor.core.protocol import instructions as do
from elasticutor.transport.codec import Chunk, RowChunk
from elasticutor.transport.packets import Births, Packet, join_births
from elasticutor.transport.row_packets import RowFormat, RowPacket, born_one_by_one


class Chunks:
    """Makes chunks of the tuples of one schema.

    Args:
        schema: Of the executor's input.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows = RowFormat.of(schema)

    def chunk(self, order: do.Dispatch) -> Chunk | RowChunk:
        """The tuples that the core hands to a task, as they travel."""
        return self._of_rows(order) or self._of_batches(order)

    def _of_rows(self, order: do.Dispatch) -> RowChunk | None:
        """The tuples, each as it came; None if some have come in a batch."""
        born_us: list[int] = []
        shards: list[int] = []
        packed: list[bytes] = []
        for part in order.parts:
            packet: Packet | RowPacket = part.batch.content
            if type(packet) is not RowPacket:
                return None
            if part.count == 1:
                place = part.rows.item()
                shards.append(part.shards.item())
                born_us.append(packet.born_us[place])
                packed.append(packet.packed[place])
                continue
            shards += part.shards.tolist()
            for place in part.rows.tolist():
                born_us.append(packet.born_us[place])
                packed.append(packet.packed[place])
        return RowChunk(order.attempt, order.epoch, order.chunk, born_us, shards, packed)

    def _of_batches(self, order: do.Dispatch) -> Chunk:
        """The tuples as one batch; a whole packet is handed on as it came."""
        parts = order.parts
        ids = order.attempt, order.epoch, order.chunk
        if len(parts) == 1 and parts[0].count == parts[0].batch.rows:
            packet: Packet = parts[0].batch.content
            return Chunk(*ids, packet.rows, packet.births, parts[0].shards, packet.data)
        births, batches = zip(*self._gathered(parts), strict=True)
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        shards = parts[0].shards
        if len(parts) > 1:
            shards = np.concatenate([part.shards for part in parts])
        shards = np.ascontiguousarray(shards, np.int32)
        return Chunk(*ids, batch.num_rows, join_births(births), shards, batch.serialize())

    def _gathered(self, parts: Iterable[Part]) -> Iterator[tuple[Births, pa.RecordBatch]]:
        """Births and batches of neighbouring parts; tuples that came one by one share a batch."""
        for packed, some in groupby(parts, lambda part: type(part.batch.content) is RowPacket):
            if packed and self._rows is not None:
                rows = [(part.batch.content, at) for part in some for at in part.rows.tolist()]
                batch = self._rows.batch([packet.packed[at] for packet, at in rows])
                yield born_one_by_one([packet.born_us[at] for packet, at in rows]), batch
                continue
            for part in some:
                packet: Packet = part.batch.content
                yield packet.births_of(part.rows), packet.pick(part.rows, self._schema)
