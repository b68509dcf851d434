"""How an operator's state is kept, and the files it is kept in."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, Literal, Self

import pyarrow as pa

from elasticutor.core.protocol.ids import Attempt, Epoch
from elasticutor.errors import BadValueError

LAYOUT: Final = 1
"""The version of everything that is written, but for manifests with increments inside."""
INLINE_LAYOUT: Final = 2
"""The version of a manifest that has increments inside; those of `LAYOUT` are read as well."""

ATTEMPTS: Final = 1_000_000_000
"""Attempts of one claim: attempt 3000000001 is the first of claim 3. A query has one per batch."""

STATE: Final = "state"

Kind = Literal["increment", "snapshot"]


@dataclass(frozen=True, slots=True)
class StateForm:
    """How one operator's state is kept."""

    operator: str
    executors: int
    shards: int  # of each executor
    key: tuple[tuple[str, str], ...]  # the columns of the key: name, and Arrow type as text
    schema: pa.Schema | None = None  # what the operator declares its state to be; None: anything

    @property
    def executor_names(self) -> tuple[str, ...]:
        """The names of its executors, by number."""
        return tuple(f"{self.operator}.{number}" for number in range(self.executors))

    def number_of(self, executor: str) -> int:
        """The number of one of its executors, by name."""
        operator, _, number = executor.rpartition(".")
        if operator != self.operator or not number.isdigit() or int(number) >= self.executors:
            must = f"be one of the {self.executors} of {self.operator!r}"
            raise BadValueError("executor", must, executor)
        return int(number)

    def as_note(self) -> dict[str, Any]:
        """As JSON has it."""
        schema = None
        if self.schema is not None:
            schema = base64.b64encode(self.schema.serialize()).decode()
        return {
            "executors": self.executors,
            "shards": self.shards,
            "key": [list(column) for column in self.key],
            "schema": schema,
        }

    @classmethod
    def from_note(cls, operator: str, note: Mapping[str, Any]) -> Self:
        """What `as_note` was made of."""
        schema = note["schema"]
        if schema is not None:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema)))
        key = tuple((name, kind) for name, kind in note["key"])
        return cls(operator, note["executors"], note["shards"], key, schema)

    def same_schema(self, other: StateForm) -> bool:
        """Whether values are kept alike."""
        if self.schema is None or other.schema is None:
            return self.schema is other.schema
        return bool(self.schema.equals(other.schema))


@dataclass(frozen=True)
class StateFile:
    """A file with some of an executor's state, as a manifest lists it.

    A small one is in the manifest itself, and is no file of its own.
    """

    path: str  # within the checkpoint; of one in the manifest, where it would be
    executor: str  # the name of its process, such as `counts.1`
    first: Epoch  # the first of the epochs whose changes it has
    last: Epoch
    attempt: Attempt
    rows: int
    size: int
    sha256: str
    kind: Kind  # a snapshot has no deletions, and nothing before it is needed
    content: str = field(default="", repr=False)
    """All of it, in base64, if it is in the manifest; empty: it is a file of its own."""

    @property
    def inline(self) -> bool:
        """Whether it is in the manifest itself."""
        return bool(self.content)

    def as_note(self) -> dict[str, str | int]:
        """As a control message or JSON has it."""
        note = {field.name: getattr(self, field.name) for field in fields(self)}
        if not self.content:
            del note["content"]
        return note

    @classmethod
    def from_note(cls, note: Mapping[str, Any]) -> Self:
        """What `as_note` was made of; refuses anything else."""
        wanted = {field.name: int if field.name in _NUMBERS else str for field in fields(cls)}
        if {name: type(value) for name, value in ({"content": ""} | dict(note)).items()} != wanted:
            raise BadValueError("note of a state file", f"have {list(wanted)}", dict(note))
        return cls(**note)

    @cached_property
    def operator(self) -> str:
        """Whose state it is."""
        return self.executor.rpartition(".")[0]


_NUMBERS: Final = frozenset({"first", "last", "attempt", "rows", "size"})


@dataclass(frozen=True, slots=True)
class FileName:
    """What the name of a state file says.

    Example:
        >>> name = FileName("counts", 1, Epoch(3), Epoch(12), Attempt(2000000001), "fold-1")
        >>> name.path
        'state/counts/1/counts-1-000000000003-000000000012-2000000001-fold-1.parquet'
        >>> FileName.read("counts", "1", name.path.rpartition("/")[2]) == name
        True
    """

    operator: str
    executor: int
    first: Epoch
    last: Epoch
    attempt: Attempt
    writer: str

    @property
    def path(self) -> str:
        """Where in the checkpoint it is."""
        epochs = f"{self.first:012d}-{self.last:012d}-{self.attempt:09d}"
        name = f"{self.operator}-{self.executor}-{epochs}-{self.writer}.parquet"
        return f"{STATE}/{self.operator}/{self.executor}/{name}"

    @classmethod
    def of(
        cls,
        form: StateForm,
        executor: str,
        first: Epoch,
        last: Epoch,
        attempt: Attempt,
        writer: str,
    ) -> Self:
        """The name for a file of one of the operator's executors."""
        # Nothing in a writer's name makes one file name of two.
        safe = _UNSAFE.sub(lambda found: f"%{ord(found[0]):x}%", writer) or "%%"
        return cls(form.operator, form.number_of(executor), first, last, attempt, safe)

    @classmethod
    def read(cls, operator: str, executor: str, name: str) -> Self | None:
        """What a name in that folder says; None if it is no state file's."""
        beginning = f"{operator}-{executor}-"
        found = _NAME.fullmatch(name.removeprefix(beginning))
        if not name.startswith(beginning) or not executor.isdigit() or found is None:
            return None
        first, last, attempt = (int(found[part]) for part in ("first", "last", "attempt"))
        return cls(
            operator, int(executor), Epoch(first), Epoch(last), Attempt(attempt), found["writer"]
        )


_NAME: Final = re.compile(
    r"(?P<first>\d{12,})-(?P<last>\d{12,})-(?P<attempt>\d{9,})-(?P<writer>.+)\.parquet"
)
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
