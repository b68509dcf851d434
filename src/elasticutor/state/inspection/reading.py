"""Looking into a checkpoint: which epochs it has, and the state in them, for people.

Nothing is claimed and nothing is changed, so this can be done while a run has the checkpoint. That
run may remove an epoch that is being read: then the newest one is read instead, if no other was
asked for, and otherwise an error says what there is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from elasticutor.core.keys import executors_of
from elasticutor.core.protocol.ids import Epoch
from elasticutor.errors import BadValueError, UnsupportedKeyError, Words
from elasticutor.state.checkpoint.errors import (
    AbsentError,
    CheckpointError,
    DamagedError,
    MismatchError,
)
from elasticutor.state.checkpoint.fitting import DICTIONARY, key_in_words
from elasticutor.state.checkpoint.forms import StateFile, StateForm
from elasticutor.state.checkpoint.location import Location
from elasticutor.state.checkpoint.manifests import (
    EPOCHS,
    Manifest,
    ManifestName,
    names_of,
    standing,
)
from elasticutor.state.checkpoint.reshaping import hashes_of
from elasticutor.state.checkpoint.restoring import merged
from elasticutor.state.checkpoint.typed import python_of
from elasticutor.state.codec import decode, encode_key

_SOME: Final = 5
_SCALARS: Final = frozenset(b"NTFiIfsb")
_PICKLED, _TUPLE, _SPAN = b"*(p"
_ZONED: Final = re.compile(r"timestamp\[(?P<unit>\w+), tz=(?P<zone>.+)\]")
_DECIMAL: Final = re.compile(r"(?P<kind>decimal\d+)\((?P<digits>\d+), (?P<scale>-?\d+)\)")
_FIXED: Final = re.compile(r"fixed_size_binary\[(?P<width>\d+)\]")

T = TypeVar("T")
"""What is read."""


@dataclass(frozen=True, slots=True)
class Pickled:
    """A state that is pickled, and was not unpickled: that would run code."""

    size: int
    fault: str = ""  # why it could not be unpickled, if that was tried

    def __repr__(self) -> str:
        return f"<pickled, {self.size} bytes{': ' if self.fault else ''}{self.fault}>"


@dataclass(frozen=True, slots=True)
class Entry:
    """A key and its state."""

    executor: int
    shard: int
    key: Any
    value: Any
    """Of typed state its one column, or a dictionary of its columns; else as `value_of` has it."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Some of an operator's state as of an epoch."""

    epoch: Epoch
    form: StateForm
    entries: tuple[Entry, ...]
    more: bool  # whether there are others


def key_of(data: bytes) -> Any:
    """A key as the operator sees it, without ever running code: refuses anything pickled in it."""
    _require_no_pickle(data)
    return decode(data)


def value_of(data: bytes, *, unpickle: bool = False) -> Any:
    """A state that is kept as the codec has it; pickled ones only on request, for it runs code."""
    tag = data[0] if data else None
    if tag in _SCALARS:
        return decode(data)
    if tag != _PICKLED or not unpickle:
        return Pickled(len(data))
    try:
        return decode(data)
    except Exception as error:  # whatever the code in it does
        return Pickled(len(data), f"{type(error).__name__}: {error}")


def type_of(text: str) -> pa.DataType | None:
    """The Arrow type of a key's column, given as text; None if it is a nested or unknown one."""
    if found := _ZONED.fullmatch(text):
        return pa.timestamp(found["unit"], found["zone"])
    if found := _DECIMAL.fullmatch(text):
        make = getattr(pa, found["kind"])
        made: pa.DataType = make(int(found["digits"]), int(found["scale"]))
        return made
    if found := _FIXED.fullmatch(text):
        return pa.binary(int(found["width"]))
    if found := DICTIONARY.fullmatch(text):
        return type_of(found["values"])
    try:
        return pa.type_for_alias(text)
    except ValueError:
        return None


