"""A node's side of going back to an epoch: one executor's state, shard by shard."""

from __future__ import annotations

from typing import Self

import numpy as np
import pyarrow as pa

from elasticutor.core.protocol.ids import Epoch, ShardId
from elasticutor.state.checkpoint.files import (
    empty_table,
    newest,
    read_table,
    require_form,
    rows_of,
)
from elasticutor.state.checkpoint.forms import StateFile, StateForm
from elasticutor.state.checkpoint.location import Location
from elasticutor.state.checkpoint.manifests import manifest_of
from elasticutor.state.levels import Records


class Restorer:
    """The state of one executor as of one epoch, in memory; several threads may ask it."""

    def __init__(self, form: StateForm, epoch: Epoch, table: pa.Table) -> None:
        self.epoch = epoch
        self._form = form
        self._table = table.combine_chunks()
        shards = self._table["shard"].to_numpy()
        self._starts = np.searchsorted(shards, np.arange(form.shards + 1))

    @classmethod
    def load(cls, location: Location, form: StateForm, executor: str, epoch: Epoch) -> Self:
        """Read and check everything of the executor that the epoch's manifest lists."""
        form.number_of(executor)
        manifest = manifest_of(location, epoch)
        if manifest is None:
            return cls(form, epoch, empty_table(form))
        kept = manifest.forms.get(form.operator)
        require_form(form, kept, location.full(manifest.name.path))
        files = [file for file in manifest.files if file.executor == executor]
        return cls(form, epoch, merged(location, form, files))

    def __len__(self) -> int:
        return len(self._table)

    def records(self, shard: ShardId) -> Records:
        """All of a shard, as if the epoch had written it."""
        start, end = self._starts[shard : shard + 2].tolist()
        keys, values = rows_of(self._form, self._table.slice(start, end - start))
        return Records(self.epoch, keys, values)


def merged(location: Location, form: StateForm, files: list[StateFile]) -> pa.Table:
    """What some files have together, oldest first: the newest of each key, without deletions."""
    if not files:
        return empty_table(form)
    return newest([read_table(location, file) for file in files], drop_deleted=True)
