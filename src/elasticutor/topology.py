"""A continuous job: sources, elastic operators and sinks, and the streams between them.

A `Topology` is put together piece by piece and then turned into a `Plan`, which is all that the
processes of the job need to know. Nothing runs here; every mistake that can be seen in a
description is seen before anything starts, and leaves the topology as it was.

A stream may be used by any number of operators and sinks: each gets all of its tuples. An operator
or a sink may take any number of streams of one schema. Streams never run in a circle: an epoch's
marker could never have come from all upstreams there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from types import FunctionType
from typing import Any, Literal

import cloudpickle
import pyarrow as pa

from elasticutor.checks import require_whole
from elasticutor.core.keys import key_hashes
from elasticutor.errors import BadValueError, UnsupportedKeyError
from elasticutor.operator import Operator, kind_of
from elasticutor.plan import OperatorPlan, Plan, SinkPlan, SourcePlan
from elasticutor.schemas import SchemaLike, closest, columns_read, to_arrow
from elasticutor.sinks import Sink
from elasticutor.sources import Source

# Names become parts of file names and of the names of processes. `counts.0` is a process.
_NAME = re.compile(r"(?!.*\.[0-9]+$)[A-Za-z0-9_][A-Za-z0-9_.-]{0,39}", re.ASCII)
_DEEPEST = 4
MOST = 2**31 - 1
"""Of anything that is counted: processes, shards, cores."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What comes out of a source or of an operator. Topologies make these."""

    topology: Topology = field(repr=False)
    name: str
    schema: pa.Schema


@dataclass(slots=True)
class _Stage:
    """A source, operator or sink while the topology is put together."""

    role: Literal["source", "operator", "sink"]
    name: str
    worker: Any  # the user's source, operator or sink
    inputs: list[str] = field(default_factory=list)
    input: pa.Schema | None = None  # of all its inputs; None iff a source
    reads: frozenset[str] | None = None  # the columns that it is sent; None: all of them
    output: pa.Schema | None = None  # None iff a sink
    processes: int = 1
    key: tuple[str, ...] = ()
    shards: int = 0
    cores: int = 0

    def __str__(self) -> str:
        return f"{self.role} {self.name!r}"


