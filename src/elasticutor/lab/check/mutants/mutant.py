"""One planted bug: a wrong version of one method, and the seed by which the checker finds it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from elasticutor.lab.check.runner import run_seeds

SEEDS = Path(__file__).with_name("seeds.json")
"""By mutant the first seed that finds it; `scripts/store_seeds.py` searches and writes them."""

Wrong = Callable[..., Any]


@cache
def stored_seeds() -> dict[str, int]:
    """Return the killing seed of each mutant that has one stored."""
    seeds: dict[str, int] = json.loads(SEEDS.read_text(encoding="utf-8"))
    return seeds


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug."""

    name: str
    injected: Callable[[], AbstractContextManager[Any]]
    """Have the bug for a while."""

    @property
    def seed(self) -> int | None:
        """The stored seed that finds it; None before one is stored."""
        return stored_seeds().get(self.name)

    def found_by(self, seed: int) -> bool:
        """Replay one seed with the bug in place, and say whether the checker finds it."""
        return self.found_after(1, first=seed) is not None

    def found_after(self, most: int, first: int = 0) -> int | None:
        """After how many seeds the checker finds it; None if it does not."""
        with self.injected():
            result = run_seeds(range(first, first + most), processes=1, until_failure=True)
        return result.seeds if result.failures else None


class Mutants(list[Mutant]):
    """Bugs of one kind, in the place of methods, properties, or handlers in a table of them.

    `around` and `instead_of` decorate the bug; its name is that of the function, with spaces.
    """

    def around(self, owner: Any, name: Any) -> Callable[[Wrong], Wrong]:
        """Add a bug that is called with what it takes the place of, and then as that is."""
        right = owner[name] if isinstance(owner, dict) else owner.__dict__[name]

        def add(wrong: Wrong) -> Wrong:
            self._add(owner, name, wrong, lambda *args, **named: wrong(right, *args, **named))
            return wrong

        return add

    def instead_of(self, owner: Any, name: Any) -> Callable[[Wrong], Wrong]:
        """Add a bug that does something of its own."""

        def add(wrong: Wrong) -> Wrong:
            self._add(owner, name, wrong, wrong)
            return wrong

        return add

    def omission_of(self, owner: type, name: str, bug: str) -> None:
        """Add a bug of this name: the method does nothing."""
        self.append(Mutant(bug, lambda: patch.object(owner, name, lambda *args: None)))

    def _add(self, owner: Any, name: Any, wrong: Wrong, new: Any) -> None:
        bug = wrong.__name__.replace("_", " ").strip()
        if isinstance(owner, dict):
            self.append(Mutant(bug, lambda: patch.dict(owner, {name: new})))
        else:
            new = property(new) if isinstance(owner.__dict__[name], property) else new
            self.append(Mutant(bug, lambda: patch.object(owner, name, new)))
