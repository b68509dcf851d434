"""The runner's end of a driver: its process, what it says, and what its journal has."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from elasticutor.lab.chaos.doom import MAILBOX
from elasticutor.lab.chaos.driver import Orders
from elasticutor.lab.chaos.processes import MARK
from elasticutor.transport.mailbox import FACTORY

_ANSWER_S = 15.0
_PHASES = ("lost", "recovered", "epoch committed", "run running", "failure", "run drained")


class DriverFailedError(Exception):
    """The driver says that its run has failed, or is silent, or gone: in words."""


class DriverStory:
    """What a run's journal has, read along."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: Counter[str] = Counter()
        self.tail: list[str] = []
        """The last lines, to find out what went wrong."""
        self._at = 0
        self._events: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _PHASES}

    def read(self) -> None:
        """Take in what has been written since the last time."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                news = file.read()
        except FileNotFoundError:
            return
        whole = news[: news.rfind(b"\n") + 1]  # the driver may be writing, or have been killed
        self._at += len(whole)
        for line in whole.decode().splitlines():
            event = json.loads(line)
            kind = event["kind"]
            self.counts[kind] += 1
            if kind in self._events:
                self._events[kind].append(event)
            self.tail = [*self.tail[-40:], line]

    def times(self, kind: str, since: float = 0.0) -> list[float]:
        """When something has happened, from some moment on."""
        return [event["time"] for event in self.events(kind, since)]

    def settled(self, since: float) -> bool:
        """Whether all is well again after a kill.

        Two epochs that were committed since prove it: the second began after the kill. If a process
        was lost, then also one that was committed after the recovery. A loss that nothing had to be
        done about is not recovered from: then several epochs must have been committed after it.
        """
        commits = self.times("epoch committed", since)
        if len(commits) < 2:
            return False
        lost, back = self.times("lost", since), self.times("recovered", since)
        if not lost:
            return True
        if back and back[-1] >= lost[-1]:
            return commits[-1] >= back[-1]
        return sum(moment > lost[-1] for moment in commits) >= 3

    def mishaps(self) -> list[str]:
        """Losses that no kill explains.

        A killed process ends by a signal; one that ends by itself has an exit code.
        """
        signs = ("exit code", "no answer within", "has not come up", "not heard of")
        reasons = [event["reason"] for event in self._events["lost"]]
        return [reason for reason in reasons if any(sign in reason for sign in signs)]

    def events(self, kind: str, since: float = 0.0) -> list[dict[str, Any]]:
        """What has happened, from some moment on."""
        return [event for event in self._events[kind] if event["time"] >= since]


class Child:
    """A driver's process."""

    def __init__(self, orders: Orders, mark: str, log: Path) -> None:
        self.mark = mark
        self.cluster = ""
        """The id of its cluster, as soon as that is up."""
        self.story = DriverStory(Path(orders.journal))
        self._heard: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        words = msgspec.json.encode(orders).decode()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - this very Python
                [sys.executable, "-m", "elasticutor.lab.chaos.driver", words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {MARK: mark, FACTORY: MAILBOX},
                start_new_session=True,  # Ctrl-C is for the runner
            )
        threading.Thread(target=self._listen, name="driver", daemon=True).start()

    def look(self) -> None:
        """Take in what has happened; raises `DriverFailedError` if the run has failed."""
        self.story.read()
        with suppress(queue.Empty):
            while True:
                self._take(self._heard.get_nowait())

    def ask(self, what: str, answer_s: float = _ANSWER_S, **facts: Any) -> dict[str, Any]:
        """Have it do something; returns its answer, or raises `DriverFailedError`."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then it has said why, or is gone
            self._process.stdin.write(json.dumps({"do": what, **facts}).encode() + b"\n")
            self._process.stdin.flush()
        until = time.monotonic() + answer_s
        while True:
            try:
                message = self._heard.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise DriverFailedError(f"no answer to {what!r} within {answer_s:g} s") from None
            self._take(message)
            if message is not None and message["kind"] in (what, f"{what}ed"):
                return message

    def dump(self) -> None:
        """Have it write what its threads are doing to its log."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        """`kill -9`."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end; returns its exit code, None if it has not ended."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Close the pipes."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._heard.put(json.loads(line))
        self._heard.put(None)

    def _take(self, message: dict[str, Any] | None) -> None:
        if message is None:
            raise DriverFailedError(f"the driver has ended with code {self._process.wait()}")
        if message["kind"] == "cluster":
            self.cluster = message["cluster"]
        if message["kind"] == "failed":
            raise DriverFailedError(f"the run has failed: {message['why']}")