class StateReader:
    """Reads a checkpoint, and neither claims nor changes it."""

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        self.location = Location.at(uri)

    @property
    def name(self) -> str:
        """The checkpoint, for messages."""
        return f"checkpoint {self.location.uri}"

    def names(self) -> list[ManifestName]:
        """Of all manifests; refuses a place without any."""
        names = names_of(self.location)
        if not names:
            raise self._nothing()
        return names

    def manifest(self, epoch: int | None = None) -> Manifest:
        """The manifest that counts of an epoch, the newest by default.

        If it is damaged or there is no such epoch, the error says which others there are.
        """
        try:
            return Manifest.read(self.location, self._named(epoch))
        except DamagedError as error:
            if not has_vanished(error):
                raise self._with_others(error) from error
        # It was removed since its name was read; perhaps there is a newer one.
        return Manifest.read(self.location, self._named(epoch))

    def steadily(self, epoch: int | None, read: Callable[[Manifest], T]) -> T:
        """Read something by a manifest, and once more by the newest one if a file has vanished."""
        manifest = self.manifest(epoch)
        try:
            return read(manifest)
        except DamagedError as error:
            if not has_vanished(error):
                raise
            newer = self.manifest(epoch)
            if newer.name == manifest.name:
                raise  # it is listed, so it should be there
        try:
            return read(newer)
        except DamagedError as error:
            if not has_vanished(error):
                raise
            hint = "epochs are removed faster than they can be read; try again, or copy it first"
            raise DamagedError(error.who, error.must, error.got, hint) from error

    def form(self, manifest: Manifest, operator: str) -> StateForm:
        """How the operator's state is kept; if it has none, the error says which operators have."""
        form = manifest.forms.get(operator)
        if form is None:
            must = f"be one of those in {self.name}: {', '.join(sorted(manifest.forms)) or 'none'}"
            raise BadValueError("operator", must, operator)
        return form

    def show(
        self,
        operator: str,
        *,
        epoch: int | None = None,
        limit: int | None = None,
        unpickle: bool = False,
    ) -> Shown:
        """Keys and their states, by executor and shard; of the newest epoch by default.

        Pickled states are only unpickled on request. That runs code which is in the checkpoint: do
        it only if you trust all who can write there.
        """

        def read(manifest: Manifest) -> Shown:
            form = self.form(manifest, operator)
            found: list[Entry] = []
            for number, executor in enumerate(form.executor_names):
                files = files_of(manifest, executor)
                if not files:
                    continue
                table = merged(self.location, form, files)
                left = len(table) if limit is None else limit - len(found)
                found += entries_of(form, number, table.slice(0, left), unpickle=unpickle)
                if len(table) > left:
                    return Shown(manifest.epoch, form, tuple(found), more=True)
            return Shown(manifest.epoch, form, tuple(found), more=False)

        return self.steadily(epoch, read)

    def find(
        self,
        operator: str,
        keys: Sequence[Any],
        *,
        epoch: int | None = None,
        unpickle: bool = False,
    ) -> Shown:
        """The state of the first of some keys that has one; other executors are not read."""

        def read(manifest: Manifest) -> Shown:
            form = self.form(manifest, operator)
            tables: dict[int, pa.Table] = {}
            for key in keys:
                try:
                    data = encode_key(key)
                    owner = int(executors_of(hashes_of([key]), form.executors)[0])
                except (UnsupportedKeyError, BadValueError, OverflowError):
                    continue
                if owner not in tables:
                    files = files_of(manifest, form.executor_names[owner])
                    tables[owner] = merged(self.location, form, files)
                table = tables[owner]
                table = table.filter(pc.equal(table["key"], pa.scalar(data, pa.large_binary())))
                if len(table):
                    entries = entries_of(form, owner, table, unpickle=unpickle)
                    return Shown(manifest.epoch, form, tuple(entries), more=False)
            raise self._no_key(manifest, form, keys)

        return self.steadily(epoch, read)

    def before(self, epoch: int) -> Epoch:
        """The epoch before this one that can be gone back to."""
        there = sorted({name.epoch for name in standing(self.names())})
        earlier = [other for other in there if other < epoch]
        if not earlier:
            must = f"have an epoch before {epoch}"
            raise MismatchError(self.name, must, Words(f"those of {there[::-1]}"))
        return earlier[-1]

    def _named(self, epoch: int | None) -> ManifestName:
        names = self.names()
        if epoch is None:
            return max(names)
        left = standing(names)
        found = next((name for name in left if name.epoch == epoch), None)
        if found is None:
            there = sorted({name.epoch for name in left}, reverse=True)
            void = any(name.epoch == epoch for name in names)
            hint = "it is void: a later run went on from an earlier epoch" if void else ""
            raise MismatchError(self.name, f"have epoch {epoch}", Words(f"those of {there}"), hint)
        return found

    def _nothing(self) -> MismatchError:
        there = [name for name in self.location.names("") if not name.startswith(".")]
        inner = [name for name in there[:100] if self._has_epochs(name)]
        if inner:
            hint = f"did you mean {self.location.full(inner[0])}?"
        else:
            hint = "give the location that submit(…, checkpoint=…) was given"
        got = Words(f"a folder with {', '.join(there[:_SOME])}" if there else "nothing there")
        return MismatchError(self.name, f"have manifests in {EPOCHS}/", got, hint)

    def _has_epochs(self, folder: str) -> bool:
        try:
            names = self.location.names(f"{folder}/{EPOCHS}")
        except CheckpointError:  # a file, most likely
            return False
        return any(map(ManifestName.read, names))

    def _with_others(self, error: DamagedError) -> DamagedError:
        left = sorted({name.epoch for name in standing(self.names())}, reverse=True)
        return DamagedError(error.who, error.must, error.got, f"there are epochs {left}")

    def _no_key(self, manifest: Manifest, form: StateForm, keys: Sequence[Any]) -> BadValueError:
        some: list[Any] = []
        for executor in form.executor_names:
            table = merged(self.location, form, files_of(manifest, executor))
            some += map(key_of, table["key"].slice(0, _SOME - len(some)).to_pylist())
            if len(some) >= _SOME:
                break
        must = f"be one that operator {form.operator!r} has state of in epoch {manifest.epoch}"
        hint = (
            f"keys are by {key_in_words(form)}, such as {', '.join(map(repr, some))}"
            if some
            else "it has none"
        )
        return BadValueError("key", must, keys[0] if keys else None, hint)


