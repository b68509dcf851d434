"""The same work on a peer, Bytewax: so that a figure of ours can be read beside one of theirs.

The peer runs in processes of its own (`bytewax_worker`), connected over loopback; each of them is
one core's worth of a cluster, and keys go to them by hash. They get the tuples of our `Generator`,
with the due times of the same schedule, and do the same work per tuple. All of them end: by
themselves with their stream, by a limit of their own, or killed from here.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from elasticutor.lab.bench.declare import Figures, Samples, cells, percentiles, ratios
from elasticutor.lab.bench.live import Bench, BenchError, notes, version_of
from elasticutor.lab.bench.record import Recording
from elasticutor.lab.options import BadOptionError
from elasticutor.sources import Generator

PEER = "bytewax"
EPOCH_S = 2.0
"""With checkpoints: from one epoch to the next, on both sides."""

TRIAL: dict[str, Any] = {"seconds": 4.0, "warm_up": 1.0}
"""How long a setting of the peer is tried out."""

_WORKER = "elasticutor.lab.bench.peer.bytewax_worker"
_PATIENCE_S = 60.0
_ENDING_S = 5.0
_SAID_BYTES = 2000


@dataclass(frozen=True, slots=True)
class PeerWork:
    """What is to be done: some tuples, and what each of them takes."""

    kind: Literal["burn", "sleep", "count"]
    """CPU time burnt, time slept, or nothing but a count and a sum per key."""
    tuples: Generator
    cost_s: float = 0.0


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


def require_peer(name: str) -> None:
    """Refuse a peer that is not known, or not installed; no name, no peer."""
    if name not in ("", PEER):
        raise BadOptionError("--beside", f"{name!r} is not {PEER}")
    if name and version_of(PEER) is None:
        hint = "it is for development only: pip install --group peer, or pip install bytewax"
        raise BenchError(PEER, "be installed", "nothing of that name", hint)


def run_peer(work: PeerWork, setting: PeerSetting) -> Recording:
    """Run the peer once, from start to end of its stream.

    A `BenchError` if one of its processes fails, or takes far longer than the stream.
    """
    limit_s = (work.tuples.seconds or 0.0) * 2 + _PATIENCE_S
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
        words = [sys.executable, "-m", _WORKER, json.dumps(spec)]
        with _processes([[*words, str(n)] for n in range(setting.processes)], folder) as started:
            _wait(started, time.monotonic() + limit_s, folder)
        return Recording.load(folder, [f"sink-{n}.npz" for n in range(setting.processes)])


def settings_of(cores: int, batches: Sequence[int], checkpoint: bool) -> list[PeerSetting]:
    """What is tried out: as many processes as we have tasks, or one more; batches of each size."""
    return [
        PeerSetting(processes, rows, checkpoint=checkpoint)
        for processes in (cores, cores + 1)
        for rows in batches
    ]


def best_of(
    settings: Sequence[PeerSetting], measure: Callable[[PeerSetting], float], bench: Bench
) -> Beside:
    """The peer with the setting that has the smallest figure, and what each had."""
    tried = []
    for setting in settings:
        bench.say(f"{PEER}: trying {described(setting)}")
        tried.append(asdict(setting) | {"figure": round(measure(setting), 3)})
    figures = [one["figure"] for one in tried]
    return Beside(setting=settings[figures.index(min(figures))], tried=tried)


def described(setting: PeerSetting) -> str:
    """A setting in words: "1 process of 8 workers, batches of 10"."""
    count = "1 process" if setting.processes == 1 else f"{setting.processes} processes"
    workers = f" of {setting.threads} workers" if setting.threads > 1 else ""
    return f"{count}{workers}, batches of {setting.batch_rows}"


class Beside(Figures):
    """Figures of ours beside the peer's, run in turns."""

    setting: PeerSetting
    """The peer's best."""
    tried: list[dict[str, Any]]
    ours: dict[str, Samples] = field(default_factory=dict)
    """By figure, round by round."""
    theirs: dict[str, Samples] = field(default_factory=dict)
    form: str = ",.2f"
    """Of the figures in tables."""

    def as_dict(self) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for name, theirs in self.theirs.items():
            ours = self.ours[name]
            figures |= percentiles(f"theirs_{name}", theirs) | percentiles(f"ours_{name}", ours)
            figures |= percentiles(f"ratio_{name}", ratios(ours, theirs))
        rounds = {
            side: {name: [round(value, 3) for value in of[name]] for name in self.theirs}
            for side, of in (("ours", self.ours), ("theirs", self.theirs))
        }
        return {
            "peer": PEER,
            "version": version_of(PEER),
            **figures,
            "rounds": rounds,
            "setting": asdict(self.setting),
            "tried": self.tried,
        }

    def lines(self) -> Iterator[Sequence[str]]:
        for name, theirs in self.theirs.items():
            yield f"{PEER}: {_plain(name)}", *cells(theirs, self.form)
        for name, theirs in self.theirs.items():
            ratio = ratios(self.ours[name], theirs)
            yield f"ours over theirs: {_plain(name)}", *cells(ratio, ".2f")

    def remarks(self) -> Iterator[str]:
        yield f"{PEER} at its best: {described(self.setting)}"


def _plain(name: str) -> str:
    return name.removesuffix("_ms").removesuffix("_rows_s").replace("_", " ")


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
