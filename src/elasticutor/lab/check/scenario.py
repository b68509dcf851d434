"""Draws the scenario of a seed: nodes, operators, skew, delays, and how often what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.lab.check.pipeline import ROW_BYTES, ChainOperator, Row, Style, generate

# Operators by name, with those that each feeds; those that no operator feeds are roots.
_SHAPES: tuple[dict[str, tuple[str, ...]], ...] = (
    {"a": ()},
    {"a": ("b",), "b": ()},
    {"a": ("b",), "b": ("c",), "c": ()},
    {"a": ("b", "c"), "b": (), "c": ()},
    {"a": ("b", "c"), "b": ("d",), "c": ("d",), "d": ()},
    {"a": ("c",), "b": ("c",), "c": ()},
)
_SHAPE_WEIGHTS = (3, 3, 1, 1, 2, 2)
_STYLES: tuple[Style, ...] = ("in place", "set", "clearing")


@dataclass(frozen=True, slots=True)
class Rates:
    """How often things are done in a run, on average; or the chance of each time."""

    moves: float
    core_changes: float
    lost_tasks: float
    lost_nodes: float
    lost_executors: float
    lost_drivers: float
    failures: float
    """Attempts given up although nothing was lost: a source that fails, a cancelled stage."""
    slow_phases: float
    manifest_fails: float
    """Chance per epoch."""
    write_fails: float
    """Chance per increment."""
    crash_before_commit: float
    """Chance per batch, after all have prepared it."""


@dataclass(frozen=True, slots=True)
class Habits:
    """What happens to a micro-batch query besides its batches, by chance."""

    calm: bool
    """Nothing of all this: every task must be let through."""
    tries: int
    """How often a task is tried, in one execution."""
    copies: float = 0.0
    """Chance per task of being run twice at a time."""
    deaths: float = 0.0
    """Chance per task."""
    lost_outputs: float = 0.0
    """Chance per stage of being run again in part, after its end."""
    in_part: float = 0.0
    """Chance per stage of being run in part only, from the beginning."""
    twice: float = 0.0
    """Chance per stage of having a twin in the same execution."""
    again: float = 0.0
    """Chance per batch of being executed once more, although it has been."""
    skips: float = 0.0
    """Chance per failure of going on with the next batch."""
    crash_around_commit: float = 0.0
    """Chance per batch, each before and after it is committed."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything about a run that its seed decides beforehand."""

    seed: int
    batches: bool
    """Micro-batches of a query, instead of the epochs of a continuous topology."""
    nodes: int
    cores: int
    """Cores per executor at the start."""
    operators: tuple[ChainOperator, ...]
    roots: tuple[ChainOperator, ...]
    inputs: tuple[list[Row], ...]
    """Per source."""
    config: ExecutorConfig
    rates: Rates
    row_s: float
    """What a tuple costs on a core of usual speed."""
    source_interval_s: float
    source_rows: int
    epoch_s: float
    balance_s: float
    delay_s: float
    slice_records: int
    length_s: float
    """How long it would take without trouble."""

    @property
    def tuples(self) -> int:
        """How many tuples all sources have."""
        return sum(len(rows) for rows in self.inputs)

    def root_of(self, source: int) -> ChainOperator:
        """The operator that a source feeds."""
        return self.roots[source % len(self.roots)]