class Topology:
    """Sources, operators and sinks, and the streams between them.

    Args:
        name: Of the job. Names here are of letters, digits, `-`, `_` and `.`, at most 40, because
            they become parts of file names.

    Example:
        >>> from elasticutor.operator import Operator
        >>> from elasticutor.sinks import MemorySink
        >>> from elasticutor.sources import IterableSource
        >>> class CountClicks(Operator):
        ...     output = "user string, clicks long"
        ...     def process(self, key, row, state):
        ...         state.set(state.get(0) + 1)
        ...         yield key, state.get()
        >>> topology = Topology("clicks")
        >>> clicks = topology.source("clicks", IterableSource([("ann",), ("bob",)], "user string"))
        >>> counts = topology.operator("counts", CountClicks(), clicks, key="user", executors=2)
        >>> topology.sink("out", MemorySink(), counts)
        >>> plan = topology.plan()
        >>> plan.participants()
        ('clicks.0', 'counts.0', 'counts.1', 'out')
        >>> plan.upstreams_of("counts.1"), plan.downstreams_of("counts.1")
        (('clicks.0',), ('out',))
    """

    def __init__(self, name: str) -> None:
        require_name("topology", name)
        self.name = name
        self._stages: dict[str, _Stage] = {}

    def source(self, name: str, source: Source, *, tasks: int | None = None) -> Stream:
        """Add a source, read by `tasks` processes; by as many as it says if left out."""
        who = f"source {name!r}"
        self._require_new("source", name)
        require_instance(who, source, Source)
        number = source.tasks if tasks is None else tasks
        require_whole(f"tasks of {who}", number, most=MOST)
        schema = resolved(f"schema of {who}", getattr(source, "schema", None))
        return self._add(_Stage("source", name, source, output=schema, processes=number))

    def operator(
        self,
        name: str,
        operator: Operator,
        inputs: Stream | Sequence[Stream],
        *,
        key: str | Sequence[str],
        executors: int = 1,
        shards: int = 256,
        cores: int = 1,
    ) -> Stream:
        """Add an operator.

        Args:
            name: Its name.
            operator: The logic.
            inputs: The stream it takes, or several of one schema.
            key: The column that says which state a tuple belongs to, or several.
            executors: How many elastic executors share the key space, for ever (the paper's y).
            shards: How many shards each of them has (z).
            cores: How many cores each of them has to begin with.
        """
        who = f"operator {name!r}"
        self._require_new("operator", name)
        require_instance(who, operator, Operator)
        kind_of(operator)
        for what, count in (("executors", executors), ("shards", shards), ("cores", cores)):
            require_whole(f"{what} of {who}", count, most=MOST)
        streams = self._streams(who, inputs)
        columns = _key(who, key, streams[0].schema)
        read = columns_read(who, operator.columns, streams[0].schema.names, "its input")
        stage = _Stage(
            "operator",
            name,
            operator,
            inputs=[stream.name for stream in streams],
            input=streams[0].schema,
            reads=None if read is None else frozenset(read) | frozenset(columns),
            output=resolved(f"output of {who}", getattr(operator, "output", None)),
            processes=executors,
            key=columns,
            shards=shards,
            cores=cores,
        )
        return self._add(stage)

    def sink(self, name: str, sink: Sink, inputs: Stream | Sequence[Stream]) -> None:
        """Add a sink, which takes one stream, or several of one schema."""
        who = f"sink {name!r}"
        self._require_new("sink", name)
        require_instance(who, sink, Sink)
        streams = self._streams(who, inputs)
        names = [stream.name for stream in streams]
        self._add(_Stage("sink", name, sink, inputs=names, input=streams[0].schema))

    def connect(self, stream: Stream, name: str) -> None:
        """Let an operator or a sink that is there already take one more stream.

        Refuses a stream that it has already, one of another schema, and a circle of streams.
        """
        stage = self._stages.get(name)
        if stage is None or stage.role == "source":
            takers = [other.name for other in self._stages.values() if other.role != "source"]
            hint = closest(str(name), takers)
            raise BadValueError("name to connect to", "be of an operator or a sink", name, hint)
        held = [Stream(self, known, stage.input) for known in stage.inputs]
        self._streams(str(stage), [*held, stream])
        path = self._path(name, stream.name)
        if path:
            circle = " → ".join([*path, name])
            raise BadValueError(str(stage), "not take what comes of its own outputs", circle)
        stage.inputs.append(stream.name)

    def plan(self) -> Plan:
        """All of it, checked and pickled; what cannot be run or pickled is refused."""
        stages = self._ordered()
        if not any(stage.role == "operator" for stage in stages):
            hint = "Spark alone carries tuples from a source to a sink"
            got = [str(stage) for stage in stages]
            raise BadValueError(f"topology {self.name!r}", "have an operator", got, hint)
        self._require_takers()
        return Plan(
            self.name,
            tuple(self._source_plan(stage) for stage in stages if stage.role == "source"),
            tuple(self._operator_plan(stage) for stage in stages if stage.role == "operator"),
            tuple(self._sink_plan(stage) for stage in stages if stage.role == "sink"),
        )

    def _source_plan(self, stage: _Stage) -> SourcePlan:
        blob = pickled(str(stage), stage.worker)
        return SourcePlan(
            stage.name, blob, stage.output, stage.processes, self._targets(stage.name)
        )

    def _operator_plan(self, stage: _Stage) -> OperatorPlan:
        taken: pa.Schema = stage.input
        if stage.reads is not None:
            taken = pa.schema([field for field in taken if field.name in stage.reads])
        return OperatorPlan(
            name=stage.name,
            blob=pickled(str(stage), stage.worker),
            kind=kind_of(stage.worker),
            key=stage.key,
            input=taken,
            output=stage.output,
            executors=stage.processes,
            shards=stage.shards,
            cores=stage.cores,
            inputs=tuple(stage.inputs),
            targets=self._targets(stage.name),
        )

    def _sink_plan(self, stage: _Stage) -> SinkPlan:
        blob = pickled(str(stage), stage.worker)
        collects = bool(stage.worker.collects)
        return SinkPlan(stage.name, blob, stage.input, tuple(stage.inputs), collects)

    def _add(self, stage: _Stage) -> Stream:
        self._stages[stage.name] = stage
        return Stream(self, stage.name, stage.output)

    def _targets(self, name: str) -> tuple[str, ...]:
        return tuple(stage.name for stage in self._stages.values() if name in stage.inputs)

    def _ordered(self) -> list[_Stage]:
        """Each behind all of its inputs, and otherwise as they were added."""
        left = dict(self._stages)
        ordered: list[_Stage] = []
        while left:
            # There is always one, for `connect` refuses circles.
            ready = next(stage for stage in left.values() if not left.keys() & set(stage.inputs))
            ordered.append(left.pop(ready.name))
        return ordered

    def _path(self, start: str, end: str) -> list[str]:
        """Names from start to end along the streams; empty if there is no way."""
        if start == end:
            return [start]
        for target in self._targets(start):
            if rest := self._path(target, end):
                return [start, *rest]
        return []

    def _streams(self, who: str, given: Stream | Sequence[Stream]) -> list[Stream]:
        streams: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
        if not streams:
            raise BadValueError(f"input of {who}", "be at least one stream", given)
        for stream in streams:
            if not isinstance(stream, Stream):
                hint = "take what `source` or `operator` of the topology returned"
                raise BadValueError(f"input of {who}", "be a stream, or several", stream, hint)
            if stream.topology is not self:
                got = f"{stream.name!r} of {stream.topology.name!r}"
                raise BadValueError(f"input of {who}", f"be of topology {self.name!r}", got)
        names = [stream.name for stream in streams]
        if len(set(names)) < len(names):
            hint = "its tuples would be processed twice"
            raise BadValueError(f"inputs of {who}", "be different streams", names, hint)
        for other in streams[1:]:
            _require_same(who, streams[0], other)
        return streams

    def _require_new(self, role: str, name: str) -> None:
        require_name(role, name)
        # Some file systems do not tell capitals apart.
        alike = [other for other in self._stages.values() if other.name.lower() == name.lower()]
        if alike:
            must = "have a name of its own, capitals apart"
            raise BadValueError(f"{role} {name!r}", must, f"that of {alike[0]}")

    def _require_takers(self) -> None:
        for stage in self._stages.values():
            if stage.role != "sink" and not self._targets(stage.name):
                hint = "add a sink; NoSink() only counts what comes"
                if stage.role == "source":
                    hint = "give it to an operator, or take the source out"
                raise BadValueError(
                    f"stream of {stage}", "be taken by an operator or a sink", "none", hint
                )


