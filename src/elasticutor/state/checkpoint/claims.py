"""Claims: one run at a time has a checkpoint, and the next knows when it may have it.

A claim is a file of its own, named by a number and by chance. A run that wants the checkpoint
writes the next number, then looks: if another has written the same one, both take theirs back and
try again. So no two ever hold the same number, whatever the storage, as long as a file that was
written is seen by all who list the folder afterwards.

A later claim wins. The holder of an earlier one looks before and after each manifest that it
writes; what it commits after the next claim's first look is void, and it learns so.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Self

from elasticutor.errors import Words
from elasticutor.state.checkpoint.errors import AbsentError, DamagedError, InUseError, LayoutError
from elasticutor.state.checkpoint.location import Location
from elasticutor.state.checkpoint.manifests import checked, rendered

CLAIMS: Final = "claims"
_NAME: Final = re.compile(r"(?P<number>\d{6,})-(?P<nonce>[0-9a-f]{8})\.json")
_KEPT: Final = 4  # old ones, to find out what happened
_POLL_S: Final = 0.05
_ABSENCES: Final = 10  # how many looks in a row must find no claim before it counts as taken back

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a checkpoint."""

    run: str
    host: str
    boot: str
    """Which start of the machine, and which space of process numbers on it; empty: not known."""
    pid: int
    born: str  # when the process began, since numbers are used again; empty: not known

    @classmethod
    def here(cls, run: str) -> Self:
        """This very process."""
        pid = os.getpid()
        return cls(run, socket.gethostname(), _boot(), pid, _born(pid))

    def is_gone(self) -> bool:
        """Whether it is certain that it can do no more: it has died, or it is this process."""
        here = Holder.here(self.run)
        if not self.boot or (self.host, self.boot) != (here.host, here.boot):
            return False
        return self == here or not _is_alive(self.pid, self.born)

    def __str__(self) -> str:
        return f"run {self.run!r} on {self.host}, process {self.pid}"


@dataclass(frozen=True, slots=True)
class Claim:
    """That a run has the checkpoint, and when it last said so."""

    number: int
    nonce: str
    holder: Holder
    lease_s: float
    renewed: int = 0  # how often it was said again; a clock would have to be the same everywhere
    released: bool = False

    @property
    def path(self) -> str:
        """Where in the checkpoint it is."""
        return f"{CLAIMS}/{self.number:06d}-{self.nonce}.json"

    def as_bytes(self) -> bytes:
        """As it is in its file."""
        own = {"lease_s": self.lease_s, "renewed": self.renewed, "released": self.released}
        return rendered(asdict(self.holder) | own)

    @classmethod
    def read(cls, location: Location, name: str) -> Self | None:
        """The claim in a file; None if it is gone, or cannot be read."""
        found = _NAME.fullmatch(name)
        assert found is not None
        try:
            data = location.read(f"{CLAIMS}/{name}").to_pybytes()
            body = checked(data, name)
            holder = Holder(**{part: body[part] for part in Holder.__slots__})
            known = {part: body[part] for part in ("lease_s", "renewed", "released")}
        except (AbsentError, DamagedError, LayoutError, KeyError):
            return None
        return cls(int(found["number"]), found["nonce"], holder, **known)


