"""What a checkpoint has, in figures: its epochs, who has claimed it, and whether it is whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from elasticutor.core.protocol.ids import Attempt, Epoch
from elasticutor.state.checkpoint.claims import CLAIMS, Claim, Holder, _names
from elasticutor.state.checkpoint.errors import STORAGE_FAULTS, CheckpointError
from elasticutor.state.checkpoint.files import check
from elasticutor.state.checkpoint.forms import StateFile, StateForm
from elasticutor.state.checkpoint.location import Location
from elasticutor.state.checkpoint.manifests import Listed, Manifest, epochs_of, names_of
from elasticutor.state.inspection.reading import StateReader, has_vanished

_THREADS: Final = 8

Liveness = Literal["released", "live", "dead", "unknown"]
"""Of a claim; unknown if its holder is on another machine, or the claim cannot be read."""


@dataclass(frozen=True, slots=True)
class OperatorKept:
    """How much state of an operator an epoch has."""

    form: StateForm
    rows: int  # in all of its files: of a key that changed several times, several
    keys: int | None  # None if that takes reading the files
    files: int
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class EpochKept:
    """An epoch of a checkpoint."""

    epoch: Epoch
    attempt: Attempt
    current: bool  # whether it can be gone back to; not if it is void: a later run began before it
    written: datetime | None  # by the file's time; None if the storage has none
    error: CheckpointError | None  # what is the matter with its manifest; then the rest is empty
    run: str = ""
    topology: str = ""
    operators: tuple[OperatorKept, ...] = ()
    sources: Mapping[str, Any] | None = None  # offsets, by source task
    sinks: Mapping[str, Any] | None = None  # what sinks have noted, by name


@dataclass(frozen=True, slots=True)
class Claimed:
    """Who has, or had, a checkpoint."""

    number: int
    liveness: Liveness
    holder: Holder | None  # None if the claim cannot be read
    lease_s: float
    renewed: datetime | None  # by the file's time; None if the storage has none


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not as it was written."""

    path: str
    epochs: tuple[Epoch, ...]  # those that cannot be gone back to because of it
    error: CheckpointError


@dataclass(frozen=True, slots=True)
class Checked:
    """What `check_files` has found."""

    epochs: int = 0
    files: int = 0
    size: int = 0  # bytes of the files
    faults: tuple[Fault, ...] = ()


def epochs_kept(reader: StateReader) -> list[EpochKept]:
    """All epochs that there are manifests of, newest first; refuses a place without any."""
    return [_kept(reader.location, listed) for listed in _listed(reader)]


def claimed_by(location: Location) -> Claimed | None:
    """The newest claim; None if there is none."""
    names = _names(location)
    if not names:
        return None
    path = f"{CLAIMS}/{names[-1]}"
    renewed = _written(location, path)
    claim = Claim.read(location, names[-1])
    if claim is None:
        return Claimed(int(names[-1].partition("-")[0]), "unknown", None, 0.0, renewed)
    return Claimed(claim.number, _liveness(claim), claim.holder, claim.lease_s, renewed)


def check_files(
    reader: StateReader, progress: Callable[[Checked, int], None] = lambda so_far, total: None
) -> Checked:
    """Read every file of every epoch that can be gone back to, and compare it with its checksum.

    `progress` is called with what was found so far, and how many files there are.
    """
    location = reader.location
    listed = [one for one in _listed(reader) if one.current]
    listers: dict[str, list[Manifest]] = {}
    files: dict[str, StateFile] = {}
    for one in listed:
        if one.manifest is None:
            continue
        for file in one.manifest.files:
            files[file.path] = file
            listers.setdefault(file.path, []).append(one.manifest)
    faults = [Fault(one.name.path, (one.epoch,), one.error) for one in listed if one.error]
    result = Checked(len({one.epoch for one in listed}), faults=tuple(faults))
    progress(result, len(files))
    stopped = threading.Event()

    def look(file: StateFile) -> CheckpointError | None:
        if stopped.is_set():
            return None
        try:
            check(location, file)
        except CheckpointError as error:
            return error
        return None

    pool = ThreadPoolExecutor(_THREADS, "checkpoint")
    try:
        for file, error in zip(files.values(), pool.map(look, files.values()), strict=True):
            left = _still_there(location, listers[file.path]) if error else ()
            if error and left:
                faults.append(Fault(file.path, left, error))
            files_read, size = result.files + 1, result.size + file.size
            result = Checked(result.epochs, files_read, size, tuple(faults))
            progress(result, len(files))
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
    return result


def _listed(reader: StateReader) -> list[Listed]:
    """All manifests, without those that a run has removed since their names were read."""
    reader.names()
    listed = epochs_of(reader.location)
    if not any(one.error is not None and has_vanished(one.error) for one in listed):
        return listed
    listed = epochs_of(reader.location)
    there = set(names_of(reader.location))
    return [one for one in listed if one.name in there]


def _still_there(location: Location, manifests: list[Manifest]) -> tuple[Epoch, ...]:
    """The epochs whose manifests still list a file: others may be removed, files included."""
    there = set(names_of(location))
    return tuple(dict.fromkeys(one.epoch for one in manifests if one.name in there))


def _kept(location: Location, listed: Listed) -> EpochKept:
    name, manifest = listed.name, listed.manifest
    written = _written(location, name.path)
    if manifest is None:
        return EpochKept(name.epoch, name.attempt, listed.current, written, listed.error)
    tasks = {f"{source}.{n}" for source, count in manifest.sources.items() for n in range(count)}
    return EpochKept(
        name.epoch,
        name.attempt,
        listed.current,
        written,
        None,
        manifest.run,
        manifest.topology,
        tuple(_operator(manifest, form) for _, form in sorted(manifest.forms.items())),
        {who: note for who, note in sorted(manifest.notes.items()) if who in tasks},
        {who: note for who, note in sorted(manifest.notes.items()) if who not in tasks},
    )


def _operator(manifest: Manifest, form: StateForm) -> OperatorKept:
    files = [file for file in manifest.files if file.operator == form.operator]
    rows = sum(file.rows for file in files)
    # Snapshots have no deletions, and several of one executor have different keys.
    keys = rows if all(file.kind == "snapshot" for file in files) else None
    return OperatorKept(form, rows, keys, len(files), sum(file.size for file in files))


def _liveness(claim: Claim) -> Liveness:
    holder = claim.holder
    here = Holder.here(holder.run)
    if claim.released:
        return "released"
    if holder == here and holder.boot:
        return "live"  # to `is_gone` this very process is: it can claim again
    if holder.is_gone():
        return "dead"
    same = holder.boot and (holder.host, holder.boot) == (here.host, here.boot)
    return "live" if same else "unknown"


def _written(location: Location, path: str) -> datetime | None:
    try:
        info = location._filesystem.get_file_info(f"{location._root}/{path}")
    except STORAGE_FAULTS:
        return None
    written: datetime | None = info.mtime
    return written
