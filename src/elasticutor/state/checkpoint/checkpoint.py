"""The driver's side of a checkpoint: it claims it, commits epochs, folds and clears away."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from elasticutor.core.protocol.ids import Attempt, Epoch
from elasticutor.errors import BadValueError, OutOfOrderError
from elasticutor.state.checkpoint.claims import Lease
from elasticutor.state.checkpoint.errors import (
    CheckpointError,
    DamagedError,
    StorageError,
    UncertainError,
)
from elasticutor.state.checkpoint.files import by_executor, require_storable
from elasticutor.state.checkpoint.fitting import fitted, require_fit
from elasticutor.state.checkpoint.folding import fold, to_fold
from elasticutor.state.checkpoint.forms import ATTEMPTS, StateFile, StateForm
from elasticutor.state.checkpoint.location import Location
from elasticutor.state.checkpoint.manifests import Manifest, ManifestName, names_of
from elasticutor.state.checkpoint.opening import find, newest_below, require_topology
from elasticutor.state.checkpoint.sweeping import Shelf, leftovers

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tidied:
    """What `Checkpoint.tidy` has done."""

    folded: int = 0  # files that were folded into others
    written: int = 0  # bytes of what they were folded into
    removed: tuple[str, ...] = ()  # files that are no longer there


class Checkpoint:
    """A checkpoint that this run has claimed, and what its newest epoch is.

    Only `tidy` may be called from another thread than the rest, and `renew` from a third.
    """

    def __init__(self, location: Location, lease: Lease, manifest: Manifest, keep: int) -> None:
        self.location = location
        self._lease = lease
        self._forms = manifest.forms
        self._keep = keep
        self._lock = threading.Lock()  # over what follows; held for moments only
        self._manifest = manifest
        self._before: Manifest | None = None  # of the epoch before, if this run has committed one
        self._files = by_executor(manifest.files)  # as the next manifest will have them
        self._under_way: tuple[StateFile, ...] = ()  # of the manifest that is being written
        self._fresh = [manifest]  # manifests that `tidy` has not seen
        self._tidying = threading.Lock()
        self._shelf = Shelf(location, keep)
        self._swept: Attempt | None = None
        self._folds = 0

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        *,
        run: str,
        topology: str,
        forms: Sequence[StateForm],
        sources: Mapping[str, int],
        epoch: int | None = None,
        below: int | None = None,
        keep: int = 3,
        lease_s: float = 10.0,
        timeout_s: float = 60.0,
        say: Callable[[str], None] = _log.info,
    ) -> Self:
        """Claim a checkpoint, check it, and make it fit the topology.

        It goes on from the newest epoch, or from `epoch`: then later ones are void. With `below`
        it goes on from the newest epoch below that one, and only if it is of this very topology:
        for who numbers the epochs itself, and knows which comes next.

        A claim counts for `lease_s` if it is not renewed; another run's is waited for up to
        `timeout_s`. At least 2 epochs are to `keep`, to go back to. `sources` has the number of
        each source's tasks; `say` is called with what takes time.

        Raises:
            BadValueError: There can be no such location, or no such schema of state.
            CheckpointError: Another run has it, it is damaged (the message names the last good
                epoch), of another layout or topology, or the storage refuses.
        """
        if keep < 2:
            raise BadValueError("epochs to keep", "be at least 2", keep)
        for form in forms:
            require_storable(form)
        location = Location.at(uri)
        names = names_of(location)
        least = max((name.claim for name in names), default=0)
        lease = Lease.take(
            location, run, lease_s=lease_s, timeout_s=timeout_s, least=least, say=say
        )
        try:
            names = names_of(location)
            if below is not None:
                require_topology(location, names, topology)
                epoch = newest_below(location, names, below)
            found = find(location, names, epoch)
            wanted = {form.operator: form for form in forms}
            if found is not None:
                require_fit(location, found, wanted, sources)
            attempt = Attempt(lease.number * ATTEMPTS)
            base = found or Manifest(Epoch(0), attempt, run, topology, "", wanted, sources, ())
            files = fitted(location, base, wanted, attempt, say)
            predecessor = found.name.path if found else ""
            # The same epoch once more, as this claim's: it makes void all that others commit.
            manifest = Manifest(
                base.epoch, attempt, run, topology, predecessor, wanted, sources, files, base.notes
            )
            lease.require()
            manifest.write(location)
            lease.require()
            checkpoint = cls(location, lease, manifest, keep)
            try:
                checkpoint._remove()
            except StorageError as error:  # no reason not to begin
                say(f"what is no longer needed stays for now: {error}")
        except BaseException:
            try:
                lease.release()
            except CheckpointError as error:
                _log.warning("%s", error)
            raise
        return checkpoint

    @property
    def committed(self) -> Epoch:
        """The newest epoch that is committed; 0 if none is."""
        return self._manifest.epoch

    @property
    def notes(self) -> Mapping[str, Any]:
        """What was noted with it, by participant: offsets, commit messages."""
        return self._manifest.notes

    @property
    def first_attempt(self) -> Attempt:
        """All attempts of this run come after it."""
        return Attempt(self._lease.number * ATTEMPTS)

    def commit(
        self, epoch: Epoch, attempt: Attempt, files: Sequence[StateFile], notes: Mapping[str, Any]
    ) -> None:
        """Commit an epoch after the newest: write its manifest.

        `files` are the increments that the attempt wrote, none for executors without changes;
        `notes` are plain values by participant, which come back exactly.

        Raises:
            BadValueError: A note is not plain, or a file is not of this epoch and attempt.
            OutOfOrderError: The epoch is committed already, or the attempt not of this run.
            InUseError: Another run has taken the checkpoint over; the epoch is not committed, or
                it is that run's to publish.
            StorageError: It could not be written, and is not there.
            UncertainError: It is not known.
        """
        self._require_next(epoch, attempt, files)
        with self._lock:
            lists = {name: list(part) for name, part in self._files.items()}
            for file in files:
                lists.setdefault(file.executor, []).append(file)
            every = tuple(file for name in sorted(lists) for file in lists[name])
            before = self._manifest
            manifest = replace(
                before,
                epoch=epoch,
                attempt=attempt,
                predecessor=before.name.path,
                files=every,
                notes=dict(notes),
            )
            self._under_way = every
        try:
            self._lease.require()
            self._write(manifest)
            self._lease.require()
        except BaseException:
            with self._lock:
                self._under_way = ()
            raise
        with self._lock:
            self._before, self._manifest = self._manifest, manifest
            self._under_way = ()
            self._fresh.append(manifest)
            for file in files:
                self._files.setdefault(file.executor, []).append(file)

    def go_back(self, epoch: Epoch) -> None:
        """Go on from the epoch before the newest: that one will be committed again.

        Until it is, what was committed stays, and counts when the checkpoint is opened. Refuses
        any epoch but the newest and, by this run, the one before.
        """
        # What is being folded or removed belongs to the newest, so that must come to its end.
        with self._tidying, self._lock:
            if epoch == self._manifest.epoch:
                return
            if self._before is None or self._before.epoch != epoch:
                kept = self._manifest.epoch
                raise OutOfOrderError("epoch to go back to", f"be the one before {kept}", epoch)
            self._manifest, self._before = self._before, None
            self._files = by_executor(self._manifest.files)

    def tidy(self) -> Tidied:
        """Fold files, and remove what no epoch needs that is to be kept.

        May run in another thread than the rest. What is folded is in the next manifest. Whatever
        goes wrong here harms no epoch; the next call tries again.
        """
        with self._tidying:
            removed = self._remove()
            folded = written = 0
            fault: CheckpointError | None = None
            with self._lock:
                lists = {name: tuple(part) for name, part in self._files.items()}
            for executor, files in lists.items():
                begin = to_fold([file.size for file in files])
                if begin is None:
                    continue
                try:
                    written += self._fold(executor, files[begin:], whole=begin == 0)
                except CheckpointError as error:
                    fault = error
                    continue
                folded += len(files) - begin
        if fault is not None:
            raise fault
        return Tidied(folded, written, removed)

    def renew(self) -> None:
        """Say that this run is alive, several times within `lease_s`; raises if it is displaced."""
        self._lease.renew()

    def release(self) -> None:
        """Let the next run have the checkpoint without waiting; the last thing to call."""
        self._lease.release()

    def _require_next(self, epoch: Epoch, attempt: Attempt, files: Sequence[StateFile]) -> None:
        if epoch <= self.committed:
            raise OutOfOrderError("epoch to commit", f"be after {self.committed}", epoch)
        first = self.first_attempt
        if not first < attempt < first + ATTEMPTS:
            raise OutOfOrderError("attempt", f"be after {first} and one of this run", attempt)
        for file in files:
            form = self._forms.get(file.operator)
            if form is None or (file.last, file.attempt) != (epoch, attempt):
                who = f"increment {file.path}"
                raise BadValueError(who, f"be of epoch {epoch}, attempt {attempt}", file)
            form.number_of(file.executor)

    def _write(self, manifest: Manifest) -> None:
        try:
            manifest.write(self.location)
        except StorageError as error:
            if not self._is_there(manifest.name, error):
                raise

    def _is_there(self, name: ManifestName, error: StorageError) -> bool:
        """Whether a manifest is there all the same: an answer may have been lost."""
        try:
            if name not in names_of(self.location):
                return False
            Manifest.read(self.location, name)
        except DamagedError:
            try:
                self.location.remove(name.path)
            except StorageError:
                raise self._uncertain(name, error) from error
            return False
        except StorageError as again:
            raise self._uncertain(name, again) from error
        return True

    def _uncertain(self, name: ManifestName, error: StorageError) -> UncertainError:
        where = self.location.full(name.path)
        hint = "start again: whether the epoch counts is seen when the checkpoint is opened"
        return UncertainError(where, "be there or not", error.got, hint)

    def _fold(self, executor: str, files: tuple[StateFile, ...], *, whole: bool) -> int:
        self._folds += 1
        made = fold(
            self.location,
            self._forms[files[0].operator],
            files,
            whole=whole,
            attempt=self.first_attempt,
            writer=f"fold-{self._folds}",
        )
        with self._lock:
            now = self._files[executor]
            begin = now.index(files[0])
            assert tuple(now[begin : begin + len(files)]) == files
            now[begin : begin + len(files)] = [] if made is None else [made]
        return 0 if made is None else made.size

    def _remove(self) -> tuple[str, ...]:
        """Remove what is no longer needed.

        Listing everything takes long in an object store. That is only done after a new attempt has
        committed: the one before it may have left anything behind.
        """
        self._lease.require()
        with self._lock:
            manifest = self._manifest
            fresh, self._fresh = self._fresh, []
            files = [file for part in self._files.values() for file in part]
            needed = frozenset(file.path for file in (*files, *self._under_way))
        self._shelf.add(fresh)
        if self._swept == manifest.attempt:
            return self._shelf.age(needed)
        self._shelf.look()
        aged = self._shelf.age(needed)
        left = leftovers(self.location, manifest, needed | self._shelf.paths)
        for path in left:
            self.location.remove(path)
        self._lease.clear_away()
        self._swept = manifest.attempt
        return (*aged, *left)
