"""Which epoch to go on from, and whether everything of it is there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from elasticutor.core.protocol.ids import Epoch
from elasticutor.errors import Words
from elasticutor.state.checkpoint.errors import (
    CheckpointError,
    DamagedError,
    LayoutError,
    MismatchError,
)
from elasticutor.state.checkpoint.files import check
from elasticutor.state.checkpoint.location import Location
from elasticutor.state.checkpoint.manifests import Manifest, ManifestName, names_of, standing

_THREADS: Final = 8
_BROKEN: Final = (DamagedError, LayoutError)


def find(
    location: Location, names: Sequence[ManifestName], epoch: int | None = None
) -> Manifest | None:
    """The manifest to go on from: of the newest epoch, or of the one asked for.

    All of its files have been checked. None stands for the beginning, where there is no state.
    If it, or a file that it lists, is damaged, the error says what else can be gone on from.
    """
    left = standing(names)
    if epoch is None:
        wanted = [max(names)] if names else []
    else:
        wanted = [name for name in left if name.epoch == epoch]
        if not wanted and epoch != 0:
            there = sorted({name.epoch for name in left}, reverse=True)
            where = f"checkpoint {location.uri}"
            raise MismatchError(where, f"have epoch {epoch}", Words(f"those of {there}"))
    fault: CheckpointError | None = None
    for name in wanted:
        try:
            return whole(location, name)
        except _BROKEN as error:
            fault = fault or error
    if fault is None:
        return None
    raise _with_way_out(fault, _last_good(location, left))


def newest_below(location: Location, names: Sequence[ManifestName], below: int) -> int | None:
    """The newest epoch that comes before another; None if there is nothing at all."""
    there = [name.epoch for name in standing(names)]
    before = [epoch for epoch in there if epoch < below]
    if there and not before:
        hint = (
            "what drives it has gone further back than is kept here: restore both from the same "
            "time, or begin both again"
        )
        must = f"have an epoch before {below}, which is to come next"
        got = Words(f"those of {sorted(set(there))}")
        raise MismatchError(f"checkpoint {location.uri}", must, got, hint)
    return before[0] if before else None


def require_topology(location: Location, names: Sequence[ManifestName], topology: str) -> None:
    """Refuse a checkpoint of another owner."""
    if not names:
        return
    found = Manifest.read(location, max(names)).topology
    if found != topology:
        raise MismatchError(
            f"checkpoint {location.uri}",
            f"be of {topology}",
            Words(f"that of {found}"),
            "every query needs a location of its own; if this one was meant to go on from there, "
            "give it back its old checkpointLocation",
        )


def refuse_other(location: Location, topology: str) -> None:
    """As `require_topology`, before the checkpoint is claimed: a refusal leaves it as it is.

    A manifest that cannot be read may just have been removed by the run that has the checkpoint.
    The check under the claim says what is the matter.
    """
    with contextlib.suppress(*_BROKEN):
        require_topology(location, names_of(location), topology)


def whole(location: Location, name: ManifestName) -> Manifest:
    """A manifest all of whose files are as they were written."""
    manifest = Manifest.read(location, name)
    with ThreadPoolExecutor(_THREADS, "checkpoint") as pool:
        for _ in pool.map(lambda file: check(location, file).size, manifest.files):
            pass
    return manifest


def _last_good(location: Location, names: Iterable[ManifestName]) -> Epoch | None:
    for name in names:
        try:
            return whole(location, name).epoch
        except CheckpointError:
            continue
    return None


def _with_way_out(fault: CheckpointError, good: Epoch | None) -> CheckpointError:
    hint = "no other epoch is whole; start over at another location"
    if good is not None:
        hint = (
            f"epoch {good} is whole: open with epoch={good} to go on from there; what later epochs "
            "have published is published again"
        )
    if isinstance(fault, LayoutError) and fault.hint:
        hint = f"{fault.hint}; or: {hint}"
    return type(fault)(fault.who, fault.must, fault.got, hint)
