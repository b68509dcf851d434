"""Writes the story of one run, a line per event."""

from __future__ import annotations

from typing import Any

import numpy as np

from elasticutor.core.executor.batch import Part


class Trace:
    """Collects the lines of a run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def handled(self, now: float, who: str, event: Any, instructions: list[Any]) -> None:
        """Add an event that an executor handled, with its instructions."""
        self._add(now, who, describe(event))
        self.lines += [
            f"{'':11} {'':8}   → {describe(instruction)}" for instruction in instructions
        ]

    def refused(self, now: float, who: str, message: Any, error: Exception) -> None:
        """Add a message that an executor refused."""
        self._add(now, who, f"{describe(message)}\n{'':23} ✗ {type(error).__name__}: {error}")

    def note(self, now: float, who: str, what: Any) -> None:
        """Add anything else."""
        self._add(now, who, what if isinstance(what, str) else describe(what))

    def _add(self, now: float, who: str, text: str) -> None:
        self.lines.append(f"{now * 1e3:9.3f}ms {who:8} {text}")


def describe(message: Any) -> str:
    """Returns a message in one line, with what it carries counted instead of printed."""
    kind = type(message)
    slots: tuple[str, ...] = getattr(kind, "__slots__", ())
    fields: tuple[str, ...] = getattr(kind, "__struct_fields__", slots)
    parts = [f"{name}={_value(getattr(message, name))}" for name in fields]
    return " ".join([kind.__name__, *parts])


def _value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"[{len(value)}]" if len(value) > 8 else str(value.tolist()).replace(" ", "")
    if isinstance(value, list) and value and isinstance(value[0], Part):
        return "+".join(f"{part.batch.upstream}:{_value(part.shards)}" for part in value)
    if isinstance(value, (list, dict)):
        return f"<{len(value)}>"
    if isinstance(value, tuple) and len(value) > 8:
        return f"({len(value)})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
