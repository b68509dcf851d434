"""`elasticutor state`: show what is in a checkpoint, without claiming or changing it."""

from __future__ import annotations

import ast
import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from elasticutor.cli.output import note, out, print_json, progress_bar

if TYPE_CHECKING:  # what reads files is imported when it is needed: it takes a moment
    from elasticutor.state.checkpoint import StateForm
    from elasticutor.state.inspection.comparing import Difference
    from elasticutor.state.inspection.listing import Checked, Claimed, EpochKept
    from elasticutor.state.inspection.reading import Entry, StateReader

_INTERRUPTED = 130
_MOST_SHOWN = 20
_SHORT = 60

app = typer.Typer(
    help="Look into a checkpoint, also while a run has it; nothing is claimed or changed.",
    no_args_is_help=True,
)

Where = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="A path or URI, as submit(…) was given.")
]
Whose = Annotated[str, typer.Argument(metavar="OPERATOR", help="Its name in the topology.")]
Unpickle = Annotated[
    bool,
    typer.Option(
        "--unpickle",
        help="Unpickle values. That runs code which is in the checkpoint: only do it if you trust "
        "everyone who can write there.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@app.command("ls")
def list_epochs(checkpoint: Where, as_json: AsJson = False) -> None:
    """List the epochs, what state each has, and who has claimed the checkpoint."""
    from elasticutor.state.inspection.listing import claimed_by, epochs_kept
    from elasticutor.state.inspection.reading import StateReader

    reader = StateReader(checkpoint)
    epochs = epochs_kept(reader)
    claim = claimed_by(reader.location)
    if as_json:
        print_json(
            {
                "checkpoint": reader.location.uri,
                "claim": _claim_as_dict(claim),
                "epochs": [_epoch_as_dict(epoch) for epoch in epochs],
            }
        )
        return
    _say(f"{reader.location.uri}: {_claim_in_words(claim)}")
    for epoch in epochs:
        for line in _epoch_in_words(epoch):
            _say(line)
    newest = next((epoch for epoch in epochs if epoch.current and epoch.error is None), None)
    if newest is not None:
        for kind, notes in (("offset", newest.sources), ("note", newest.sinks)):
            for who, said in (notes or {}).items():
                _say(f"{kind} of {who} in epoch {newest.epoch}: {_short(said)}")
    for epoch in epochs:
        if epoch.error is not None:
            note(f"damaged: {epoch.error}")


@app.command()
def show(
    checkpoint: Where,
    operator: Whose,
    key: Annotated[
        str | None,
        typer.Option(help="This key alone: a Python literal such as 7 or \"('a', 1)\", or a text."),
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(min=0, help="As of this epoch.", show_default="the newest")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many keys at most.")] = _MOST_SHOWN,
    unpickle: Unpickle = False,
    as_json: AsJson = False,
) -> None:
    """Show keys and their state.

    Typed columns where the operator has a [bold]state_schema[/bold]; otherwise numbers, texts and
    bytes, and of everything else its size, unless [bold]--unpickle[/bold] is given.
    """
    from elasticutor.state.inspection.reading import StateReader

    reader = StateReader(checkpoint)
    if key is None:
        shown = reader.show(operator, epoch=epoch, limit=limit, unpickle=unpickle)
    else:
        keys = keys_meant(key, reader.form(reader.manifest(epoch), operator))
        shown = reader.find(operator, keys, epoch=epoch, unpickle=unpickle)
    if as_json:
        print_json(
            {
                "checkpoint": reader.location.uri,
                "operator": operator,
                "epoch": shown.epoch,
                "key": [{"name": name, "type": kind} for name, kind in shown.form.key],
                "typed": shown.form.schema is not None,
                "entries": list(map(_entry_as_dict, shown.entries)),
                "more": shown.more,
            }
        )
        return
    out.print(_entry_table(f"{operator}, epoch {shown.epoch}", shown.form, shown.entries))
    if shown.more:
        note(f"the first {len(shown.entries)} keys; there are more: see --limit, --key")


@app.command()
def diff(
    checkpoint: Where,
    operator: Whose,
    before: Annotated[
        int | None,
        typer.Option("--from", min=0, help="The earlier epoch.", show_default="the one before"),
    ] = None,
    after: Annotated[
        int | None, typer.Option("--to", min=0, help="The later epoch.", show_default="the newest")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="How many keys to print of each kind.")
    ] = _MOST_SHOWN,
    unpickle: Unpickle = False,
    as_json: AsJson = False,
) -> None:
    """Compare an operator's state of two epochs: keys added, removed and changed."""
    from elasticutor.state.inspection.comparing import difference
    from elasticutor.state.inspection.reading import StateReader

    reader = StateReader(checkpoint)
    found = difference(reader, operator, before, after, unpickle=unpickle)
    if as_json:
        print_json(_difference_as_dict(reader, operator, found, limit))
        return
    _say(
        f"{operator}, from epoch {found.before} to {found.after}: {len(found.added):,} added, "
        f"{len(found.removed):,} removed, {len(found.changed):,} changed"
    )
    table = Table("", "key", "was", "is")
    for sign, entries in (("+", found.added), ("-", found.removed)):
        for entry in entries[:limit]:
            was, is_now = ("", repr(entry.value))[:: 1 if sign == "+" else -1]
            table.add_row(sign, Text(repr(entry.key)), Text(was), Text(is_now))
    for old, new in found.changed[:limit]:
        table.add_row("~", Text(repr(new.key)), Text(repr(old.value)), Text(repr(new.value)))
    if table.row_count:
        out.print(table)
    if max(map(len, (found.added, found.removed, found.changed))) > limit:
        note(f"the first {limit} of each kind; see --limit")


@app.command()
def check(checkpoint: Where, as_json: AsJson = False) -> None:
    """Read every file of every epoch, and compare it with its checksum.

    Exits with 1 if something is damaged, and says what, and which epochs need it.
    """
    from elasticutor.state.inspection.listing import Checked, check_files
    from elasticutor.state.inspection.reading import StateReader

    reader = StateReader(checkpoint)
    latest = Checked()
    interrupted = False
    with progress_bar(hidden=as_json) as progress:
        bar = progress.add_task("checking", total=None)

        def tell(so_far: Checked, total: int) -> None:
            nonlocal latest
            latest = so_far
            text = f"checking, {len(so_far.faults)} damaged" if so_far.faults else "checking"
            progress.update(bar, completed=so_far.files, total=total, description=text)

        try:
            check_files(reader, tell)
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        note(f"interrupted after {latest.files} files; so far:")
    if as_json:
        print_json(_checked_as_dict(reader, latest))
    else:
        whole = "whole" if not latest.faults else f"{len(latest.faults)} damaged"
        figures = f"{latest.epochs} epochs, {latest.files:,} files, {_size(latest.size)}"
        _say(f"{figures}: {whole}")
    for fault in latest.faults:
        epochs = ", ".join(map(str, fault.epochs))
        note(f"damaged: {fault.error} (epoch {epochs})")
    if interrupted:
        raise typer.Exit(_INTERRUPTED)
    if latest.faults:
        raise typer.Exit(1)


def keys_meant(text: str, form: StateForm) -> list[Any]:
    """Return the keys that a text on the command line may stand for, the likeliest first."""
    from elasticutor.state.inspection.reading import type_of

    try:
        literal = [ast.literal_eval(text)]
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        literal = []
    kinds = [type_of(kind) for _, kind in form.key]
    meant: list[Any] = [*literal, text]
    for value in (*literal, text):
        values = value if len(kinds) > 1 and isinstance(value, tuple) else (value,)
        if len(values) == len(kinds):
            made = [_as_type(part, kind) for part, kind in zip(values, kinds, strict=True)]
            meant.append(tuple(made) if len(kinds) > 1 else made[0])
    return list({(type(value), repr(value)): value for value in meant}.values())


def _as_type(value: Any, kind: Any) -> Any:
    import pyarrow as pa

    if kind is None or value is None:
        return value
    try:
        column = pa.array([value])
        return column.cast(kind).to_pylist()[0]
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return value


# For people --------------------------------------------------------------------------------------


def _say(line: str) -> None:
    """Print a line of a result, however wide."""
    out.print(line, markup=False, soft_wrap=True)


def _claim_in_words(claim: Claimed | None) -> str:
    if claim is None:
        return "not claimed"
    who = f"claim {claim.number}: {claim.holder or 'cannot be read'}"
    when = f", last renewed {_moment(claim.renewed)}" if claim.renewed else ""
    words = {
        "released": "released: the next run may have it",
        "live": f"live{when}",
        "dead": "its process has died: the next run may have it",
        "unknown": f"liveness unknown on this machine{when}",
    }
    return f"{who}; {words[claim.liveness]}"


def _epoch_in_words(epoch: EpochKept) -> Iterator[str]:
    when = _moment(epoch.written) if epoch.written else "at an unknown time"
    standing = "damaged" if epoch.error else "current" if epoch.current else "void"
    by = f"run {epoch.run!r} of {epoch.topology}, " if epoch.error is None else ""
    yield f"epoch {epoch.epoch}  {when}  {standing}  {by}attempt {epoch.attempt}"
    for kept in epoch.operators:
        form = kept.form
        keys = f"{kept.keys:,}" if kept.keys is not None else f"≤ {kept.rows:,}"
        yield (
            f"    {form.operator}  {form.executors} × {form.shards} shards  {keys} keys  "
            f"{kept.files:,} files  {_size(kept.size)}"
        )


def _entry_table(title: str, form: StateForm, entries: Iterable[Entry]) -> Table:
    keys = [name for name, _ in form.key] or ["key"]
    columns = form.schema.names if form.schema is not None and len(form.schema) > 1 else None
    values = columns or ["value"]
    table = Table("executor", "shard", *map(escape, (*keys, *values)), title=Text(title))
    for entry in entries:
        several = len(keys) > 1 and isinstance(entry.key, tuple)
        cells: list[Any] = [*entry.key] if several else [entry.key]
        if columns is not None and entry.value is not None:
            cells += [entry.value[name] for name in columns]
        else:
            cells += [entry.value] + [None] * (len(values) - 1)
        table.add_row(str(entry.executor), str(entry.shard), *(Text(repr(c)) for c in cells))
    return table


def _moment(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:,.1f} TB"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


# For programs ------------------------------------------------------------------------------------


def _claim_as_dict(claim: Claimed | None) -> dict[str, Any] | None:
    if claim is None:
        return None
    holder = claim.holder
    return {
        "number": claim.number,
        "liveness": claim.liveness,
        "run": holder and holder.run,
        "host": holder and holder.host,
        "pid": holder and holder.pid,
        "lease_s": claim.lease_s,
        "renewed": _plain(claim.renewed),
    }


_OF_EPOCH = ("epoch", "attempt", "current", "written", "error", "run", "topology")


def _epoch_as_dict(epoch: EpochKept) -> dict[str, Any]:
    return {
        **{name: _plain(getattr(epoch, name)) for name in _OF_EPOCH},
        "operators": {
            kept.form.operator: {
                "executors": kept.form.executors,
                "shards": kept.form.shards,
                "keys": kept.keys,
                "rows": kept.rows,
                "files": kept.files,
                "bytes": kept.size,
            }
            for kept in epoch.operators
        },
        "sources": _plain(epoch.sources or {}),
        "sinks": _plain(epoch.sinks or {}),
    }


def _entry_as_dict(entry: Entry) -> dict[str, Any]:
    return {name: _plain(getattr(entry, name)) for name in ("executor", "shard", "key", "value")}


def _difference_as_dict(
    reader: StateReader, operator: str, found: Difference, limit: int
) -> dict[str, Any]:
    return {
        "checkpoint": reader.location.uri,
        "operator": operator,
        "from": found.before,
        "to": found.after,
        "counts": {name: len(getattr(found, name)) for name in ("added", "removed", "changed")},
        "added": list(map(_entry_as_dict, found.added[:limit])),
        "removed": list(map(_entry_as_dict, found.removed[:limit])),
        "changed": [
            {"key": _plain(new.key), "was": _plain(old.value), "is": _plain(new.value)}
            for old, new in found.changed[:limit]
        ],
    }


def _checked_as_dict(reader: StateReader, result: Checked) -> dict[str, Any]:
    return {
        "checkpoint": reader.location.uri,
        "epochs": result.epochs,
        "files": result.files,
        "bytes": result.size,
        "damaged": [
            {
                "path": fault.path,
                "epochs": list(fault.epochs),
                "kind": type(fault.error).__name__,
                "error": str(fault.error),
            }
            for fault in result.faults
        ],
    }


def _plain(value: Any) -> Any:
    """Return a value for JSON; what JSON lacks becomes an object that names its type, or a text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | Exception):
        return str(value)
    if isinstance(value, Mapping):
        return {
            name if isinstance(name, str) else repr(name): _plain(v) for name, v in value.items()
        }
    if isinstance(value, Sequence | set | frozenset):
        return [_plain(item) for item in value]
    return repr(value)
