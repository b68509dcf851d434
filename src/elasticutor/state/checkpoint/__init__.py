"""Checkpoints: what of an operator's state, a source's offsets and a sink's outputs survives.

A checkpoint is a folder on a disk, in HDFS or in an object store. Layouts 1 and 2 of it:

```
<root>/claims/000003-1f2e3d4c.json           who has it: claim 3
<root>/epochs/000000000012-3000000001.json   the manifest of epoch 12, by attempt 1 of claim 3
<root>/state/counts/0/counts-0-000000000012-000000000012-3000000001-node_1.parquet
                                             what node_1 wrote of executor counts.0
```

**State** is in Parquet files, named by operator, executor, first and last epoch, attempt and
writer, so that no two writers ever write the same one. An *increment* has what its epochs changed,
a *snapshot* everything. Columns:

| Column | Type | |
|---|---|---|
| `operator` | string | the same in all rows |
| `shard` | int32 | within the executor |
| `key` | binary | as `elasticutor.state.codec` has it |
| `value` | binary, or struct | codec, or with a `state_schema` its columns; null if deleted |
| `deleted` | bool | whether the epochs deleted the key |
| `shape` | int8 | only beside a struct: what the state looked like (`…checkpoint.typed`) |

Rows are in the order of the shards, and have each key once. The schema's metadata has
`elasticutor.layout`, `.operator`, `.executor` and `.epochs`.

**Manifests** are JSON: `layout`, `sha256` of the content, and the `content`: epoch and attempt, run
and topology, the path of the `predecessor`, the form of every `operator`, the number of tasks of
every source, *all* `files` of all executors, each with its size, rows and SHA-256, from the oldest
to the newest, and the `notes` of sources and sinks (`…checkpoint.notes`). So one manifest suffices
to restore its epoch, and an epoch is committed at the moment when its manifest appears.

In layout 2 a manifest has small increments inside: such an entry of `files` has the whole Parquet
file in base64 as its `content`, and there is no file at its path. A manifest without any is of
layout 1. Once there are many increments they are folded into a file like others.

An attempt's number is 1,000,000,000 times its claim's, plus its own. Of two manifests the one with
the later attempt counts, and all manifests of earlier attempts for later epochs are void. A claim
begins with attempt 0: the epoch that it found, once more. So whatever the run before may still
write is void, and so are later epochs if the user chose to go back to an earlier one.

**Claims** are JSON of the same kind: run, host, start of the machine, process, how often it was
renewed, and whether it was released (`…checkpoint.claims`).

Files whose names begin with `.` and end with `.tmp` are being written, or were when a writer died.
Any other file is none of the checkpoint's, and left alone.
"""

from __future__ import annotations

from elasticutor.state.checkpoint.checkpoint import Checkpoint
from elasticutor.state.checkpoint.errors import (
    AbsentError,
    CheckpointError,
    DamagedError,
    InUseError,
    LayoutError,
    MismatchError,
    StorageError,
    UncertainError,
)
from elasticutor.state.checkpoint.files import write_increment
from elasticutor.state.checkpoint.forms import StateFile, StateForm
from elasticutor.state.checkpoint.location import Location
from elasticutor.state.checkpoint.manifests import Manifest, epochs_of
from elasticutor.state.checkpoint.restoring import Restorer

__all__ = [
    "AbsentError",
    "Checkpoint",
    "CheckpointError",
    "DamagedError",
    "InUseError",
    "LayoutError",
    "Location",
    "Manifest",
    "MismatchError",
    "Restorer",
    "StateFile",
    "StateForm",
    "StorageError",
    "UncertainError",
    "epochs_of",
    "write_increment",
]
