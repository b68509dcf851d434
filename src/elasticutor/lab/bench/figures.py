"""Median and spread, as every benchmark reports them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Spread:
    """Where repeated measurements lie."""

    median: float
    low: float
    """Tenth percentile."""
    high: float
    """Ninetieth percentile."""

    @classmethod
    def of(cls, measured: npt.ArrayLike) -> Spread:
        """The spread of some measurements.

        Example:
            >>> Spread.of([1.0, 2.0, 3.0])
            Spread(median=2.0, low=1.2, high=2.8)
        """
        low, median, high = np.percentile(np.asarray(measured, dtype=float), (10, 50, 90))
        return cls(round(float(median), 3), round(float(low), 3), round(float(high), 3))
