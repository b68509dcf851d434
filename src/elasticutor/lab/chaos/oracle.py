"""Whether every tuple counted once: checkpoint and outputs against a sequential fold.

The last manifest says how many tuples of each source task are committed. A plain loop over these
gives the state of every key of both operators, and all outputs of every key and lane in their
order. The checkpoint must have that state, and the sink's files those outputs, each once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elasticutor.core.protocol.ids import ShardId
from elasticutor.lab.chaos.topology import (
    BUCKETS,
    CHAIN,
    LANES,
    SEALS,
    SINK,
    SOURCE,
    TALLY,
    ChaosLoad,
    Ends,
    linked,
    sealed,
)
from elasticutor.state.checkpoint import CheckpointError, Location, Manifest, Restorer, epochs_of
from elasticutor.state.codec import decode, decode_key

Ints: TypeAlias = npt.NDArray[np.int64]

States: TypeAlias = Mapping[str, Mapping[Any, Any]]
"""By operator, then by key."""

_FILE = re.compile(rf"epoch-(\d+)-{SINK}-(\d+)-.*\.parquet")
_COLUMNS = ("key", "time", "count", "chain", "seal")


@dataclass(frozen=True)
class Fold:
    """What a sequential program makes of the first tuples of every lane."""

    states: dict[str, dict[Any, Any]]
    outputs: list[pa.Table]
    """By lane, in the order of its tuples; columns as in `SEALS`, without the lane."""

    @classmethod
    def of(cls, load: ChaosLoad, counts: Sequence[int]) -> Fold:
        """Fold this number of tuples of each lane."""
        chains: dict[int, list[int]] = {}
        tallies: dict[int, dict[Any, int]] = {}
        outputs = []
        for lane, number in enumerate(counts):
            tuples = load.generator.table(lane, LANES, 0, number)
            rows: list[list[int]] = [[], [], []]
            keys, times = tuples.column("key").to_pylist(), tuples.column("time").to_pylist()
            for key, time in zip(keys, times, strict=True):
                ends = chains.setdefault(key, [0, 0] * LANES)
                ends[2 * lane] = count = ends[2 * lane] + 1
                ends[2 * lane + 1] = chain = linked(ends[2 * lane + 1], time)
                held = tallies.setdefault(key % BUCKETS, {})
                seal = sealed(held, key, lane, count, chain)
                for column, value in zip(rows, (count, chain, seal), strict=True):
                    column.append(value)
            columns = [*tuples.columns, *(pa.array(column, pa.int64()) for column in rows)]
            outputs.append(pa.table(columns, names=list(_COLUMNS)))
        ended: dict[int, Ends] = {key: tuple(ends) for key, ends in chains.items()}
        return cls({CHAIN: dict(ended), TALLY: dict(tallies)}, outputs)


@dataclass(frozen=True)
class Verdict:
    """What is left of a run, and everything in which it differs from the fold."""

    rows: int = 0
    """Tuples that are committed."""
    epoch: int = 0
    """The last one."""
    violations: list[str] = field(default_factory=list)


def judged(checkpoint: Path, out: Path, load: ChaosLoad) -> Verdict:
    """Compare a checkpoint and the files of the sink with the fold of the committed tuples."""
    location = Location.at(str(checkpoint))
    newest = next((listed for listed in epochs_of(location) if listed.current), None)
    if newest is None:
        return Verdict(violations=["checkpoint: no epoch was ever committed"])
    if newest.manifest is None:
        return Verdict(epoch=newest.epoch, violations=[f"checkpoint: {newest.error}"])
    manifest = newest.manifest
    counts = [_offset(manifest, lane) for lane in range(LANES)]
    fold = Fold.of(load, counts)
    states, wrong = read_states(location, manifest)
    wrong += differing_states(fold.states, states)
    wrong += differing_outputs(fold.outputs, read_outputs(out))
    return Verdict(sum(counts), manifest.epoch, wrong)


def _offset(manifest: Manifest, lane: int) -> int:
    offset = manifest.notes.get(f"{SOURCE}.{lane}")
    return 0 if offset is None else int(offset[0])


# State ------------------------------------------------------------------------------------------


def read_states(location: Location, manifest: Manifest) -> tuple[States, list[str]]:
    """All state that a manifest lists, and what is wrong with how it is kept."""
    states: dict[str, dict[Any, Any]] = {CHAIN: {}, TALLY: {}}
    wrong = []
    for name, form in manifest.forms.items():
        for executor in form.executor_names:
            try:
                kept = Restorer.load(location, form, executor, manifest.epoch)
            except CheckpointError as error:
                wrong.append(f"state: {executor}: {error}")
                continue
            for shard in range(form.shards):
                for record in kept.records(ShardId(shard)):
                    key = decode_key(record.key)
                    if key in states[name]:
                        wrong.append(f"state: {name}: key {key} is there twice, in {executor} too")
                    states[name][key] = None if record.value is None else decode(record.value)
    return states, wrong


def differing_states(expected: States, found: States) -> list[str]:
    """A sentence for every key whose state is another one."""
    return [
        f"state: {name}: key {key}: {_shown(found[name].get(key))} "
        f"instead of {_shown(wanted.get(key))}"
        for name, wanted in expected.items()
        for key in sorted({*wanted, *found[name]})
        if found[name].get(key) != wanted.get(key)
    ]


def _shown(state: Any) -> str:
    if isinstance(state, dict):
        return f"{state.get('rows')} rows of {len(state) - 2} keys and lanes"
    return "nothing" if state is None else f"{state}"


# Outputs ----------------------------------------------------------------------------------------


def read_outputs(out: Path) -> pa.Table:
    """All that the sink has published, in the order of epochs, with the epoch as first column."""
    files = []
    for path in out.glob("*.parquet"):
        found = _FILE.fullmatch(path.name)
        files.append((int(found[1]), int(found[2]), path) if found else (-1, 0, path))
    schema = pa.schema([pa.field("epoch", pa.int64(), False), *SEALS])
    tables = [schema.empty_table()]
    for epoch, _, path in sorted(files):
        table = pq.read_table(path, schema=SEALS)
        epochs = pa.array(np.full(table.num_rows, epoch))
        tables.append(pa.table([epochs, *table.columns], schema=schema))
    return pa.concat_tables(tables)


def differing_outputs(expected: Sequence[pa.Table], outputs: pa.Table) -> list[str]:
    """A sentence for every key and lane whose outputs are not the expected ones in order."""
    lanes = outputs.column("lane").to_numpy()
    wrong = [
        f"outputs: of source task {lane}, which there is not"
        for lane in np.unique(lanes).tolist()
        if not 0 <= lane < len(expected)
    ]
    for lane, table in enumerate(expected):
        came = _by_key(outputs.filter(pa.array(lanes == lane)))
        wanted = _by_key(table)
        columns = [name for name in _COLUMNS if not _equal(came[name], wanted[name])]
        if columns:
            wrong += _differing_keys(lane, came, wanted)
    return wrong


def _by_key(table: pa.Table) -> dict[str, Ints]:
    """The columns, those of one key together and in their order."""
    order = np.argsort(table.column("key").to_numpy(), kind="stable")
    return {name: table.column(name).to_numpy()[order] for name in table.column_names}


def _equal(one: Ints, two: Ints) -> bool:
    return len(one) == len(two) and bool((one == two).all())


def _differing_keys(
    lane: int, came: Mapping[str, Ints], wanted: Mapping[str, Ints]
) -> Iterator[str]:
    for key in np.unique(np.concatenate([came["key"], wanted["key"]])).tolist():
        mine, due = ({n: c[of["key"] == key] for n, c in of.items()} for of in (came, wanted))
        if not all(_equal(mine[name], due[name]) for name in _COLUMNS):
            yield f"outputs: key {key} of source task {lane}: {_difference(mine, due)}"


def _difference(came: Mapping[str, Ints], wanted: Mapping[str, Ints]) -> str:
    """What is wrong with one key's outputs, and where it begins."""
    got, due = len(came["count"]), len(wanted["count"])
    most = min(got, due)
    differs = np.zeros(most, bool)
    for name in _COLUMNS:
        differs |= came[name][:most] != wanted[name][:most]
    at = int(differs.argmax()) if differs.any() else most
    words = f"{got} instead of {due}, right up to number {at}"
    if at < got:
        words += f"; then comes number {came['count'][at]} in epoch {came['epoch'][at]}"
    return words
