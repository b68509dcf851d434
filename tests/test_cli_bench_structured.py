"""`elasticutor bench structured`: what it takes, the shape of what it prints, and what it refuses.

The figures themselves are for a quiet machine, and not looked at here. Queries do not run here at
all: a stand-in says how long they took. What they compute is tested where Spark is.
"""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from elasticutor.cli.app import app
from elasticutor.errors import BadValueError
from elasticutor.lab.bench.declare import with_interval
from elasticutor.lab.bench.live import Bench, BenchError
from elasticutor.lab.bench.structured import bench as structured
from elasticutor.lab.bench.structured import stage as spark_stage
from elasticutor.lab.bench.structured.bench import StructuredBench
from elasticutor.lab.bench.structured.figures import (
    RIVALS,
    Compared,
    Ran,
    Runs,
    Small,
    Uniform,
)
from elasticutor.lab.bench.structured.stage import (
    FILES,
    Files,
    _require_batches,
    require_packages,
    write_files,
)
from elasticutor.lab.bench.work import Burn, Burning, Count, CountBatches
from elasticutor.operator import Operator, kind_of
from elasticutor.sources import Generator

SMALL = ("--rows", "400", "--batch-rows", "100", "--keys", "20", "--pairs", "3")
DEAR = ("--dear-rows", "80", "--dear-batch-rows", "10", "--dear-batch-rows", "40")
ROWS_S = {
    "passthrough": 800_000,
    "transformWithState": 10_000,
    "transformWithStateInPandas": 4_000,
    "applyInPandasWithState": 8_000,
    "elastic": 400_000,
    "elastic_vectorised": 500_000,
}
STILL_ROWS_S = 410_000


class StandIn:
    """Queries that say how long they would have taken, and who asked for what in which order."""

    def __init__(self) -> None:
        self.folder = Path()
        self.bench = Bench()
        self.asked: list[tuple[str, int, float, bool]] = []
        self.work: dict[str, Any] = {}
        self.clusters = 0

    def cluster(self) -> AbstractContextManager[Any]:
        self.clusters += 1
        return nullcontext("cluster")

    def run(
        self,
        name: str,
        files: Files,
        operator: Operator | Burning | None = None,
        *,
        cluster: Any = None,
        most_s: float = math.inf,
        balance: bool = True,
    ) -> Ran:
        assert len(list(files.folder.iterdir())) == FILES * (files.batches + 1)
        assert (cluster == "cluster") == name.startswith("elastic")
        self.asked.append((name, files.batch_rows, most_s, balance))
        self.work[name] = operator
        rows_s = ROWS_S[name] if balance else STILL_ROWS_S
        ms = files.batch_rows / rows_s * 1e3
        return Ran(((files.batch_rows, ms),) * files.batches)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    standing = StandIn()

    @contextmanager
    def stand_in(setting: StructuredBench, folder: Path, bench: Bench) -> Iterator[StandIn]:
        standing.folder, standing.bench = folder, bench
        yield standing

    monkeypatch.setattr(structured, "spark_stage", stand_in)
    monkeypatch.setattr(structured, "require_packages", lambda: None)
    return standing


