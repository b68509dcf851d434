"""Checkpoints are written and read beside a node's loop, for whoever still wants it."""

from __future__ import annotations

import select
import threading
from pathlib import Path
from typing import Any

import pytest

from elasticutor.core.protocol.ids import Attempt, Epoch, MoveId, NodeId, ShardId
from elasticutor.core.protocol.keeper import ReadShard
from elasticutor.process.checkpoint_io import CheckpointIo
from elasticutor.process.specs import Keeping
from elasticutor.state.checkpoint import (
    Checkpoint,
    Location,
    Restorer,
    StateForm,
    StorageError,
    write_increment,
)
from elasticutor.state.levels import Record

FORM = StateForm("counts", 1, 2, (("user", "int64"),))
PATIENCE_S = 30.0


@pytest.fixture
def kept(tmp_path: Path) -> Keeping:
    """A checkpoint with one key in each of two shards, in epoch 1."""
    opened = Checkpoint.open(
        str(tmp_path), run="r", topology="t", forms=[FORM], sources={"clicks": 1}
    )
    attempt = Attempt(opened.first_attempt + 1)
    changes = {ShardId(s): [Record(b"k%d" % s, Epoch(1), b"v")] for s in range(2)}
    file = write_increment(
        Location.at(str(tmp_path)), FORM, "counts.0", "n0", attempt, Epoch(1), changes
    )
    assert file is not None
    opened.commit(Epoch(1), attempt, [file], {})
    opened.release()
    return Keeping(str(tmp_path), FORM)


def reads() -> list[ReadShard]:
    return [ReadShard(MoveId(s), ShardId(s), Epoch(1)) for s in range(2)]


def served(archive: CheckpointIo, wanted: int, got: list[Any]) -> None:
    while len(got) < wanted:
        ready, _, _ = select.select([archive.fileno()], [], [], PATIENCE_S)
        assert ready or archive.busy, "nothing was read"
        archive.take()
        while archive.busy:
            archive.hand_out()


def test_every_shard_is_handed_out_once(kept: Keeping) -> None:
    archive, got = CheckpointIo(NodeId("n0")), list[Any]()
    for read in reads():
        archive.read("store", kept, "counts.0", read, lambda *told: got.append(told))
    served(archive, 2, got)
    assert [(read.shard, found[0].key) for read, found in got] == [(0, b"k0"), (1, b"k1")]


def test_what_is_read_for_a_store_that_is_gone_is_handed_to_nobody(
    kept: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, load = threading.Event(), Restorer.load

    def slow(*args: Any) -> Restorer:
        assert go.wait(PATIENCE_S)
        return load(*args)

    monkeypatch.setattr(Restorer, "load", slow)
    archive, got = CheckpointIo(NodeId("n0")), list[Any]()
    for read in reads():
        archive.read("lost", kept, "counts.0", read, lambda *told: got.append("lost"))
    archive.forget("lost")
    archive.read("next", kept, "counts.0", reads()[1], lambda *told: got.append(told[1]))
    go.set()
    served(archive, 1, got)
    assert [records[0].key for records in got] == [b"k1"]
    assert not archive.busy


def test_storage_that_refuses_is_tried_again_and_then_told(
    kept: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def refuse(*args: Any) -> Restorer:
        tries.append(1)
        raise StorageError("the disk", "be readable", "Input/output error")

    monkeypatch.setattr(Restorer, "load", refuse)
    monkeypatch.setattr("elasticutor.process.checkpoint_io._PAUSES_S", (0.0, 0.0))
    archive, got = CheckpointIo(NodeId("n0")), list[Any]()
    archive.read("store", kept, "counts.0", reads()[0], lambda *told: got.append(told[1]))
    served(archive, 1, got)
    assert isinstance(got[0], StorageError)
    assert len(tries) == 3