class Lease:
    """This run's claim on a checkpoint; only `Checkpoint` makes one."""

    def __init__(self, location: Location, claim: Claim) -> None:
        self._location = location
        self._claim = claim

    @classmethod
    def take(
        cls, location: Location, run: str, *, lease_s: float, timeout_s: float, least: int, say: Say
    ) -> Self:
        """Claim the checkpoint with a number above `least`; waits for the claim before it to end.

        `InUseError` says that its run renewed it within `timeout_s`.
        """
        until = time.monotonic() + timeout_s
        holder = Holder.here(run)
        while True:
            names = _names(location)
            if names:
                _wait_for(location, names[-1], lease_s, until, say)
            number = max(least, _number(names[-1]) if names else 0) + 1
            claim = Claim(number, secrets.token_hex(4), holder, lease_s)
            location.write(claim.path, claim.as_bytes())
            rivals = [name for name in _names(location) if _number(name) >= number]
            if rivals == [claim.path.rpartition("/")[2]]:
                return cls(location, claim)
            location.remove(claim.path)
            if time.monotonic() > until:
                hint = "start one run at a time"
                got = Words("others that want it at the same time")
                raise InUseError(f"checkpoint {location.uri}", "be free", got, hint)
            time.sleep(_POLL_S * (1 + secrets.randbelow(10)))

    @property
    def number(self) -> int:
        """Of the claim."""
        return self._claim.number

    def require(self) -> None:
        """Raise `InUseError` if another run has taken the checkpoint over."""
        own = self._claim.path.rpartition("/")[2]
        names = _names(self._location)
        # One of the same number will be taken back: its writer sees this one.
        later = [name for name in names if _number(name) > self.number]
        if not later and own in names:
            return
        taker = Claim.read(self._location, later[-1]) if later else None
        got = str(taker.holder) if taker else "a claim that was removed or is unreadable"
        hint = "this run had not renewed its claim in time; what it has not committed is void"
        must = f"still belong to run {self._claim.holder.run!r}"
        raise InUseError(
            f"checkpoint {self._location.uri}", must, Words(f"taken over by {got}"), hint
        )

    def renew(self) -> None:
        """Say again that this run has it; raises as `require` does."""
        self.require()
        self._write(replace(self._claim, renewed=self._claim.renewed + 1))

    def release(self) -> None:
        """Let the next run have it at once."""
        if not self._claim.released:
            self._write(replace(self._claim, released=True))

    def clear_away(self) -> None:
        """Remove claims of long ago, and what was left where making one was interrupted."""
        for name in _names(self._location):
            if _number(name) < self.number - _KEPT:
                self._location.remove(f"{CLAIMS}/{name}")
        for name, meant in self._location.unfinished(CLAIMS):
            if _NAME.fullmatch(meant) and _number(meant) < self.number:
                self._location.remove(f"{CLAIMS}/{name}")

    def _write(self, claim: Claim) -> None:
        self._location.write(claim.path, claim.as_bytes())
        self._claim = claim


def _wait_for(location: Location, name: str, lease_s: float, until: float, say: Say) -> None:
    where = f"checkpoint {location.uri}"
    first = Claim.read(location, name)
    if first is not None and (first.released or first.holder.is_gone()):
        return
    who = str(first.holder) if first else f"a run whose claim {name} cannot be read"
    lease = max(lease_s, first.lease_s) if first else lease_s
    hint = "stop that run, or give this one another location"
    say(f"{where} is claimed by {who}; waiting {lease:g} s for a sign of it")
    over, absent = time.monotonic() + lease, 0
    while (now := time.monotonic()) < over:
        if now > until:
            raise InUseError(where, "be free", Words(f"a claim by {who} of {lease:g} s"), hint)
        time.sleep(min(_POLL_S, max(0.0, over - now)))
        seen = Claim.read(location, name)
        if seen is None:
            absent = absent + 1 if name not in _names(location) else 0
            if absent >= _ABSENCES:
                return  # taken back
            continue  # being written: some storage removes a file before it renames another to it
        absent = 0
        if seen.released or seen.holder.is_gone():
            return
        if first is not None and seen.renewed != first.renewed:
            raise InUseError(where, "be free", Words(str(seen.holder)), hint)
        first = seen
    say(f"{where}: no sign of {who}; taking it over")


def _names(location: Location) -> list[str]:
    return sorted(filter(_NAME.fullmatch, location.names(CLAIMS)), key=lambda n: (_number(n), n))


def _number(name: str) -> int:
    return int(name.partition("-")[0])


def _boot() -> str:
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def _born(pid: int) -> str:
    """When a process began, in ticks since the machine did; empty if that is not known."""
    fields = _facts(pid)
    return fields[19] if len(fields) > 19 else ""


def _is_alive(pid: int, born: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's, but there
    fields = _facts(pid)
    if len(fields) <= 19:
        return True  # not ours to look at
    # A zombie, which was not waited for, does no more either.
    return fields[0] not in "ZX" and fields[19] == born


def _facts(pid: int) -> list[str]:
    """What Linux says of a process; the name before it, in parentheses, may contain anything."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