def bench(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", "structured", *words])


def figures(*words: str) -> dict[str, Any]:
    result = bench(*words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# The command


def test_help_reads_well() -> None:
    result = bench("--help")
    assert result.exit_code == 0
    for word in ("--part", "--rows", "--pairs", "--json"):
        assert word in result.output


@pytest.mark.parametrize(
    "words",
    [
        ("--part", "speed"),
        ("--rows", "0"),
        ("--rows", "5000"),  # less than a batch
        ("--batch-rows", "1"),
        ("--dear-rows", "20000"),  # less than the larger of the batches
        ("--cost-ms", "0"),
        ("--pairs", "0"),
        ("--repeat", "0"),
        ("--cores", "0"),
        ("--payload", "-1"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_is_refused_by_name_before_anything_starts(words: tuple[str, str]) -> None:
    result = bench(*words)
    assert result.exit_code == 2
    assert words[0] in result.stderr


def test_all_parts_have_a_figure_for_each_api(stage: StandIn, tmp_path: Path) -> None:
    found = figures(*SMALL, *DEAR, "--folder", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert set(ROWS_S) <= set(found["count"])
    for name, rows_s in ROWS_S.items():
        runs = found["count"][name]
        assert runs["rows_s"] == rows_s
        assert runs["batch_p99_ms"] == pytest.approx(100 / rows_s * 1e3, abs=0.1)
        assert (runs["rows"], runs["batches"]) == ([400], 4)
    for name in (*RIVALS, "elastic"):
        assert found["skewed"][name] == found["skewed"]["by_batch_rows"]["10"][name]
        assert found["skewed"]["by_batch_rows"]["40"][name]["batches"] == 2
    small = found["small"]
    assert small["elastic_ms"] == pytest.approx(100 / 400_000 * 1e3, abs=0.1)
    assert (small["batch_rows"], small["batches"]) == (100, 40)
    assert found["exchange"] is False
    assert found["uniform_ratio"] == pytest.approx(400 / 410, abs=1e-4)
    assert len(found["uniform_ratio_ci95"]) == 2
    assert len(found["uniform"]["ratios"]) == 3
    assert found["reference_us"] > 0
    assert set(found["machine"]) >= {"cores", "python", "pyarrow", "pyspark"}


def test_ratios_are_against_the_best_rival_and_against_rows_that_pass_through(
    stage: StandIn,
) -> None:
    found = figures("--part", "count", *SMALL)["count"]
    assert found["best_rival"] == "transformWithState"
    assert found["over_best_rival"] == 40
    assert found["of_passthrough"] == 0.5
    assert found["vectorised_over_best_rival"] == 50
    assert found["vectorised_of_passthrough"] == 0.625


@pytest.mark.parametrize("part", ["count", "skewed", "uniform"])
def test_a_part_alone_measures_nothing_else(stage: StandIn, part: str) -> None:
    found = figures("--part", part, *SMALL, *DEAR)
    assert {"count", "skewed", "uniform"} & set(found) == {part}
    assert ("small" in found) == (part == "count")
    assert ("uniform_ratio" in found) == (part == "uniform")


def test_a_slow_query_that_counts_is_ended_and_one_with_dear_rows_sees_all_of_them(
    stage: StandIn,
) -> None:
    figures(*SMALL, *DEAR, "--seconds", "5")
    assert {most_s for _, rows, most_s, _ in stage.asked if rows == 100} == {5.0}
    assert {most_s for _, rows, most_s, _ in stage.asked if rows < 100} == {math.inf}


def test_every_other_round_and_pair_goes_the_other_way_round(stage: StandIn) -> None:
    figures("--part", "skewed", "--dear-rows", "10", "--dear-batch-rows", "10", "--repeat", "2")
    names = [name for name, *_ in stage.asked]
    assert names == [*RIVALS, "elastic", "elastic", *reversed(RIVALS)]
    stage.asked.clear()
    figures("--part", "uniform", *SMALL)
    assert [balance for *_, balance in stage.asked[1:]] == [True, False, False, True, True, False]


def test_dear_rows_take_the_same_work_in_all_queries(stage: StandIn) -> None:
    figures("--part", "skewed", *DEAR, "--cost-ms", "0.5")
    assert isinstance(stage.work["elastic"], Burn)
    assert stage.work["elastic"].work == Burning(0.0005)
    assert {stage.work[name] for name in RIVALS} == {Burning(0.0005)}


def test_without_json_every_part_has_its_figures(stage: StandIn) -> None:
    result = bench(*SMALL, *DEAR)
    assert result.exit_code == 0, result.output
    assert "batches of 100 rows: " in result.stdout
    for words in ("counts of 20 keys", "passthrough", "40.00", "1 ms of CPU", "3 pairs", "0.976"):
        assert words in result.stdout
    assert "pair 3 of 3" in result.stderr


def test_an_interruption_leaves_nothing_behind_and_ends_with_130(
    stage: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: Any, **__: Any) -> Ran:
        raise KeyboardInterrupt

    monkeypatch.setattr(stage, "run", interrupted)
    result = bench(*SMALL, "--folder", str(tmp_path))
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "package"), [("google.protobuf", "protobuf"), ("pandas", "pandas")]
)
def test_a_missing_package_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str
) -> None:
    monkeypatch.setattr(spark_stage, "_is_there", lambda name: name != module)
    with pytest.raises(BenchError, match=f"{package} must be installed.*pip install '?{package}"):
        require_packages()
    result = bench(*SMALL)
    assert isinstance(result.exception, BenchError)
    assert "starting Spark" not in result.stderr


# What it measures with


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 300), st.integers(1, 4), st.integers(2, 50))
def test_files_have_the_rows_of_their_batch_in_turn_and_in_order(
    batch_rows: int, batches: int, warm_up_rows: int
) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        files = write_files(
            Path(folder, "rows"),
            Generator(keys=7, payload=0, seed=3),
            rows=batch_rows * batches,
            batch_rows=batch_rows,
            warm_up_rows=warm_up_rows,
        )
        by_age = sorted(files.folder.iterdir(), key=lambda path: path.stat().st_mtime)
        tables = [pq.read_table(path) for path in by_age]
    assert len(tables) == FILES * (batches + 1)
    assert (files.batches, files.batch_rows) == (batches, batch_rows - batch_rows % FILES)
    sizes = [sum(len(t) for t in tables[n : n + FILES]) for n in range(0, len(tables), FILES)]
    assert sizes == [files.warm_up_rows, *[files.batch_rows] * batches]
    times = [table.column("time").to_pylist() for table in tables]
    together = [
        time
        for one, other in zip(times[::2], times[1::2], strict=True)
        for pair in zip(one, other, strict=True)
        for time in pair
    ]
    assert together == list(range(len(together)))


def test_a_payload_is_carried_along_as_plain_bytes(tmp_path: Path) -> None:
    generator = Generator(keys=7, payload=16)
    files = write_files(tmp_path / "rows", generator, rows=10, batch_rows=10, warm_up_rows=2)
    table = pq.read_table(files.folder / "00001-0.parquet")
    assert files.schema == "key bigint, time bigint, payload binary"
    assert table.schema.field("payload").type == pa.binary()
    assert len(table.column("payload")[0].as_py()) == 16


@pytest.mark.parametrize(
    ("rows", "batch_rows", "warm_up_rows"), [(5, 10, 2), (10, 1, 2), (10, 10, 1)]
)
def test_files_without_a_batch_or_a_row_are_refused(
    tmp_path: Path, rows: int, batch_rows: int, warm_up_rows: int
) -> None:
    with pytest.raises(BadValueError):
        write_files(
            tmp_path / "rows",
            Generator(payload=0),
            rows=rows,
            batch_rows=batch_rows,
            warm_up_rows=warm_up_rows,
        )


def test_keys_are_shuffled_after_so_many_seconds_of_work_for_all_cores() -> None:
    assert StructuredBench(shuffle=10, cores=2, cost_ms=1.0).shuffle_rows == 20_000


class _Groups:
    """A batch's states, as far as whole-number keys and arrays go."""

    def __init__(self, keys: list[int], kept: dict[int, int]) -> None:
        from elasticutor.operator import Groups

        distinct, inverse = np.unique(keys, return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        sizes = np.bincount(inverse, minlength=len(distinct))
        starts = np.cumsum(sizes) - sizes
        self.groups = Groups(distinct, order, starts)
        self._kept = kept

    def get_array(self, keys: Any, dtype: Any) -> Any:
        return np.array([self._kept.get(key, 0) for key in keys], dtype)

    def set_array(self, keys: Any, values: Any) -> None:
        self._kept.update(zip(keys.tolist(), values.tolist(), strict=True))


class _One:
    def __init__(self, kept: dict[int, int], key: int) -> None:
        self._kept, self._key = kept, key

    def get(self, default: int) -> int:
        return self._kept.get(self._key, default)

    def set(self, value: int) -> None:
        self._kept[self._key] = value


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=30), max_size=4))
def test_both_kinds_of_operator_count_alike(batches: list[list[int]]) -> None:
    assert (kind_of(Count()), kind_of(CountBatches())) == ("record", "batch")
    seen: Counter[int] = Counter()
    one_by_one: dict[int, int] = {}
    at_once: dict[int, int] = {}
    for keys in batches:
        expected = []
        for key in keys:
            seen[key] += 1
            expected.append((key, seen[key]))
        count: Any = Count()
        made = [out for key in keys for out in count.process(key, None, _One(one_by_one, key))]
        state: Any = _Groups(keys, at_once)
        batch = pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.int64())})
        together = CountBatches().process_batch(batch, state)
        assert made == expected
        assert list(zip(*together.to_pydict().values(), strict=True)) == expected
    assert one_by_one == at_once == dict(seen)


