#!/usr/bin/env python3
"""Run the tests as parts side by side, and print how long they took.

    .venv/bin/python scripts/suite.py quick    # what needs neither Spark nor a cluster's processes
    .venv/bin/python scripts/suite.py test     # every claim once
    .venv/bin/python scripts/suite.py matrix   # the exhaustive rest: every kill point, every seed
    .venv/bin/python scripts/suite.py test -- -k epoch   # options for pytest

Each part is a pytest of its own. Tests of processes and of Spark wait much of their time, so they
share the cores with those that only compute. Every test is in one part, by its markers.
"""

# ruff: noqa: T201 - a command that prints

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS = 5
"""The exit code of a pytest that has selected none."""


@dataclass(frozen=True)
class Part:
    """Tests that run one after the other in one process."""

    name: str
    marked: str
    where: tuple[str, ...] = ()

    def command(self, options: list[str]) -> list[str]:
        """Return the command that runs it."""
        pytest = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider"]
        return [*pytest, "-m", self.marked, *self.where, *options]


CLAIMS = "not matrix"
SHORT = "not seeds and not matrix"
PURE, LIVE, SPARK = "not live and not spark and not jvm", "live", "spark"
JVM = "jvm and not spark"
HALF = ("tests/core", "tests/state", "src")
PARTS = {
    "quick": (
        Part("core", f"{PURE} and {SHORT}", HALF),
        Part("rest", f"{PURE} and {SHORT}", ("tests", *(f"--ignore={path}" for path in HALF))),
    ),
    "test": (
        Part("spark", f"{SPARK} and {CLAIMS}"),
        Part("live", f"{LIVE} and {CLAIMS}"),
        Part("jvm", f"{JVM} and {CLAIMS}"),
        Part("pure", f"{PURE} and {CLAIMS}"),
    ),
    "matrix": (
        Part("spark", f"{SPARK} and matrix"),
        Part("live", f"{LIVE} and matrix"),
        Part("jvm", f"{JVM} and matrix"),
        Part("pure", f"{PURE} and matrix"),
    ),
}


class Running:
    """A part at work; its lines are printed as they come, under its name."""

    def __init__(self, part: Part, options: list[str], width: int) -> None:
        self.part = part
        self._begun = time.monotonic()
        self._prefix = f"{part.name:{width}} | "
        self.process = subprocess.Popen(  # noqa: S603 - this Python
            part.command(options),
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._printer = threading.Thread(target=self._print)
        self._printer.start()

    def _print(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            print(f"{self._prefix}{line}", end="", flush=True)

    def ended(self) -> int:
        """Wait for its end; return its exit code."""
        code = self.process.wait()
        self._printer.join()
        print(f"{self._prefix}ended after {clock(time.monotonic() - self._begun)}", flush=True)
        return code


def clock(seconds: float) -> str:
    """Return minutes and seconds.

    Example:
        >>> clock(421.7)
        '7:02'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def run(what: str, options: list[str]) -> bool:
    """Run all parts; return whether all of them passed."""
    begun = time.monotonic()
    width = max(len(part.name) for part in PARTS[what])
    parts = [Running(part, options, width) for part in PARTS[what]]
    try:
        codes = [part.ended() for part in parts]
    except KeyboardInterrupt:
        # The terminal interrupts the whole group: each pytest ends by itself, fixtures included.
        codes = [part.ended() for part in parts]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    fine = {0, NO_TESTS} if options else {0}
    failed = [part.part.name for part, code in zip(parts, codes, strict=True) if code not in fine]
    took = f"{clock(time.monotonic() - begun)} on {os.cpu_count()} cores"
    cpu = f"{clock(used.ru_utime + used.ru_stime)} of processor time"
    print(f"make {what}: {f'FAILED in {failed}' if failed else 'passed'}, {took}, {cpu}")
    return not failed


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=PARTS)
    parser.add_argument("options", nargs="*", help="for pytest, after --")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return int(not run(given.what, given.options))


if __name__ == "__main__":
    sys.exit(main())
