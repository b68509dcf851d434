"""The same work on a peer, Bytewax: so that a figure of ours can be read beside one of theirs.

The peer runs in processes of its own on this machine, connected over loopback; each of them is one
core's worth of a cluster, and keys go to them by hash. They get the tuples of our `Generator`, with
the due times of the same schedule, and do the same work per tuple. A tuple's latency counts from
when it was due until its output is with the peer's sink. What runs in those processes is in
`elasticutor.lab.bench.peer.bytewax_worker`.

All of them end: by themselves with their stream, by a limit of their own, or killed from here.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from elasticutor.lab.bench.figures import Spread
from elasticutor.lab.bench.live import BenchError, notes, spread_as_dict
from elasticutor.lab.bench.record import Latency

PEER = "bytewax"
EPOCH_S = 2.0
"""With checkpoints: from one epoch to the next, on both sides."""

_PATIENCE_S = 60.0
_ENDING_S = 5.0
_SAID_BYTES = 2000


@dataclass(frozen=True, slots=True)
class PeerWork:
    """What is to be done: the tuples of a `Generator`, and what each of them takes."""

    kind: Literal["burn", "sleep", "count"]
    """CPU time burnt, time slept, or nothing but a count and a sum per key."""
    cost_s: float
    keys: int
    zipf: float
    seed: int
    rate: float | None = None
    """Tuples per second; None: as fast as they are taken."""
    seconds: float | None = None
    rows: int | None = None
    payload: int = 128
    omega: float = 0.0


@dataclass(frozen=True, slots=True)
class PeerSetting:
    """How the peer is set up to do it."""

    processes: int
    batch_rows: int
    """Tuples that its source gives at once, at most."""
    threads: int = 1
    """Workers in each process."""
    checkpoint: bool = False
    """Whether it snapshots its state, every `EPOCH_S`."""


@dataclass(frozen=True, slots=True)
class PeerRun:
    """What came out of one run."""

    due_s: npt.NDArray[np.float64]
    """When each tuple was due, in seconds after the first one; in the order of arrival."""
    arrived_s: npt.NDArray[np.float64]
    """When its output was with the sink."""

    @property
    def rows_s(self) -> float:
        """Tuples per second, from the first tuple asked for to the last output."""
        return len(self.arrived_s) / max(float(self.arrived_s.max(initial=0.0)), 1e-9)

    def latency(self, start_s: float, end_s: float) -> Latency:
        """Of the tuples that were due between two times."""
        return Latency.of(self.due_s, self.arrived_s, start_s, end_s)

    def percentile_ms(self, percent: float, start_s: float, end_s: float) -> float:
        """How old the tuples that were due between two times were at the sink."""
        inside = (self.due_s >= start_s) & (self.due_s < end_s)
        if not inside.any():
            raise BenchError(f"tuples of {PEER}", f"be due from {start_s:g} s on", 0)
        return float(np.percentile((self.arrived_s - self.due_s)[inside], percent)) * 1e3


def require_peer(name: str) -> None:
    """Refuse a peer that is not known, or not installed.

    Raises:
        BenchError: It says how to install it.
    """
    if name != PEER:
        raise BenchError("peer", f"be {PEER}", name)
    if peer_version() is None:
        hint = "it is for development only: pip install --group peer, or pip install bytewax"
        raise BenchError(PEER, "be installed", "nothing of that name", hint)


def peer_version() -> str | None:
    """Which version is installed, if one is."""
    try:
        return version(PEER)
    except PackageNotFoundError:
        return None


def run_peer(work: PeerWork, setting: PeerSetting) -> PeerRun:
    """Run the peer once, from start to end of its stream.

    Raises:
        BenchError: One of its processes failed, or it took far longer than its stream.
    """
    limit_s = (work.seconds or 0.0) * 2 + _PATIENCE_S
    with notes() as folder:
        addresses = _addresses(setting.processes)
        spec = {
            "work": asdict(work),
            "setting": asdict(setting),
            "folder": str(folder),
            "addresses": addresses,
            "epoch_s": EPOCH_S,
            "limit_s": limit_s,
        }
        words = [
            sys.executable,
            "-m",
            "elasticutor.lab.bench.peer.bytewax_worker",
            json.dumps(spec),
        ]
        with _processes([[*words, str(n)] for n in range(setting.processes)], folder) as started:
            _wait(started, time.monotonic() + limit_s, folder)
        return _load(folder, setting)


def best_of(
    settings: Sequence[PeerSetting],
    measure: Callable[[PeerSetting], float],
    progress: Callable[[str], None],
) -> tuple[PeerSetting, list[dict[str, Any]]]:
    """The setting with the smallest figure, and what each had.

    Example:
        >>> settings = [PeerSetting(2, rows) for rows in (1, 10, 100)]
        >>> best, tried = best_of(settings, lambda s: abs(s.batch_rows - 12.0), lambda what: None)
        >>> best.batch_rows, [one["figure"] for one in tried]
        (10, [11.0, 2.0, 88.0])
    """
    figures = []
    for setting in settings:
        progress(f"{PEER}: trying {described(setting)}")
        figures.append(measure(setting))
    tried = [
        {**_told(setting), "figure": round(figure, 3)}
        for setting, figure in zip(settings, figures, strict=True)
    ]
    return settings[figures.index(min(figures))], tried


def described(setting: PeerSetting) -> str:
    """A setting in words.

    Example:
        >>> described(PeerSetting(2, 100))
        '2 processes, batches of 100'
        >>> described(PeerSetting(1, 10, threads=8))
        '1 process of 8 workers, batches of 10'
    """
    count = "1 process" if setting.processes == 1 else f"{setting.processes} processes"
    workers = f" of {setting.threads} workers" if setting.threads > 1 else ""
    return f"{count}{workers}, batches of {setting.batch_rows}"


@dataclass(frozen=True, slots=True)
class Beside:
    """A figure of ours beside the peer's, run in turns."""

    setting: PeerSetting
    """The peer's best."""
    tried: list[dict[str, Any]]
    ours: dict[str, list[float]]
    """Each figure of ours, round by round."""
    theirs: dict[str, list[float]]

    def ratio(self, name: str) -> Spread:
        """Ours over theirs, by pairs of the same round.

        Example:
            >>> two = Beside(PeerSetting(2, 1), [], {"p50_ms": [2.0, 3.0]}, {"p50_ms": [4.0, 3.0]})
            >>> two.ratio("p50_ms").median
            0.75
        """
        pairs = zip(self.ours[name], self.theirs[name], strict=True)
        return Spread.of([ours / max(theirs, 1e-9) for ours, theirs in pairs])

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        figures: dict[str, Any] = {}
        for name, values in self.theirs.items():
            figures |= spread_as_dict(f"theirs_{name}", Spread.of(values))
            figures |= spread_as_dict(f"ours_{name}", Spread.of(self.ours[name]))
            figures |= spread_as_dict(f"ratio_{name}", self.ratio(name))
        rounds = {
            "ours": {name: _rounded(values) for name, values in self.ours.items()},
            "theirs": {name: _rounded(values) for name, values in self.theirs.items()},
        }
        return {
            "peer": PEER,
            "version": peer_version(),
            **figures,
            "rounds": rounds,
            "setting": _told(self.setting),
            "tried": self.tried,
        }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 3) for value in values]


