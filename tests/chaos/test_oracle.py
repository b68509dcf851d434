"""The oracle of chaos: it accepts what a sequential program leaves, and nothing else.

What a run leaves is made by hand here: a checkpoint with two epochs, and the sink's files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.keys import executors_of, key_hashes, shards_of
from elasticutor.core.protocol.ids import Attempt, Epoch, ShardId
from elasticutor.lab.chaos.oracle import Fold, Verdict, judged
from elasticutor.lab.chaos.topology import (
    BUCKETS,
    CHAIN,
    LANES,
    LINKS,
    SEALS,
    SOURCE,
    TALLY,
    Chain,
    ChaosLoad,
    Tally,
)
from elasticutor.state.checkpoint import Checkpoint, StateFile, StateForm, write_increment
from elasticutor.state.codec import encode, encode_key
from elasticutor.state.levels import Record

LOAD = ChaosLoad(rate=1_000.0, keys=12, seed=4)
HALF, WHOLE = (150, 140), (300, 290)
"""Tuples of each lane that are committed with epoch 1, and with epoch 2."""
EXECUTORS, SHARDS = 2, 4


@dataclass
class Left:
    """What a run has left, as a mapping of epochs to tables of outputs and to states."""

    outputs: dict[int, pa.Table]
    states: dict[int, dict[str, dict[Any, Any]]]


def faultless() -> Left:
    """What a run leaves whose epochs end at `HALF` and `WHOLE`."""
    before, after = Fold.of(LOAD, HALF), Fold.of(LOAD, WHOLE)
    halves: dict[int, list[pa.Table]] = {1: [], 2: []}
    for lane, table in enumerate(after.outputs):
        lanes = pa.array([lane] * table.num_rows, pa.int64())
        rows = table.add_column(1, "lane", lanes).cast(SEALS)
        halves[1].append(rows.slice(0, HALF[lane]))
        halves[2].append(rows.slice(HALF[lane]))
    outputs = {epoch: pa.concat_tables(tables) for epoch, tables in halves.items()}
    return Left(outputs, {1: before.states, 2: after.states})


def verdict(left: Left, folder: Path) -> Verdict:
    """The oracle's word on what is written to files as a run would have."""
    checkpoint, out = folder / "checkpoint", folder / "out"
    shutil.rmtree(folder, ignore_errors=True)
    out.mkdir(parents=True)
    for epoch, table in left.outputs.items():
        pq.write_table(table, out / f"epoch-{epoch:012d}-out-000-5f0c93ab.parquet")
    forms = {
        CHAIN: StateForm(CHAIN, EXECUTORS, SHARDS, (("key", "int64"),), Chain.state_schema),
        TALLY: StateForm(TALLY, EXECUTORS, SHARDS, (("bucket", "int64"),)),
    }
    kept = Checkpoint.open(
        str(checkpoint),
        run="by hand",
        topology="chaos",
        forms=list(forms.values()),
        sources={SOURCE: LANES},
    )
    attempt = Attempt(kept.first_attempt + 1)
    for epoch, counts in ((1, HALF), (2, WHOLE)):
        files = [
            file
            for name, form in forms.items()
            for file in increments(kept, form, attempt, Epoch(epoch), left.states[epoch][name])
        ]
        notes = {f"{SOURCE}.{lane}": (count, 1.5) for lane, count in enumerate(counts)}
        kept.commit(Epoch(epoch), attempt, files, notes)
    kept.release()
    return judged(checkpoint, out, LOAD)


def increments(
    kept: Checkpoint, form: StateForm, attempt: Attempt, epoch: Epoch, states: dict[Any, Any]
) -> list[StateFile]:
    hashes = key_hashes(pa.array(list(states), pa.int64()))
    places = zip(executors_of(hashes, EXECUTORS), shards_of(hashes, SHARDS), strict=True)
    changes: list[dict[ShardId, list[Record]]] = [{} for _ in range(EXECUTORS)]
    for (executor, shard), (key, state) in zip(places, states.items(), strict=True):
        record = Record(encode_key(key), epoch, encode(state))
        changes[int(executor)].setdefault(ShardId(int(shard)), []).append(record)
    written = [
        write_increment(kept.location, form, name, "n0", attempt, epoch, mine)
        for name, mine in zip(form.executor_names, changes, strict=True)
    ]
    return [file for file in written if file is not None]


def test_what_a_sequential_program_leaves_is_right(tmp_path: Path) -> None:
    found = verdict(faultless(), tmp_path / "run")
    assert found.violations == []
    assert found.rows == sum(WHOLE)
    assert found.epoch == 2


def replaced(left: Left, epoch: int, rows: list[dict[str, Any]]) -> None:
    left.outputs[epoch] = pa.Table.from_pylist(rows, schema=SEALS)


def lost_output(left: Left) -> None:
    rows = left.outputs[2].to_pylist()
    replaced(left, 2, rows[:40] + rows[41:])


def doubled_output(left: Left) -> None:
    rows = left.outputs[2].to_pylist()
    replaced(left, 2, [*rows[:41], *rows[40:]])


def swapped_outputs(left: Left) -> None:
    rows = left.outputs[2].to_pylist()
    first = rows[0]
    other = next(
        at
        for at, row in enumerate(rows)
        if at and (row["key"], row["lane"]) == (first["key"], first["lane"])
    )
    rows[0], rows[other] = rows[other], rows[0]
    replaced(left, 2, rows)


def doubled_file(left: Left) -> None:
    left.outputs[3] = left.outputs[2]


def lost_file(left: Left) -> None:
    del left.outputs[1]


def swapped_files(left: Left) -> None:
    left.outputs[1], left.outputs[2] = left.outputs[2], left.outputs[1]


