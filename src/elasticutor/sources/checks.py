"""Checks of the numbers that sources take."""

from __future__ import annotations

import math
from typing import Any

from elasticutor.errors import BadValueError


def require_whole(name: str, value: Any, *, least: int) -> None:
    """Require a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadValueError(name, f"be a whole number, at least {least}", value)


def require(name: str, value: Any, *, above: float | None = None, most: float = math.inf) -> None:
    """Require a finite number of at least 0, or above a bound."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and 0 <= value <= most):
        must = "be a number, at least 0" if most == math.inf else f"be a number from 0 to {most:g}"
        raise BadValueError(name, must, value)
    if above is not None and value <= above:
        raise BadValueError(name, f"be above {above:g}", value)
