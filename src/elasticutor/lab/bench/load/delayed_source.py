"""A source that begins after a while: for surges."""

from __future__ import annotations

import math
import time
from typing import Any

from elasticutor.errors import BadValueError
from elasticutor.lab.bench.record import WrappedReader
from elasticutor.sources import Offer, Reader, Source


class DelayedSource(Source):
    """Another source, which is silent for `delay_s` first, from when it is first asked."""

    def __init__(self, source: Source, delay_s: float) -> None:
        if not delay_s >= 0:
            raise BadValueError("delay_s", "be at least 0", delay_s)
        self.schema = source.schema
        self.tasks = source.tasks
        self._source = source
        self._delay_s = delay_s

    def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
        """The other source's reader, held back."""
        return _LateReader(self._source.open(task, tasks, offset), self._delay_s)


class _LateReader(WrappedReader):
    def __init__(self, reader: Reader, delay_s: float) -> None:
        super().__init__(reader)
        self._delay_s = delay_s
        self._begins = math.inf

    @property
    def rate(self) -> float | None:  # type: ignore[override]
        """As the other, and nothing before it has begun or after its end."""
        begun = self._begun(time.time()) and not self._reader.exhausted
        return self._reader.rate if begun else 0.0

    def poll(self, now: float, max_rows: int) -> Offer | None:
        """What the other has, once it has begun."""
        return self._reader.poll(now, max_rows) if self._begun(now) else None

    def wait_s(self, now: float) -> float:
        """Until it begins, or as the other."""
        return self._reader.wait_s(now) if self._begun(now) else self._begins - now

    def _begun(self, now: float) -> bool:
        if math.isinf(self._begins):
            self._begins = now + self._delay_s
        return now >= self._begins