def draw(seed: int) -> Scenario:
    """Returns the scenario of a seed, always the same one."""
    rng = random.Random(seed)
    batches = rng.random() < 0.3
    keys = rng.choice((6, 16, 40))
    operators, roots = _draw_operators(rng, keys, batches)
    sources = max(len(roots), rng.randint(1, 3))
    total = rng.randint(850, 1350)
    counts = [total // sources] * sources
    skew = rng.choice((0.0, 0.8, 1.5))
    source_rows = rng.choice((16, 32, 48))
    interval = rng.uniform(0.004, 0.016)
    length = counts[0] / source_rows * 1.5 * interval
    return Scenario(
        seed=seed,
        batches=batches,
        nodes=rng.randint(2, 4),
        cores=rng.randint(1, 3),
        operators=operators,
        roots=roots,
        inputs=tuple(generate(rng, n, keys, count, skew) for n, count in enumerate(counts)),
        config=_draw_config(rng, operators[0].shards, batches, source_rows),
        rates=_draw_rates(rng),
        row_s=rng.choice((0.00002, 0.0001, 0.0002)),
        source_interval_s=interval,
        source_rows=source_rows,
        epoch_s=length / rng.randint(3, 8),
        balance_s=rng.uniform(0.01, 0.04),
        delay_s=rng.choice((0.0002, 0.001, 0.003)),
        slice_records=rng.choice((1, 3, 256)),
        length_s=length,
    )


def draw_habits(scenario: Scenario) -> Habits:
    """Returns how the query of a scenario is run, always the same."""
    rng = random.Random(scenario.seed + 2_000_003)
    calm = not scenario.rates.lost_tasks
    tries = rng.choice((1, 2, 4))
    if calm:
        return Habits(calm, tries, again=rng.choice((0.0, 0.3)))
    return Habits(
        calm=False,
        tries=tries,
        copies=rng.choice((0.0, 0.08)),
        deaths=rng.choice((0.0, 0.05)),
        lost_outputs=rng.choice((0.0, 0.1)),
        in_part=rng.choice((0.0, 0.08)),
        twice=rng.choice((0.0, 0.4)),
        again=rng.choice((0.1, 0.3)),
        skips=rng.choice((0.0, 0.4)),
        crash_around_commit=rng.choice((0.0, 0.1)),
    )


def _draw_operators(
    rng: random.Random, keys: int, batches: bool
) -> tuple[tuple[ChainOperator, ...], tuple[ChainOperator, ...]]:
    shape = _SHAPES[rng.randint(0, 1)] if batches else rng.choices(_SHAPES, _SHAPE_WEIGHTS)[0]
    shards = rng.choice((4, 8, 16))
    most = 2 if len(shape) < 4 else 1
    made = {
        name: ChainOperator(
            name=name,
            keys=keys,
            executors=rng.randint(1, most),
            shards=shards,
            style=rng.choice(_STYLES),
            copies=2 if rng.random() < 0.15 else 1,
            returns=batches,
            max_keys=rng.choice((3, 1_000_000)),
        )
        for name in shape
    }
    for name, followers in shape.items():
        made[name].downstream.extend(made[follower] for follower in followers)
    fed = {follower for followers in shape.values() for follower in followers}
    return tuple(made.values()), tuple(made[name] for name in shape if name not in fed)


def _draw_config(
    rng: random.Random, shards: int, batches: bool, source_rows: int
) -> ExecutorConfig:
    batch_bytes = source_rows * ROW_BYTES
    credit = batch_bytes * rng.choice((1, 2, 8))
    return ExecutorConfig(
        chance=0.0,  # with so few tuples hardly anything would move
        shards=shards,
        outputs="return" if batches else "forward",
        window_s=rng.choice((0.001, 0.006)),
        chunk_s=rng.choice((0.001, 0.003)),
        first_chunk_rows=rng.choice((2, 16)),
        max_chunk_rows=rng.choice((16, 64)),
        min_credit_bytes=credit,
        max_credit_bytes=credit * rng.choice((1, 4)),
        output_bytes=batch_bytes * rng.choice((1, 4)),
        max_moves=rng.choice((2, 16)),
    )


def _draw_rates(rng: random.Random) -> Rates:
    calm = rng.random() < 0.15  # nothing is lost: everything must go through at once
    return Rates(
        moves=rng.choice((10.0, 25.0, 50.0)),
        core_changes=rng.choice((2.0, 8.0)),
        lost_tasks=0.0 if calm else rng.choice((0.3, 1.0)),
        lost_nodes=0.0 if calm else rng.choice((0.1, 0.4)),
        lost_executors=0.0 if calm else rng.choice((0.0, 0.3)),
        lost_drivers=0.0 if calm else rng.choice((0.0, 0.1)),
        failures=0.0 if calm else rng.choice((0.2, 0.6)),
        slow_phases=rng.choice((0.0, 3.0)),
        manifest_fails=0.0 if calm else rng.choice((0.0, 0.15)),
        write_fails=0.0 if calm else rng.choice((0.0, 0.02)),
        crash_before_commit=0.0 if calm else rng.choice((0.0, 0.2)),
    )
