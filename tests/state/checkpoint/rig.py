"""A checkpoint, nodes that write to it, and a dictionary that says what must be in it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from elasticutor.core.keys import executors_of, key_hashes, shards_of
from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.state.checkpoint import (
    Checkpoint,
    Location,
    Restorer,
    StateFile,
    StateForm,
    write_increment,
)
from elasticutor.state.codec import decode, decode_key, encode, encode_key
from elasticutor.state.levels import Record

KEY = (("user", "int64"),)
NODES = ("node-0", "node-1")

Contents = dict[int, Any]
"""The state of each key."""


def form(executors: int = 2, shards: int = 4, schema: pa.Schema | None = None) -> StateForm:
    return StateForm("counts", executors, shards, KEY, schema)


def opened(where: Path | str, kept: StateForm | None = None, **options: Any) -> Checkpoint:
    forms = [kept or form()]
    facts: dict[str, Any] = {
        "run": "run",
        "topology": "demo",
        "sources": {"clicks": 1},
        "say": lambda _: None,
    }
    return Checkpoint.open(str(where), **({"forms": forms} | facts | options))


def places(kept: StateForm, keys: list[int]) -> list[tuple[int, ShardId]]:
    """The executor and the shard of each key, as upstreams have them."""
    hashes = key_hashes(pa.array(keys, pa.int64()))
    owners, shards = executors_of(hashes, kept.executors), shards_of(hashes, kept.shards)
    return [(int(owner), ShardId(int(s))) for owner, s in zip(owners, shards, strict=True)]


class Job:
    """A run that changes state epoch by epoch."""

    def __init__(
        self, where: Path | str, kept: StateForm | None = None, inline: int = 0, **options: Any
    ) -> None:
        self.inline = inline
        self.form = kept or form()
        self.checkpoint = opened(where, self.form, **options)
        self.attempt = Attempt(self.checkpoint.first_attempt + 1)

    def increments(
        self, epoch: int, changes: Mapping[int, Any], attempt: int | None = None
    ) -> list[StateFile]:
        """Let the nodes write; None stands for a key that was deleted."""
        parts: dict[tuple[int, str], dict[ShardId, list[Record]]] = {}
        keys = list(changes)
        for key, (owner, shard) in zip(keys, places(self.form, keys), strict=True):
            value = changes[key]
            data = None if value is None else encode(value)
            shards = parts.setdefault((owner, NODES[shard % 2]), {})
            shards.setdefault(shard, []).append(Record(encode_key(key), Epoch(epoch), data))
        written = [
            write_increment(
                self.checkpoint.location,
                self.form,
                f"counts.{owner}",
                node,
                Attempt(attempt or self.attempt),
                Epoch(epoch),
                shards,
                inline=self.inline,
            )
            for (owner, node), shards in parts.items()
        ]
        return [file for file in written if file is not None]

    def epoch(self, changes: Mapping[int, Any], notes: Mapping[str, Any] | None = None) -> Epoch:
        """Commit the next epoch."""
        epoch = Epoch(self.checkpoint.committed + 1)
        files = self.increments(epoch, changes)
        self.checkpoint.commit(epoch, self.attempt, files, notes or {"clicks.0": int(epoch)})
        return epoch

    def again(self) -> None:
        """Go on with another attempt."""
        self.attempt = Attempt(self.attempt + 1)


def contents(where: Path | str | Location, kept: StateForm, epoch: int) -> Contents:
    """What the nodes restore, all executors together; every key where upstreams look for it."""
    location = where if isinstance(where, Location) else Location.at(str(where))
    found: Contents = {}
    for number, executor in enumerate(kept.executor_names):
        restorer = Restorer.load(location, kept, executor, Epoch(epoch))
        for shard in map(ShardId, range(kept.shards)):
            for record in restorer.records(shard):
                assert record.epoch == epoch
                assert record.value is not None
                key = decode_key(record.key)
                assert key not in found
                assert places(kept, [key]) == [(number, shard)]
                found[key] = decode(record.value)
    return found


def applied(before: Contents, changes: Mapping[int, Any]) -> Contents:
    after = copy.copy(before)
    for key, value in changes.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after


def files_of(where: Path) -> list[Path]:
    return sorted(path for path in where.rglob("*") if path.is_file())


def some_epochs(
    where: Path, count: int = 3, kept: StateForm | None = None, inline: int = 0
) -> list[Contents]:
    """A checkpoint of some epochs, and what each of them has; the first is empty."""
    job = Job(where, kept, inline)
    rng = np.random.default_rng(5)
    history: list[Contents] = [{}]
    for epoch in range(1, count + 1):
        keys = rng.choice(40, 12, replace=False).tolist()
        changes = {key: None if key % 5 == epoch % 5 else f"{key} in {epoch}" for key in keys}
        job.epoch(changes)
        history.append(applied(history[-1], changes))
    job.checkpoint.release()
    return history
