"""Trying again what storage refuses: many refusals pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from elasticutor.state.checkpoint import StorageError

T = TypeVar("T")

_PAUSES_S = (0.1, 0.5, 2.0)


def with_patience(work: Callable[[], T]) -> T:
    """Do something, a few times if storage refuses; for threads that may wait.

    Raises:
        StorageError: It has refused each time.

    Example:
        >>> with_patience(lambda: "written")
        'written'
    """
    for pause_s in _PAUSES_S:
        try:
            return work()
        except StorageError:
            time.sleep(pause_s)
    return work()
