"""Checks of the numbers that users give."""

from __future__ import annotations

import math
from typing import Any

from elasticutor.errors import BadValueError


def require_whole(name: str, value: Any, *, least: int = 1, most: float = math.inf) -> None:
    """Require a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadValueError(name, f"be a whole number, at least {least}", value)


def require(name: str, value: Any, *, above: float | None = None, most: float = math.inf) -> None:
    """Require a finite number of at least 0, or above a bound."""
    if not (_is_number(value) and math.isfinite(value) and 0 <= value <= most):
        must = "be a number, at least 0" if most == math.inf else f"be a number from 0 to {most:g}"
        raise BadValueError(name, must, value)
    if above is not None and value <= above:
        raise BadValueError(name, f"be above {above:g}", value)


def require_seconds(name: str, value: Any, *, endless: bool = False) -> None:
    """Require a duration; one without end only on request."""
    if not (_is_number(value) and value >= 0 and (endless or value < math.inf)):
        raise BadValueError(name, "be a number of seconds, at least 0", value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