def _told(setting: PeerSetting) -> dict[str, Any]:
    return asdict(setting)


def with_checkpoint(settings: Sequence[PeerSetting], checkpoint: bool) -> list[PeerSetting]:
    """The same settings with snapshots, or without."""
    return [replace(setting, checkpoint=checkpoint) for setting in settings]


# Processes


def _addresses(count: int) -> list[str]:
    """Free ports on loopback; one process needs none."""
    if count == 1:
        return []
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


@contextmanager
def _processes(
    commands: Sequence[Sequence[str]], folder: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start them, and leave none behind."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            with _said(folder, number).open("wb") as said:
                process = subprocess.Popen(  # noqa: S603 - this very Python
                    command, stdin=subprocess.DEVNULL, stdout=said, stderr=said
                )
            started.append(process)
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _ENDING_S
        for process in started:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(started: Sequence[subprocess.Popen[bytes]], deadline: float, folder: Path) -> None:
    """Until all have ended well; as soon as one has not, it is over."""
    waiting = dict(enumerate(started))
    while waiting:
        for number, process in list(waiting.items()):
            code = process.poll()
            if code is None:
                continue
            if code:
                said = _said(folder, number).read_bytes()[-_SAID_BYTES:].decode(errors="replace")
                raise BenchError(f"{PEER} process {number}", "end well", f"code {code}", said)
            del waiting[number]
        if waiting and time.monotonic() > deadline:
            raise BenchError(PEER, "end in time", f"processes {sorted(waiting)} still run")
        time.sleep(0.05)


def _said(folder: Path, number: int) -> Path:
    return folder / f"said-{number}"


def _load(folder: Path, setting: PeerSetting) -> PeerRun:
    began = float((folder / "began").read_text())
    dues, arrivals = [], []
    for number in range(setting.processes):
        with np.load(folder / f"sink-{number}.npz") as noted:
            dues.append(noted["due_s"])
            arrivals.append(np.repeat(noted["arrivals"], noted["rows"]) - began)
    due_s, arrived_s = np.concatenate(dues), np.concatenate(arrivals)
    order = np.argsort(arrived_s, kind="stable")
    return PeerRun(due_s[order], arrived_s[order])
