"""Manifests: an epoch is committed when its manifest is there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Self

from elasticutor.core.protocol.ids import Attempt, Epoch
from elasticutor.errors import Words
from elasticutor.state.checkpoint.errors import (
    AbsentError,
    CheckpointError,
    DamagedError,
    LayoutError,
)
from elasticutor.state.checkpoint.forms import ATTEMPTS, INLINE_LAYOUT, LAYOUT, StateFile, StateForm
from elasticutor.state.checkpoint.location import Location
from elasticutor.state.checkpoint.notes import from_json, to_json

EPOCHS: Final = "epochs"
_NAME: Final = re.compile(r"(?P<epoch>\d{12,})-(?P<attempt>\d{9,})\.json")
_NOT_JSON: Final = (ValueError, RecursionError)
_NOT_OURS: Final = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True, order=True)
class ManifestName:
    """Which attempt committed which epoch; the later the attempt, the more it counts.

    Attempt 3000000000 is what claim 3 found when it opened the checkpoint: the same epoch again, so
    that whatever an earlier claim still commits comes before it.

    Example:
        >>> ManifestName(Attempt(3000000001), Epoch(12)).path
        'epochs/000000000012-3000000001.json'
    """

    attempt: Attempt
    epoch: Epoch

    @property
    def path(self) -> str:
        """Where in the checkpoint it is."""
        return f"{EPOCHS}/{self.epoch:012d}-{self.attempt:09d}.json"

    @property
    def claim(self) -> int:
        """The claim that the attempt belongs to."""
        return self.attempt // ATTEMPTS

    @classmethod
    def read(cls, name: str) -> Self | None:
        """What a file's name says; None if it is no manifest's."""
        found = _NAME.fullmatch(name)
        return found and cls(Attempt(int(found["attempt"])), Epoch(int(found["epoch"])))

    def supersedes(self, other: ManifestName) -> bool:
        """Whether this one's attempt began before the other's epoch, so that it is void."""
        if self.attempt <= other.attempt:
            return False
        again = self.attempt % ATTEMPTS == 0
        return self.epoch < other.epoch or (self.epoch == other.epoch and not again)


@dataclass(frozen=True)
class Manifest:
    """Everything that belongs to an epoch: all files of all executors, and all notes."""

    epoch: Epoch
    attempt: Attempt
    run: str
    topology: str
    predecessor: str  # path of the manifest before it; empty for the first
    forms: Mapping[str, StateForm]  # by operator
    sources: Mapping[str, int]  # how many tasks each source has
    files: Sequence[StateFile]  # those of each executor from the oldest to the newest
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Offsets of sources, commit messages of sinks, by participant."""

    @property
    def name(self) -> ManifestName:
        """Which epoch, by which attempt."""
        return ManifestName(self.attempt, self.epoch)

    @cached_property
    def paths(self) -> frozenset[str]:
        """Of its files, without what is in the manifest itself."""
        return frozenset(file.path for file in self.files if not file.inline)

    def as_bytes(self) -> bytes:
        """JSON with a checksum of itself, always the same for the same manifest."""
        body = {
            "epoch": self.epoch,
            "attempt": self.attempt,
            "run": self.run,
            "topology": self.topology,
            "predecessor": self.predecessor,
            "operators": {name: form.as_note() for name, form in self.forms.items()},
            "sources": dict(self.sources),
            "files": [file.as_note() for file in self.files],
            "notes": to_json(dict(self.notes)),
        }
        # What has nothing inside is as older versions know it.
        inline = any(file.inline for file in self.files)
        return _rendered(INLINE_LAYOUT if inline else LAYOUT, body)

    def write(self, location: Location) -> None:
        """Commit the epoch; raises `StorageError`."""
        location.write(self.name.path, self.as_bytes())

    @classmethod
    def read(cls, location: Location, name: ManifestName) -> Self:
        """The manifest of this name; refuses one that is torn, changed, gone or of other layout."""
        where = location.full(name.path)
        try:
            data = location.read(name.path).to_pybytes()
        except AbsentError as error:
            raise DamagedError(where, "be there", Words("no such file")) from error
        try:
            body = checked(data, where)
            found = cls(
                Epoch(body["epoch"]),
                Attempt(body["attempt"]),
                body["run"],
                body["topology"],
                body["predecessor"],
                {name: StateForm.from_note(name, note) for name, note in body["operators"].items()},
                body["sources"],
                tuple(StateFile.from_note(note) for note in body["files"]),
                from_json(body["notes"]),
            )
        except _NOT_OURS as error:
            raise DamagedError(where, "be a manifest", Words(repr(error))) from error
        if found.name != name:
            got = Words(f"that of epoch {found.epoch}, attempt {found.attempt}")
            raise DamagedError(where, "be the manifest that its name says", got)
        return found


