"""What is done next: decided by a seed, and by nothing else."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from elasticutor.lab.chaos.kill_points import KINDS, POINTS, Kind, Point
from elasticutor.lab.chaos.topology import Shape

Moment: TypeAlias = Literal[
    "at random", "epoch sealed", "epoch committed", "shard moved", "during a recovery", "at start"
]
"""When a driver is killed: at an event of its journal, for instance."""

MOMENTS: tuple[Moment, ...] = get_args(Moment)

_AT_A_POINT = 0.5
_DURING_RECOVERY = 1 / 3
_SECOND_S = 0.3
_WAIT_S = 0.5
_START_S = 3.0


@dataclass(frozen=True, slots=True)
class Blow:
    """One or two kills."""

    wait_s: float
    """How long everything is left alone before."""
    point: Point | None
    """Where a process is to die; None: at once."""
    second_s: float | None
    """How long after that a second one is killed; None: none is."""


class Choices:
    """Decides whom to kill, when, and how the next driver divides the work."""

    def __init__(self, seed: int, nodes: int, cores: int) -> None:
        self._rng = random.Random(seed)
        self._nodes = nodes
        self._cores = cores
        self._points: list[Point] = []
        self._moments: list[Moment] = []

    def seed(self) -> int:
        """A seed that follows from this one."""
        return self._rng.randrange(1 << 31)

    def blow(self) -> Blow:
        """What happens next. All points come in turn, in an order of their own each time."""
        point = None
        if self._rng.random() < _AT_A_POINT:
            if not self._points:
                self._points = self._rng.sample(POINTS, len(POINTS))
            point = self._points.pop()
        second = self._rng.random() < _DURING_RECOVERY
        wait_s = self._rng.uniform(0, _WAIT_S)
        return Blow(wait_s, point, self._rng.uniform(0, _SECOND_S) if second else None)

    def kind(self, there: Mapping[Kind, Sequence[str]]) -> Kind | None:
        """Whom to kill, of those of whom there are any."""
        kinds = [kind for kind in KINDS if there.get(kind)]
        if not kinds:
            return None
        return self._rng.choices(kinds, [KINDS[kind] for kind in kinds])[0]

    def one(self, names: Sequence[str]) -> str:
        """Any of these."""
        return self._rng.choice(sorted(names))

    def moment(self, twice: bool = True) -> Moment:
        """When a driver is killed next; all come in turn.

        "At start" comes only if it may be killed `twice`: now, and when it starts again.
        """
        if not self._moments:
            self._moments = self._rng.sample(MOMENTS, len(MOMENTS))
        moment = self._moments.pop()
        return moment if twice or moment != "at start" else "at random"

    def pause_s(self, moment: Moment) -> float:
        """How long to wait at that moment before it is killed."""
        match moment:
            case "at start":
                return self._rng.uniform(0, _START_S)
            case "during a recovery":
                return self._rng.uniform(0, _SECOND_S)
            case "at random":
                return self._rng.uniform(0, _WAIT_S)
            case _:
                return 0.0

    def shape(self) -> tuple[Shape, int, int]:
        """How the next driver divides the work, and over how many nodes of how many cores."""
        total = self._nodes * self._cores
        usual = self._nodes
        nodes = self._rng.choice([usual, usual, usual + 1, max(1, usual - 1)])
        tallies = self._rng.randint(1, 2)
        chains = self._rng.randint(1, max(1, min(3, total - tallies - 1)))
        shape = Shape(
            chains, self._rng.choice([8, 13, 16, 32]), tallies, self._rng.choice([4, 8, 11])
        )
        return shape, nodes, -(-total // nodes)
