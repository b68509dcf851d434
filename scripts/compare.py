#!/usr/bin/env python3
"""Runs one command of two commits in turns, and prints the ratio of each figure with its spread.

    scripts/compare.py HEAD~10 -- bench throughput --repeat 1
    scripts/compare.py v1 v2 --pairs 7 --only p50_ms,p99_ms -- bench latency --load 0.6

Each commit is checked out into a temporary worktree, and both run with this checkout's `.venv`. The
order alternates from pair to pair, so that neither commit always has the colder machine. A ratio is
the second commit's figure over the first one's: what is better depends on the figure.
"""

# ruff: noqa: T201, S603, S607 - a command that prints, and runs git and this project

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"


def main(words: Sequence[str]) -> int:
    """Run the comparison that the command line asks for; returns the exit code."""
    options = _options(words)
    if not PYTHON.exists():
        print("compare: there is no .venv; run `make test` or `make demo` first", file=sys.stderr)
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="compare-") as folder:
            return _compare(options, Path(folder))
    except subprocess.TimeoutExpired as error:
        print(f"compare: no end after {error.timeout:g} s; see --timeout", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"compare: {error}\n{error.stderr or ''}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("compare: interrupted", file=sys.stderr)
        return 130


def _options(words: Sequence[str]) -> argparse.Namespace:
    first_line = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(
        prog="scripts/compare.py",
        description=first_line,
        usage="%(prog)s OLD [NEW] [options] -- COMMAND ...",
    )
    parser.add_argument("old", help="a commit")
    parser.add_argument("new", nargs="?", default="HEAD", help="another one (default: HEAD)")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each (default: 5)")
    parser.add_argument("--only", default="", help="figures to show, with commas; default: all")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one run")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    if "--" not in words:
        parser.error("a command of elasticutor must follow `--`, such as: -- bench core")
    cut = list(words).index("--")
    options = parser.parse_args(words[:cut])
    options.command = list(words[cut + 1 :])
    if not options.command:
        parser.error("the command after `--` is empty")
    if options.pairs < 1:
        parser.error(f"--pairs must be 1 or more; got {options.pairs}")
    return options


def _compare(options: argparse.Namespace, folder: Path) -> int:
    runs: dict[str, list[dict[str, float]]] = {"old": [], "new": []}
    with (
        _checked_out(options.old, folder / "old") as old,
        _checked_out(options.new, folder / "new") as new,
    ):
        sides = [("old", old), ("new", new)]
        for number in range(options.pairs):
            for side, tree in sides if number % 2 == 0 else reversed(sides):
                runs[side].append(_run(tree, options.command, options.timeout))
                print(f"pair {number + 1} of {options.pairs}: {side} done", file=sys.stderr)
    only = [name for name in options.only.split(",") if name]
    figures = {
        name: _figure([run[name] for run in runs["old"]], [run[name] for run in runs["new"]])
        for name in runs["old"][0]
        if all(name in run for side in runs.values() for run in side) and (not only or name in only)
    }
    if options.json:
        said = {"old": options.old, "new": options.new, "command": options.command}
        print(json.dumps({**said, "pairs": options.pairs, "figures": figures}, indent=2))
        return 0
    print(f"{'figure':36} {options.old[:12]:>12} {options.new[:12]:>12}   ratio (p10 - p90)")
    for name, figure in figures.items():
        spread = f"{figure['ratio']:.3f} ({figure['ratio_p10']:.3f} - {figure['ratio_p90']:.3f})"
        print(f"{name:36} {figure['old']:12.4g} {figure['new']:12.4g}   {spread}")
    return 0


@contextmanager
def _checked_out(commit: str, folder: Path) -> Iterator[Path]:
    _git("worktree", "add", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder))


def _git(*words: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True)


def _run(tree: Path, command: Sequence[str], timeout_s: float) -> dict[str, float]:
    """Returns the figures that a commit's command prints."""
    ran = subprocess.run(
        [str(PYTHON), "-m", "elasticutor", *command, "--json"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=True,
    )
    return dict(_numbers(json.loads(ran.stdout)))


def _numbers(what: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yields the numbers of nested objects by dotted names; lists are left out."""
    if isinstance(what, dict):
        for key, value in what.items():
            if key != "machine":
                yield from _numbers(value, f"{name}.{key}" if name else key)
    elif isinstance(what, int | float) and not isinstance(what, bool):
        yield name, float(what)


def _figure(old: list[float], new: list[float]) -> dict[str, float]:
    ratios = sorted(n / o for o, n in zip(old, new, strict=True) if o) or [float("nan")]
    return {
        "old": statistics.median(old),
        "new": statistics.median(new),
        "ratio": statistics.median(ratios),
        "ratio_p10": ratios[round(0.1 * (len(ratios) - 1))],
        "ratio_p90": ratios[round(0.9 * (len(ratios) - 1))],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