def checked(data: bytes, where: str) -> dict[str, Any]:
    """What is within a file of JSON with a checksum; refuses changed bytes and other layouts."""
    try:
        whole = json.loads(data)
        layout, body = whole["layout"], whole["content"]
    except (*_NOT_JSON, KeyError, TypeError) as error:
        got = Words(f"{len(data)} bytes that are not ({error})")
        raise DamagedError(where, "be whole JSON", got) from error
    if layout not in (LAYOUT, INLINE_LAYOUT):
        older = isinstance(layout, int) and layout < LAYOUT
        hint = "update elasticutor to a version that reads it"
        if older:
            hint = "restore with the version that wrote it; this one reads no older ones"
        must = f"be of layout {LAYOUT} or {INLINE_LAYOUT}"
        raise LayoutError(where, must, Words(f"layout {layout!r}"), hint)
    if not isinstance(body, dict) or _rendered(layout, body) != data:
        raise DamagedError(where, "be as it was written", Words("content with another checksum"))
    return body


def rendered(body: Mapping[str, Any]) -> bytes:
    """JSON with a checksum of itself, on lines that a person can read."""
    return _rendered(LAYOUT, body)


def _rendered(layout: int, body: Mapping[str, Any]) -> bytes:
    content = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.sha256(f"{layout}:{content}".encode()).hexdigest()
    return f'{{"layout":{layout},"sha256":"{digest}","content":{content}}}\n'.encode()


# Several manifests -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listed:
    """An epoch that a checkpoint has a manifest of, whole or damaged."""

    name: ManifestName
    manifest: Manifest | None  # None if it cannot be used
    error: CheckpointError | None
    """Why it cannot; only the manifest was looked at, and none of the files that it lists."""
    current: bool  # whether it counts: not if a later attempt went on from an earlier epoch

    @property
    def epoch(self) -> Epoch:
        """The epoch."""
        return self.name.epoch


def names_of(location: Location) -> list[ManifestName]:
    """The manifests that are there, the one that counts most first."""
    found = map(ManifestName.read, location.names(EPOCHS))
    return sorted((name for name in found if name is not None), reverse=True)


def standing(names: Iterable[ManifestName]) -> list[ManifestName]:
    """Those that no later attempt has made void, newest epoch first."""
    every = list(names)
    left = [name for name in every if not any(other.supersedes(name) for other in every)]
    return sorted(left, key=lambda name: (name.epoch, name.attempt), reverse=True)


def epochs_of(location: Location) -> list[Listed]:
    """All manifests of a checkpoint, newest epoch first, and of damaged ones what is the matter."""
    names = names_of(location)
    counted = set(standing(names))
    listed = []
    for name in sorted(names, key=lambda name: (name.epoch, name.attempt), reverse=True):
        manifest, error = None, None
        try:
            manifest = Manifest.read(location, name)
        except (DamagedError, LayoutError) as fault:
            error = fault
        listed.append(Listed(name, manifest, error, name in counted))
    return listed


def manifest_of(location: Location, epoch: Epoch) -> Manifest | None:
    """The manifest that counts of an epoch; None for epoch 0 if that has none."""
    name = next((name for name in names_of(location) if name.epoch == epoch), None)
    if name is not None:
        return Manifest.read(location, name)
    if epoch == 0:
        return None
    where = location.full(EPOCHS)
    there = sorted({name.epoch for name in names_of(location)})
    raise DamagedError(where, f"have a manifest of epoch {epoch}", Words(f"those of {there}"))
