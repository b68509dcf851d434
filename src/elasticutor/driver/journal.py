"""The journal of a run: every notable event, in order, as JSON lines.

Every event has `time` (seconds since 1970), `kind`, and what goes with that kind: its cause, how
long it took and how many bytes it moved.
"""

from __future__ import annotations

import getpass
import json
import logging
import math
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Peer
from elasticutor.transport import messages as say

log = logging.getLogger(__name__)

MOST_EVENTS = 200_000
"""How many are kept in memory, the newest ones; the file has all."""

REPORTS = (do.ReportMove, do.ReportSealed, do.ReportHotShards, say.MoveRefused)
"""Reports that are for the record alone."""


class Journal:
    """An append-only list of events, in memory and in a file."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._file: TextIO | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, **facts: Any) -> None:
        """Append an event; values that JSON does not know are written as text.

        Every line is whole in the file when this returns, so others can read along.
        """
        with self._lock:
            event = {"time": round(time.time(), 6), "kind": kind, **facts}
            self._events.append(event)
            if self._file is not None:
                try:
                    self._file.write(json.dumps(_plain(event), allow_nan=False) + "\n")
                    self._file.flush()
                except OSError as error:  # nothing depends on the file
                    log.warning("the journal %s goes on in memory only: %s", self.path, error)
                    self._file = None

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The events so far, or those of one kind."""
        with self._lock:
            return [event for event in self._events if kind in (None, event["kind"])]

    def close(self) -> None:
        """Close the file; the events stay."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def note_report(journal: Journal, who: Peer, report: Any) -> None:
    """Write what an executor has reported: one of `REPORTS`."""
    match report:
        case do.ReportMove():
            journal.write(
                "shard moved",
                executor=who,
                shard=report.shard,
                source=report.source,
                destination=report.destination,
                remote=report.remote,
                cause=report.cause,
                sync_ms=round(report.sync_s * 1e3, 4),
                migration_ms=round(report.migration_s * 1e3, 4),
                bytes=report.copied + report.migrated,
                bytes_held=report.migrated,
            )
        case do.ReportSealed():
            journal.write(
                "epoch sealed",
                executor=who,
                epoch=report.epoch,
                align_ms=round(report.align_s * 1e3, 4),
                flush_ms=round(report.flush_s * 1e3, 4),
                pause_ms=round(report.pause_s * 1e3, 4),
            )
        case do.ReportHotShards(shards):
            journal.write("hot shards", executor=who, shards=list(shards))
        case say.MoveRefused():
            journal.write(
                "move refused", executor=who, shard=report.shard, cause="asked", reason=report.why
            )


def note_staff(journal: Journal, message: say.Staff) -> None:
    """Write that a task has come or gone."""
    if message.cause:
        kind = "core granted" if message.cause.endswith("started") else "core taken"
        journal.write(
            kind,
            executor=message.who,
            cause=message.cause,
            cores=len(message.tasks),
            seconds=round(message.seconds, 6),
        )


def path_of(run: str) -> Path:
    """Where a run's events go unless its user names a file."""
    base = Path(tempfile.gettempdir()) / f"elasticutor-journals-{getpass.getuser()}"
    base.mkdir(mode=0o700, exist_ok=True)
    return base / f"{run}.jsonl"


def _plain(value: Any) -> Any:
    """The value as JSON has it, so that any reader of JSON can read the line.

    Python's own writer would put out a bare NaN, and refuse a dictionary with numbers of NumPy, or
    tuples, for keys.

    Example:
        >>> _plain({3: (1, 2), "rate": float("inf"), "path": Path("a")})
        {'3': [1, 2], 'rate': 'inf', 'path': 'a'}
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return str(value)
