"""Which files are no longer needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from elasticutor.state.checkpoint.errors import DamagedError, LayoutError
from elasticutor.state.checkpoint.forms import STATE, FileName
from elasticutor.state.checkpoint.location import Location
from elasticutor.state.checkpoint.manifests import (
    EPOCHS,
    Manifest,
    ManifestName,
    names_of,
    standing,
)


class Shelf:
    """The manifests that are there, of which `keep` epochs stay."""

    def __init__(self, location: Location, keep: int) -> None:
        self._location = location
        self._keep = keep
        self._manifests: dict[ManifestName, Manifest | None] = {}  # None: damaged

    @property
    def paths(self) -> frozenset[str]:
        """The files that some manifest lists."""
        return frozenset().union(*(m.paths for m in self._manifests.values() if m is not None))

    def add(self, manifests: Iterable[Manifest]) -> None:
        """Take in what this run has written."""
        self._manifests |= {manifest.name: manifest for manifest in manifests}

    def look(self) -> None:
        """See which manifests there are."""
        names = names_of(self._location)
        self._manifests = {n: self._manifests.get(n) or self._read(n) for n in names}

    def age(self, needed: frozenset[str]) -> tuple[str, ...]:
        """Remove what is too old or void, and files that nothing else lists nor is in need of.

        What can be gone on from goes last: whatever is interrupted here leaves it as it was.
        """
        kept = self._kept()
        gone = [name for name in self._manifests if name not in kept]
        # Void ones first: what makes them void may be among the others.
        valid = set(standing(self._manifests))
        gone.sort(key=lambda name: (name in valid, name.epoch, name.attempt))
        before = self.paths
        for name in gone:
            self._location.remove(name.path)
            del self._manifests[name]
        files = sorted(before - self.paths - needed)
        for path in files:
            self._location.remove(path)
        return (*(name.path for name in gone), *files)

    def _kept(self) -> set[ManifestName]:
        kept: set[ManifestName] = set()
        usable: set[int] = set()
        for name in standing(self._manifests):
            if len(usable) >= self._keep and name.epoch not in usable:
                break
            kept.add(name)
            if self._manifests[name] is not None:
                usable.add(name.epoch)
        return kept

    def _read(self, name: ManifestName) -> Manifest | None:
        try:
            return Manifest.read(self._location, name)
        except (DamagedError, LayoutError):
            return None


def leftovers(location: Location, newest: Manifest, needed: frozenset[str]) -> list[str]:
    """Files of state that no manifest lists, and none will.

    Those of earlier claims are; those of this one if they are of an epoch that is committed, since
    none is written for that any more. Of later epochs, any may be about to be listed.
    """
    return [path for path in _void(location, newest) if path not in needed]


def _void(location: Location, newest: Manifest) -> Iterator[str]:
    claim = newest.name.claim
    for operator in location.names(STATE):
        for executor in location.names(f"{STATE}/{operator}"):
            folder = f"{STATE}/{operator}/{executor}"
            files = [(name, name) for name in location.names(folder)]
            for name, meant in (*files, *location.unfinished(folder)):
                found = FileName.read(operator, executor, meant)
                if found is None:
                    continue
                its = ManifestName(found.attempt, found.last).claim
                if its < claim or (its == claim and found.last <= newest.epoch):
                    yield f"{folder}/{name}"
    for name, meant in location.unfinished(EPOCHS):
        wanted = ManifestName.read(meant)
        if wanted is not None and wanted.claim < claim:
            yield f"{EPOCHS}/{name}"