def unknown_lane(left: Left) -> None:
    rows = left.outputs[1].to_pylist()
    replaced(left, 1, [*rows, rows[0] | {"lane": LANES}])


def older_state(left: Left) -> None:
    left.states[2] = left.states[1]


def older_state_of_one_key(left: Left) -> None:
    key = next(iter(left.states[1][TALLY]))
    left.states[2][TALLY] = left.states[2][TALLY] | {key: left.states[1][TALLY][key]}


def unknown_key(left: Left) -> None:
    left.states[2][CHAIN] = left.states[2][CHAIN] | {LOAD.keys + 5: (1, 1, 1, 1)}


def lost_state(left: Left) -> None:
    for epoch in (1, 2):
        states = dict(left.states[epoch][CHAIN])
        del states[min(states)]
        left.states[epoch][CHAIN] = states


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lost_output, "outputs: key"),
        (doubled_output, "outputs: key"),
        (swapped_outputs, "then comes number"),
        (doubled_file, "outputs: key"),
        (lost_file, "outputs: key"),
        (swapped_files, "outputs: key"),
        (unknown_lane, "which there is not"),
        (older_state, "state: chain: key"),
        (older_state_of_one_key, "state: tally: key"),
        (unknown_key, f"state: chain: key {LOAD.keys + 5}"),
        (lost_state, "nothing instead of"),
    ],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_every_difference_is_found_and_named(
    plant: Callable[[Left], None], words: str, tmp_path: Path
) -> None:
    left = faultless()
    plant(left)
    found = verdict(left, tmp_path / "run").violations
    assert any(words in violation for violation in found)


# Tuples that went wrong on their way through the operators


class Held:
    """State as an operator sees it, for all keys."""

    def __init__(self) -> None:
        self.states: dict[Any, Any] = {}
        self.key: Any = None

    def get(self, *given: Any) -> Any:
        if len(given) == 1:  # by record: the key is the row's
            return self.states.setdefault(self.key, given[0])
        return self.states.setdefault(*given)

    def set(self, state: Any) -> None:
        self.states[self.key] = state

    def exists(self) -> bool:
        return self.key in self.states

    def clear(self) -> None:
        self.states.pop(self.key, None)


class Row:
    def __init__(self, time: int) -> None:
        self.time = time


def processed(tuples: list[tuple[int, int]]) -> tuple[dict[str, dict[Any, Any]], pa.Table]:
    """What the operators make of tuples that come in some order: states, and outputs."""
    chain, tally, chains, tallies = Chain(LOAD), Tally(), Held(), Held()
    links = []
    for key, time in tuples:
        chains.key = key
        links += list(chain.process(key, Row(time), chains))
    columns = [list(column) for column in zip(*links, strict=True)]
    batch = pa.record_batch([pa.array(c, pa.int64()) for c in columns], schema=LINKS)
    held: Any = tallies
    outputs = pa.Table.from_batches([tally.process_batch(batch, held)])
    return {CHAIN: chains.states, TALLY: tallies.states}, outputs


def merged(counts: tuple[int, ...], shuffle: Callable[[list[int]], object]) -> list[Any]:
    """Tuples of all lanes, in any order that keeps that of each lane."""
    lanes = [LOAD.generator.table(lane, LANES, 0, n).to_pylist() for lane, n in enumerate(counts)]
    order = [lane for lane, n in enumerate(counts) for _ in range(n)]
    shuffle(order)
    rest = [iter(lane) for lane in lanes]
    return [(row["key"], row["time"]) for row in (next(rest[lane]) for lane in order)]


@given(st.randoms(use_true_random=False))
def test_the_order_in_which_lanes_meet_makes_no_difference(rng: Any) -> None:
    states, outputs = processed(merged((40, 30), rng.shuffle))
    fold = Fold.of(LOAD, (40, 30))
    assert states == fold.states
    assert outputs.num_rows == 70


@pytest.mark.parametrize("how", ["lost", "doubled", "swapped"])
@pytest.mark.parametrize("at", [0, 20, 58])
def test_a_tuple_that_is_lost_doubled_or_swapped_shows_in_state_and_outputs(
    how: str, at: int, tmp_path: Path
) -> None:
    tuples = merged(WHOLE, lambda order: order.sort())
    after = next(
        other
        for other in range(at + 1, len(tuples))
        if tuples[other][0] == tuples[at][0] and tuples[other] != tuples[at]
    )
    key = tuples[at][0]
    if how == "lost":
        del tuples[at]
    elif how == "doubled":
        tuples.insert(after, tuples[at])
    else:
        tuples[at], tuples[after] = tuples[after], tuples[at]
    states, outputs = processed(tuples)
    left = faultless()
    left.states[2] = states
    left.outputs = {1: outputs}
    found = verdict(left, tmp_path / "run").violations
    for words in (f"state: {CHAIN}: key {key}:", f"state: {TALLY}: key {key % BUCKETS}:"):
        assert any(violation.startswith(words) for violation in found)
    assert any(violation.startswith(f"outputs: key {key} of") for violation in found)


def test_a_damaged_checkpoint_is_a_violation_and_no_error(tmp_path: Path) -> None:
    verdict(faultless(), tmp_path / "run")
    checkpoint, out = tmp_path / "run" / "checkpoint", tmp_path / "run" / "out"
    file = next((checkpoint / "state").rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    assert any(file.name in violation for violation in judged(checkpoint, out, LOAD).violations)
    manifest = max((checkpoint / "epochs").iterdir())
    manifest.write_bytes(manifest.read_bytes()[:-10])
    assert any(manifest.name in words for words in judged(checkpoint, out, LOAD).violations)


def test_a_run_that_never_committed_anything_is_a_violation(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    assert "no epoch" in judged(tmp_path / "checkpoint", tmp_path / "out", LOAD).violations[0]
