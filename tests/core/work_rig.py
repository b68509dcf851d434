"""Work for meters to count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticutor.core.measure.work import WorkDone


def done(
    rows: Sequence[int] | npt.NDArray[np.int64],
    useful_s: float,
    *,
    seconds: Sequence[float] | None = None,
    waits_s: Sequence[float] = (),
    wait_counts: Sequence[int] = (),
    **amounts: Any,
) -> WorkDone:
    """So many rows of each shard, which share the time unless it is given; and their waits."""
    per_shard = np.asarray(rows, dtype=np.int64)
    count = int(per_shard.sum())
    shared = (per_shard * (useful_s / max(1, count))).astype(np.float64)
    return WorkDone(
        rows=per_shard,
        seconds=shared if seconds is None else np.array(seconds),
        count=count,
        useful_s=useful_s,
        waits_s=np.array(waits_s, dtype=np.float64),
        wait_counts=np.array(wait_counts or [1] * len(waits_s), dtype=np.int64),
        **{"bytes_in": 0, "bytes_out": 0, "rows_out": 0, **amounts},
    )
