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

Right = Callable[..., Any]
"""What a bug takes the place of."""


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
    """Bugs of one kind."""

    def omit(self, owner: type, method: str, name: str) -> None:
        """Add a bug of this name: the method does nothing."""
        self.append(Mutant(name, lambda: patch.object(owner, method, lambda *what: None)))

    def plant(self, owner: Any, name: Any) -> Callable[[Right], Right]:
        """Add what is decorated: it is called with the right method first, and then as that is.

        The bug has the name of the function, with spaces.

        Args:
            owner: A class, or a table of handlers.
            name: Of the method or property; or the handler's key.
        """
        right = owner[name] if isinstance(owner, dict) else owner.__dict__[name]

        def add(wrong: Right) -> Right:
            def instead(*args: Any, **named: Any) -> Any:
                return wrong(right, *args, **named)

            def injected() -> AbstractContextManager[Any]:
                if isinstance(owner, dict):
                    return patch.dict(owner, {name: instead})
                new = property(instead) if isinstance(right, property) else instead
                return patch.object(owner, name, new)

            self.append(Mutant(wrong.__name__.replace("_", " ").strip(), injected))
            return wrong

        return add
