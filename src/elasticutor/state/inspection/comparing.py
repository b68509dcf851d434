"""What became of an operator's state from one epoch to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from elasticutor.core.protocol.ids import Epoch
from elasticutor.state.checkpoint.files import rows_of
from elasticutor.state.checkpoint.forms import StateForm
from elasticutor.state.checkpoint.location import Location
from elasticutor.state.checkpoint.manifests import Manifest
from elasticutor.state.checkpoint.restoring import merged
from elasticutor.state.inspection.reading import Entry, StateReader, entries_of, files_of


@dataclass(frozen=True, slots=True)
class Difference:
    """What became of an operator's state between two epochs."""

    before: Epoch
    after: Epoch
    added: tuple[Entry, ...]
    removed: tuple[Entry, ...]
    changed: tuple[tuple[Entry, Entry], ...]
    """As they were and as they are. State that is pickled again may differ in its bytes alone."""


def difference(
    reader: StateReader,
    operator: str,
    before: int | None = None,
    after: int | None = None,
    *,
    unpickle: bool = False,
) -> Difference:
    """Which keys an operator got, lost and changed between two epochs.

    By default `after` is the newest epoch, and `before` the one before it; `unpickle` is as in
    `StateReader.show`.
    """

    def compare(new: Manifest) -> Difference:
        earlier = reader.before(new.epoch) if before is None else before
        return reader.steadily(earlier, lambda old: _compared(reader, operator, old, new, unpickle))

    return reader.steadily(after, compare)


def _compared(
    reader: StateReader, operator: str, old: Manifest, new: Manifest, unpickle: bool
) -> Difference:
    forms = reader.form(old, operator), reader.form(new, operator)
    added: list[Entry] = []
    removed: list[Entry] = []
    changed: list[tuple[Entry, Entry]] = []
    for owners in _owners(old, new, *forms):
        were = _Side(reader.location, old, forms[0], owners[0])
        are = _Side(reader.location, new, forms[1], owners[1])
        for key, value in are.values.items():
            if key not in were.values:
                added.append(are.entry(key, unpickle))
            elif were.values[key] != value:
                changed.append((were.entry(key, unpickle), are.entry(key, unpickle)))
        removed += [were.entry(key, unpickle) for key in were.values if key not in are.values]
    return Difference(old.epoch, new.epoch, tuple(added), tuple(removed), tuple(changed))


class _Side:
    """Some executors' state as of one epoch, to be compared."""

    def __init__(
        self, location: Location, manifest: Manifest, form: StateForm, owners: Sequence[int]
    ) -> None:
        self._form = form
        self._rows: dict[bytes, tuple[int, pa.Table, int]] = {}
        self.values: dict[bytes, bytes | None] = {}  # by key, both as the codec has them
        for owner in owners:
            table = merged(location, form, files_of(manifest, form.executor_names[owner]))
            keys, values = rows_of(form, table)
            self._rows |= {key: (owner, table, row) for row, key in enumerate(keys)}
            self.values |= zip(keys, values, strict=True)

    def entry(self, key: bytes, unpickle: bool) -> Entry:
        owner, table, row = self._rows[key]
        (entry,) = entries_of(self._form, owner, table.slice(row, 1), unpickle=unpickle)
        return entry


def _owners(
    old: Manifest, new: Manifest, was: StateForm, is_now: StateForm
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The executors to compare with one another: of each side those that may share keys."""
    if was.executors != is_now.executors:
        yield range(was.executors), range(is_now.executors)
        return
    for number, executor in enumerate(is_now.executor_names):
        if files_of(old, executor) != files_of(new, executor):
            yield (number,), (number,)
