"""Whether a checkpoint fits a topology, and what must be rewritten so that it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from elasticutor.core.protocol.ids import Attempt
from elasticutor.errors import Words
from elasticutor.state.checkpoint.errors import MismatchError
from elasticutor.state.checkpoint.forms import StateFile, StateForm
from elasticutor.state.checkpoint.location import Location
from elasticutor.state.checkpoint.manifests import Manifest
from elasticutor.state.checkpoint.reshaping import reshape

# Types of which the same values are the same keys.
_FAMILIES: Final = (
    (re.compile(r"u?int(8|16|32|64)"), "integer"),
    (re.compile(r"halffloat|float|double"), "float"),
    (re.compile(r"(large_)?string(_view)?"), "string"),
    (re.compile(r"(large_)?binary(_view)?|fixed_size_binary\[\d+\]"), "binary"),
    (re.compile(r"decimal\d*\(.*\)"), "decimal"),
    (re.compile(r"date(32|64)\[\w+\]"), "date"),
    (re.compile(r"time(32|64)\[\w+\]"), "time"),
    (re.compile(r"duration\[\w+\]"), "duration"),
    (re.compile(r"timestamp\[\w+\]"), "timestamp"),
    (re.compile(r"timestamp\[\w+, tz=.*\]"), "timestamp with time zone"),
)
DICTIONARY: Final = re.compile(r"dictionary<values=(?P<values>.*), indices=.*>")


def require_fit(
    location: Location,
    manifest: Manifest,
    forms: Mapping[str, StateForm],
    sources: Mapping[str, int],
) -> None:
    """Refuse a checkpoint that has state or offsets which the topology has no place for."""
    where = f"checkpoint {location.uri}"
    for name, old in manifest.forms.items():
        new = forms.get(name)
        if new is None:
            hint = f"call it {name!r} again, or start over at another location"
            got = Words(f"state of {name!r}, which is not in the topology")
            raise MismatchError(where, f"be of operators {sorted(forms)}", got, hint)
        if _kind_of(old) != _kind_of(new):
            hint = "partition by the same columns as before, or start over at another location"
            must = f"have state of {name!r} by {key_in_words(new)}"
            raise MismatchError(where, must, Words(f"by {key_in_words(old)}"), hint)
    for name, tasks in manifest.sources.items():
        now = sources.get(name)
        if now != tasks:
            hint = f"give {name!r} tasks={tasks} as before, or start over at another location"
            must = f"have offsets of {now or 'no'} tasks of source {name!r}"
            raise MismatchError(where, must, Words(f"those of {tasks}"), hint)


def fitted(
    location: Location,
    manifest: Manifest,
    forms: Mapping[str, StateForm],
    attempt: Attempt,
    say: Callable[[str], None],
) -> tuple[StateFile, ...]:
    """The manifest's files, with those rewritten that are of operators in another form."""
    files: list[StateFile] = []
    for name, new in sorted(forms.items()):
        old = manifest.forms.get(name)
        mine = [file for file in manifest.files if file.operator == name]
        if old is None or not mine or _is_kept_alike(old, new):
            files += mine
            continue
        was, will_be = (f"{form.executors} × {form.shards}" for form in (old, new))
        say(f"state of {name!r} is rewritten: from {was} shards to {will_be}")
        made = reshape(location, old, new, mine, epoch=manifest.epoch, attempt=attempt)
        files += sorted(made, key=lambda file: file.executor)
    return tuple(files)


def _is_kept_alike(old: StateForm, new: StateForm) -> bool:
    numbers = (old.executors, old.shards) == (new.executors, new.shards)
    return numbers and old.same_schema(new)


def _kind_of(form: StateForm) -> list[tuple[str, str]]:
    return [(name, family(kind)) for name, kind in form.key]


def family(kind: str) -> str:
    """The types whose values are the same keys, given one of them as text.

    Example:
        >>> family("int8"), family("dictionary<values=string, indices=int32, ordered=0>")
        ('integer', 'string')
    """
    encoded = DICTIONARY.fullmatch(kind)
    if encoded:
        return family(encoded["values"])
    return next((name for pattern, name in _FAMILIES if pattern.fullmatch(kind)), kind)


def key_in_words(form: StateForm) -> str:
    """The columns of a key and their types."""
    return ", ".join(f"{name} {kind}" for name, kind in form.key) or "no key"