def test_work_without_a_cost_is_refused() -> None:
    with pytest.raises(BadValueError, match="cost of a tuple"):
        Burning(0.0)


def test_a_run_that_did_not_end_a_batch_is_no_measurement() -> None:
    with pytest.raises(BenchError, match="end a batch after the first"):
        Ran(())


def test_batches_other_than_those_written_are_not_compared(tmp_path: Path) -> None:
    files = Files(tmp_path, "key bigint", batch_rows=100, warm_up_rows=10, batches=2)
    _require_batches("q", files, [10, 100, 100])
    _require_batches("q", files, [10, 100], ended_early=True)
    for rows in ([10, 100], [10, 200], [100, 100, 10]):
        with pytest.raises(BenchError, match="batches of q must have"):
            _require_batches("q", files, rows)


def test_our_share_of_a_small_batch_is_taken_by_rounds_over_medians() -> None:
    def ran(*ms: float) -> Ran:
        return Ran(tuple((100, one) for one in ms))

    runs = {
        "elastic": Runs.of(ran(230, 240, 900), ran(300)),
        "passthrough": Runs.of(ran(200, 210, 220), ran(280)),
    }
    small = Small.of(runs, batch_rows=100)
    assert small.own_ms == [30, 20]
    assert small.as_dict()["own_ms"] == 25


