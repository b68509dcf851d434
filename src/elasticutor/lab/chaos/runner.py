"""Kills processes of a live run one after the other, and checks that it goes on each time."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from elasticutor.lab.chaos.child import Child, DriverFailedError, DriverStory
from elasticutor.lab.chaos.choices import Choices, Moment
from elasticutor.lab.chaos.driver import NOWHERE, Orders, save_logs
from elasticutor.lab.chaos.kill_points import Kind, Point
from elasticutor.lab.chaos.oracle import judged
from elasticutor.lab.chaos.processes import (
    Lives,
    Victim,
    age_s,
    await_gone,
    described,
    directories_of,
    require_linux,
)
from elasticutor.lab.chaos.result import ChaosResult
from elasticutor.lab.chaos.setting import ChaosSetting
from elasticutor.lab.chaos.topology import ChaosLoad, Shape

_GLANCE_S = 0.005
_POINT_S = 6.0
"""How long a point may take to be reached."""
_LATE_S = 0.1
"""How long a process may still die of a point after that was withdrawn."""
_GONE_S = 20.0
"""How long processes and directories may outlast their driver."""
_EVENT_S = 5.0
"""How long an event may take at which a driver is to be killed."""
_MOST_FAILURES = 3
"""After this many there is no use in going on."""

Progress = Callable[[ChaosResult], object]


@dataclass(frozen=True, slots=True)
class KillDone:
    """Who was killed, and when."""

    time: float
    """In seconds since 1970."""
    kind: Kind
    name: str
    when: str
    """At which point, in words."""

    def __str__(self) -> str:
        return f"the kill of {self.kind} {self.name} ({self.when})"


def _and(struck: Sequence[KillDone]) -> str:
    return " and ".join(map(str, struck))


class ViolatedError(Exception):
    """Something that must never happen, in words."""


def run_chaos(setting: ChaosSetting, progress: Progress = lambda result: None) -> ChaosResult:
    """Kill what the setting says, and compare what is left with a sequential fold.

    `progress` is called with the result so far, after every kill. When the run is interrupted,
    nothing is left behind, either.
    """
    require_linux()
    folder = Path(tempfile.mkdtemp(prefix="elasticutor-chaos-"))
    runner = Runner(setting, folder, progress)
    try:
        runner.run()
    finally:
        runner.close()
        if setting.keep and runner.result.violations:
            runner.result.folder = str(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return runner.result


class Runner:
    """One run of chaos, over as many drivers as it takes."""

    def __init__(self, setting: ChaosSetting, folder: Path, progress: Progress) -> None:
        self._setting = setting
        self._folder = folder
        self._progress = progress
        self._choices = Choices(setting.seed, setting.nodes, setting.cores)
        self._load = ChaosLoad(rate=setting.rate, seed=setting.seed)
        self._shape: tuple[Shape, int, int] = (Shape(), setting.nodes, setting.cores)
        self._child: Child | None = None
        self._children = 0
        self._clusters: list[str] = []
        self._lives = Lives()
        self._failures = 0
        self._began_at = time.monotonic()
        self.result = ChaosResult(seed=setting.seed)

    def run(self) -> None:
        """All kills, the drain, and the comparison."""
        drained = False
        try:
            self._kill_them_all()
            drained = self._drain()
        except ViolatedError as error:
            self._violated(str(error))
        self._leave()
        self.result.seconds = time.monotonic() - self._began_at
        if drained:
            verdict = judged(self._folder / "checkpoint", self._folder / "out", self._load)
            self.result.rows = verdict.rows
            self.result.violated += verdict.violations
        self._progress(self.result)

    def close(self) -> None:
        """End everything at once, whatever is under way."""
        if self._child is not None:
            self._child.kill()
            await_gone(self._child.mark, _GONE_S)
            self._child.close()
            self._child = None

    # Kills

    def _kill_them_all(self) -> None:
        setting, result = self._setting, self.result
        self._launch()
        try:
            self._await_start()
        except DriverFailedError as error:
            self._fail(str(error))
        while result.kills < setting.kills or result.driver_kills < setting.driver_kills:
            try:
                if self._driver_is_due():
                    self._kill_driver()
                else:
                    self._strike()
            except DriverFailedError as error:
                self._fail(str(error))
            self._progress(result)

    def _driver_is_due(self) -> bool:
        """Drivers are killed in between the others, as evenly as can be."""
        setting, result = self._setting, self.result
        if result.driver_kills >= setting.driver_kills:
            return False
        return (
            result.kills >= setting.kills
            or result.kills * (setting.driver_kills + 1)
            >= (result.driver_kills + 1) * setting.kills
        )

    def _strike(self) -> None:
        """Kill a process, perhaps a second one right after, and wait until all is well."""
        blow = self._choices.blow()
        self._pause(blow.wait_s)
        struck: list[KillDone] = []
        with ExitStack() as stack:
            if blow.point is None:
                struck += self._kill_any("at random")
            elif blow.point.recovering:
                struck += self._kill_on_the_way_back(blow.point, stack)
            else:
                struck += self._kill_at(blow.point, stack)
            if blow.second_s is not None and self.result.kills < self._setting.kills:
                self._pause(blow.second_s)
                struck += self._kill_any("during a recovery")
        self._settle(struck)

    def _kill_any(self, when: str) -> list[KillDone]:
        """Kill any process at once; returns nothing if there is none."""
        there = self._there()
        kind = self._choices.kind({kind: list(names) for kind, names in there.items()})
        if kind is None:
            return []
        name = self._choices.one(list(there[kind]))
        try:
            victim = Victim(there[kind][name], self._running.mark)
        except ProcessLookupError:
            return []
        with victim:
            return self._count(kind, name, when, victim, kill=True)

    def _kill_at(self, point: Point, stack: ExitStack) -> list[KillDone]:
        """Have a process die at a point; if none gets there, kill any at once."""
        victim, name = self._doom(point, stack)
        if victim is not None and self._dies_at(point, name, victim, _POINT_S):
            return self._count(point.kind, name, str(point), victim)
        self.result.missed_points[str(point)] += 1
        return self._kill_any("at random")

    def _kill_on_the_way_back(self, point: Point, stack: ExitStack) -> list[KillDone]:
        """Have a process die while all recover from the death of another."""
        victim, name = self._doom(point, stack)
        struck = self._kill_any("at random")
        if victim is None or not struck:
            return struck
        if self._dies_at(point, name, victim, _POINT_S / 2):
            return struck + self._count(point.kind, name, str(point), victim)
        self.result.missed_points[str(point)] += 1
        return struck

    def _doom(self, point: Point, stack: ExitStack) -> tuple[Victim | None, str]:
        """Let a process know where to die; returns which, None if there is none."""
        there, child = self._there()[point.kind], self._running
        if not there:
            return None, ""
        name = self._choices.one(list(there))
        try:  # first, since it may be dead as soon as it knows
            victim = stack.enter_context(Victim(there[name], child.mark))
        except ProcessLookupError:
            return None, name
        answer = child.ask(
            "doom", kind=point.kind, name=name, sends=point.sends, message=point.message
        )
        return (victim if answer["pid"] == victim.pid else None), name

    def _dies_at(self, point: Point, name: str, victim: Victim, timeout_s: float) -> bool:
        """Say whether a doomed process gets to its point in time; spare it otherwise."""
        if self._until(victim.dead, timeout_s):
            return True
        self._running.ask("doom", kind=point.kind, name=name, sends=False, message=NOWHERE)
        return self._until(victim.dead, _LATE_S)

    def _count(
        self, kind: Kind, name: str, when: str, victim: Victim, kill: bool = False
    ) -> list[KillDone]:
        if kind == "node":
            self._lives.died(name, age_s(victim.pid) if kill else 0.0)
        now = time.time()
        if kill:
            victim.kill()
        self.result.kills += 1
        self.result.kills_by_kind[kind] += 1
        self.result.kills_by_point[when] += 1
        return [KillDone(now, kind, name, when)]

    def _there(self) -> dict[Kind, dict[str, int]]:
        """Processes that may be killed."""
        pids = cast("dict[Kind, dict[str, int]]", self._running.ask("pids")["pids"])
        nodes = pids["node"]
        pids["node"] = {n: pid for n, pid in nodes.items() if self._lives.may_die(n, pid)}
        return pids

    # Waiting

    @property
    def _running(self) -> Child:
        assert self._child is not None  # from the start to the end
        return self._child

    def _until(
        self, condition: Callable[[], bool], timeout_s: float, glance_s: float = _GLANCE_S
    ) -> bool:
        """Look what happens until the condition holds; says whether it did in time."""
        until = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > until:
                return False
            self._running.look()
            time.sleep(glance_s)
        return True

    def _pause(self, seconds: float) -> None:
        self._until(lambda: False, seconds)

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        if not self._until(condition, self._setting.timeout_s):
            raise DriverFailedError(f"{what}: not within {self._setting.timeout_s:g} s")

    def _settle(self, struck: list[KillDone]) -> None:
        """Wait until tuples flow again and epochs are committed, and take note how long it took."""
        if not struck:
            return
        story, result = self._running.story, self.result
        last = max(kill.time for kill in struck)
        try:
            self._await(lambda: story.settled(last), "recovery")
        except DriverFailedError as error:
            raise DriverFailedError(f"after {_and(struck)}: {error}") from error
        for kill in struck:
            back = story.times("recovered", kill.time)
            if not back:
                result.unnoticed += 1
                continue
            seconds = max(back) - kill.time
            if seconds > max(result.recoveries_s, default=0.0):
                lost = [event["reason"] for event in story.events("lost", kill.time)]
                result.slowest_recovery = f"{_and(struck)}: " + " | ".join(lost)
            result.recoveries_s.append(seconds)

    # Drivers

    def _await_start(self) -> DriverStory:
        """Wait until a driver has committed epochs."""
        story = self._running.story
        self._await(lambda: bool(story.times("run running")), "the start of a run")
        self._await(lambda: len(story.times("epoch committed")) >= 2, "the first epochs")
        return story

    def _launch(self) -> None:
        self._children += 1
        number = f"{self._children:03d}"
        shape, nodes, cores = self._shape
        orders = Orders(
            folder=str(self._folder),
            journal=str(self._folder / f"journal-{number}.jsonl"),
            load=self._load,
            shape=shape,
            nodes=nodes,
            cores=cores,
            epoch_interval_s=self._setting.epoch_interval_s,
            patience_s=self._setting.timeout_s / 3,
            seed=self._choices.seed(),
            master=self._setting.master,
        )
        self._lives = Lives()
        self._child = Child(orders, secrets.token_hex(8), self._folder / f"driver-{number}.log")

    def _kill_driver(self) -> None:
        """Kill the driver, and the next one while it starts, if that is the moment."""
        left = self._setting.driver_kills - self.result.driver_kills
        moment = self._choices.moment(twice=left > 1)
        killed_at = []
        if moment == "at start":
            killed_at.append(self._kill_driver_now("at random"))
        self._await_moment(moment)
        killed_at.append(self._kill_driver_now(moment))
        story = self._await_start()
        running_at = story.times("run running")[0]
        self.result.driver_recoveries_s += [running_at - moment for moment in killed_at]

    def _kill_driver_now(self, moment: Moment) -> float:
        now = time.time()
        self._bury()
        self.result.driver_kills += 1
        self.result.kills_by_point[f"driver {moment}"] += 1
        self._relaunch()
        return now

    def _await_moment(self, moment: Moment) -> None:
        if moment == "during a recovery":
            self._kill_any("at random")
        elif moment not in ("at random", "at start"):
            counts = self._running.story.counts
            before = counts[moment]
            self._until(lambda: counts[moment] != before, _EVENT_S, _GLANCE_S / 5)
        self._pause(self._choices.pause_s(moment))

    def _relaunch(self) -> None:
        before = self._shape
        self._shape = self._choices.shape()
        self.result.restarts += 1
        self.result.reshaped += self._shape != before
        self._launch()

    def _bury(self) -> None:
        """`kill -9` of the driver; all that it has started must go with it."""
        child = self._running
        child.kill()
        self._end(child)

    def _end(self, child: Child) -> None:
        """The driver has ended: nothing of it may be left."""
        left = await_gone(child.mark, _GONE_S)
        if left:
            names = ", ".join(map(described, sorted(left)))
            self._violated(f"processes outlive their driver by {_GONE_S:g} s: {names}")
            for pid in left:
                with Victim(pid, child.mark) as victim:
                    victim.kill()
        child.story.read()
        counts = child.story.counts
        self.result.epochs += counts["epoch committed"]
        self.result.mishaps += child.story.mishaps()
        self.result.moves += counts["shard moved"]
        self.result.core_changes += counts["core granted"] + counts["core taken"]
        if child.cluster:
            self._clusters.append(child.cluster)
        child.close()
        self._child = None

    def _fail(self, why: str) -> None:
        """The run has failed or hangs: keep what shows why, and go on with another driver."""
        child = self._running
        if child.wait(0.0) is None:
            waits = self._explained(child)
            child.dump()
            save_logs(child.cluster, self._folder)
            why += "".join(f"\n    {line}" for line in waits)
        child.story.read()
        last = "".join(f"\n    {line}" for line in child.story.tail[-12:])
        self._violated(f"{why}\n  last in {child.story.path.name}:{last}")
        self._failures += 1
        self._bury()
        if self._failures >= _MOST_FAILURES:
            raise ViolatedError(f"given up after {self._failures} failures")
        self._relaunch()
        try:
            self._await_start()
        except DriverFailedError as error:
            self._fail(str(error))

    def _explained(self, child: Child) -> list[Any]:
        try:
            return list(child.ask("explain", answer_s=3.0)["waits"])
        except DriverFailedError as error:
            return [str(error)]

    # The end

    def _drain(self) -> bool:
        """Let everything be processed and committed; says whether it was."""
        while True:
            child, timeout_s = self._running, self._setting.timeout_s
            try:
                child.ask("drain", answer_s=timeout_s + 10.0, timeout_s=timeout_s)
            except DriverFailedError as error:
                self._fail(f"the last drain: {error}")
                continue
            code = child.wait(timeout_s)
            if code != 0:
                self._violated(f"the driver's exit code at the end is {code}")
            if code is None:
                child.kill()
            self._end(child)
            return True

    def _leave(self) -> None:
        """Nothing may be left: no process, and no directory."""
        if self._child is not None:
            self._bury()
        until = time.monotonic() + _GONE_S
        while (left := directories_of(self._clusters)) and time.monotonic() < until:
            time.sleep(_GLANCE_S)
        if left:
            self._violated(f"directories are left behind: {', '.join(map(str, left))}")

    def _violated(self, what: str) -> None:
        self.result.violated.append(what)