def entries_of(
    form: StateForm, executor: int, table: pa.Table, *, unpickle: bool = False
) -> Iterator[Entry]:
    """The rows of a table of state, none of them deleted, for people."""
    shards, keys = table["shard"].to_pylist(), table["key"].to_pylist()
    if form.schema is None:
        values = [value_of(data, unpickle=unpickle) for data in table["value"].to_pylist()]
    else:
        values = _typed(table["value"])
    for shard, key, value in zip(shards, keys, values, strict=True):
        yield Entry(executor, shard, key_of(key), value)


def files_of(manifest: Manifest, executor: str) -> list[StateFile]:
    """What a manifest lists of an executor, oldest first."""
    return [file for file in manifest.files if file.executor == executor]


def has_vanished(error: CheckpointError) -> bool:
    """Whether a file is not as it should be because it is not there."""
    return isinstance(error.__cause__, AbsentError)


def _typed(column: pa.ChunkedArray) -> list[Any]:
    """Values of typed columns: the one, or a dictionary of all; None where the state is None."""
    fields = [field.name for field in column.type]
    parts = [python_of(part, lossy=True) for part in column.combine_chunks().flatten()]
    if len(parts) == 1:
        return parts[0]
    there = column.is_valid().to_pylist()
    rows = zip(there, *parts, strict=True)
    return [dict(zip(fields, row, strict=True)) if is_one else None for is_one, *row in rows]


def _require_no_pickle(data: bytes) -> None:
    tag = data[0] if data else _PICKLED
    if tag == _PICKLED:
        raise BadValueError("key in a checkpoint", "not be pickled", data[:20])
    if tag == _SPAN:
        _require_no_pickle(data[1:])
    elif tag == _TUPLE:
        begin = 1
        while begin < len(data):
            stop = begin + 4 + int.from_bytes(data[begin : begin + 4], "big")
            _require_no_pickle(data[begin + 4 : stop])
            begin = stop