def require_name(role: str, name: Any) -> None:
    """Refuse what cannot be the name of a source, operator or sink."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        must = "be 1 to 40 of A-Z a-z 0-9 _ - . and not begin with - or . nor end in .<number>"
        raise BadValueError(f"name of a {role}", must, name, "it becomes part of file names")


def require_instance(who: str, worker: Any, kind: type) -> None:
    """Refuse what is not of a kind, with a hint where it is the class itself."""
    if isinstance(worker, kind):
        return
    hint = f"derive from elasticutor's {kind.__name__}"
    if isinstance(worker, type) and issubclass(worker, kind):
        hint = f"it is the class: write {worker.__name__}(…)"
    raise BadValueError(who, f"be an instance of {kind.__name__}", worker, hint)


def resolved(who: str, schema: SchemaLike) -> pa.Schema:
    """What `to_arrow` makes of a schema; errors say whose it is."""
    if schema is None:
        hint = 'for example "user_id long, clicks int"'
        raise BadValueError(who, "be an Arrow schema, DDL or a StructType", None, hint)
    try:
        return to_arrow(schema)
    except BadValueError as error:
        raise BadValueError(f"{who}: {error.who}", error.must, error.got, error.hint) from None


def _key(who: str, key: Any, schema: pa.Schema) -> tuple[str, ...]:
    columns: tuple[Any, ...] = tuple(key) if isinstance(key, list | tuple) else (key,)
    if not columns or not all(isinstance(column, str) for column in columns):
        hint = "several columns as a list of names"
        raise BadValueError(f"key of {who}", "be the name of a column", key, hint)
    if len(set(columns)) < len(columns):
        raise BadValueError(f"key of {who}", "have each column once", key)
    for column in columns:
        if column not in schema.names:
            hint = closest(column, schema.names)
            raise BadValueError(f"key of {who}", "be a column of its input", column, hint)
        require_hashable(who, schema.field(column))
    return columns


def require_hashable(who: str, column: pa.Field) -> None:
    """Refuse a column that cannot be (part of) a key."""
    try:
        key_hashes(pa.nulls(0, column.type))
    except UnsupportedKeyError as error:
        name = f"key column {column.name!r} of {who}"
        raise UnsupportedKeyError(name, error.must, error.got, error.hint) from None


def _require_same(who: str, one: Stream, other: Stream) -> None:
    """The streams of a fan-in have one schema; if not, say which column is the first to differ."""
    if one.schema.equals(other.schema):
        return
    for left, right in zip_longest(one.schema, other.schema):
        if left is None or right is None or not left.equals(right):
            got = f"{_shown(left)} in {one.name!r}, {_shown(right)} in {other.name!r}"
            raise BadValueError(f"inputs of {who}", "have the same schema", got)


def _shown(column: pa.Field | None) -> str:
    if column is None:
        return "no column"
    return f"{column.name} {column.type}" + ("" if column.nullable else " NOT NULL")


def pickled(who: str, worker: object) -> bytes:
    """A worker as bytes that were seen to come to life again."""
    error = _unpicklable(worker)
    if error is not None:
        path, culprit, why = _culprit(worker, error)
        got = f"{path.lstrip('.') or 'itself'}: {type(culprit).__name__} ({why})"
        hint = "make such things in open(), in the process that uses them"
        raise BadValueError(who, "survive pickling", got, hint) from error
    blob: bytes = cloudpickle.dumps(worker)
    return blob


def _unpicklable(thing: object) -> Exception | None:
    """Why a thing does not come back from pickling; None if it does."""
    try:
        cloudpickle.loads(cloudpickle.dumps(thing))
    except Exception as error:  # users' classes may raise anything here
        return error
    return None


def _culprit(thing: object, error: Exception, depth: int = 0) -> tuple[str, object, Exception]:
    """The innermost part that cannot be pickled, with the way there, found by trying each."""
    for step, member in _members(thing) if depth < _DEEPEST else ():
        reason = _unpicklable(member)
        if reason is not None:
            path, culprit, why = _culprit(member, reason, depth + 1)
            return f"{step}{path}", culprit, why
    return "", thing, error


def _members(thing: object) -> Iterator[tuple[str, object]]:
    """What a thing takes along when it is pickled: attributes, items, a function's surroundings."""
    if isinstance(thing, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, list | tuple):
        yield from ((f"[{place}]", value) for place, value in enumerate(thing))
    elif isinstance(thing, FunctionType):
        around = inspect.getclosurevars(thing)
        for names in (around.nonlocals, around.globals):
            yield from ((f".{name}", value) for name, value in names.items())
    elif isinstance(thing, type):
        own = ((name, value) for name, value in vars(thing).items() if not name.startswith("_"))
        yield from ((f".{name}", value) for name, value in own)
    elif hasattr(thing, "__dict__"):
        yield from ((f".{name}", value) for name, value in vars(thing).items())
        # A class that no module has, such as one of a notebook, travels with its objects.
        yield f".{type(thing).__name__}", type(thing)