def test_ratios_are_taken_by_rounds_and_pairs() -> None:
    def ran(rows_s: float) -> Ran:
        return Ran(((1000, 1e6 / rows_s),))

    compared = Compared(
        runs={
            "transformWithState": Runs.of(ran(100), ran(1000)),
            "elastic": Runs.of(ran(300), ran(5000)),
        },
        batch_rows=1000,
    )
    assert compared.ratio("elastic", "transformWithState") == [3, 5]
    balanced, still = Runs.of(ran(90), ran(2000)), Runs.of(ran(100), ran(2000))
    uniform = Uniform(balanced=balanced, still=still, batch_rows=1000)
    assert uniform.ratios == pytest.approx([0.9, 1.0])
    assert uniform.as_dict()["uniform_ratio"] == pytest.approx(0.95)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.5, 2), min_size=1, max_size=12))
def test_the_interval_is_around_the_median_and_within_what_was_measured(
    ratios: list[float],
) -> None:
    median, low, high = with_interval(ratios)
    assert min(ratios) <= low <= median <= high <= max(ratios)


def test_an_interruption_lets_what_runs_aside_end_first(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def call(ended: threading.Event) -> None:
        assert ended.wait(60)
        told.append("ended in good order")

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(spark_stage, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        spark_stage._aside(call)
    assert told == ["ended in good order"]


def test_what_fails_aside_fails_here() -> None:
    def call(ended: threading.Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        spark_stage._aside(call)


def test_the_figures_can_be_had_without_the_command(tmp_path: Path) -> None:
    told: list[str] = []
    stage: Any = StandIn()
    stage.folder, stage.bench = tmp_path, Bench(told.append)
    setting = StructuredBench(part="count", rows=100, batch_rows=50, keys=5, repeat=2)
    result = setting.on(stage)
    assert result.count is not None
    assert (result.skewed, result.uniform) == (None, None)
    assert result.as_dict()["count"]["elastic"]["rows"] == [100, 100]
    assert stage.clusters == 6  # one for each run of an elastic query, three in each round
    assert "count: elastic, round 2 of 2" in told
