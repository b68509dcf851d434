"""Topologies: what is right becomes a plan, and what is wrong is told before anything starts."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import cloudpickle
import pyarrow as pa
import pytest
from pyspark.sql import types as sp

from elasticutor.errors import BadValueError, UnsupportedKeyError
from elasticutor.operator import Operator
from elasticutor.plan import Plan
from elasticutor.sinks import CallableSink, MemorySink, NoSink
from elasticutor.sources import Generator, IterableSource, Reader, Source
from elasticutor.topology import Stream, Topology

CLICKS = "user_id long, page string, tags array<string>, clicks int"


class Echo(Operator):
    """Gives back what it gets."""

    output: ClassVar[Any] = CLICKS

    def process(self, key: Any, row: Any, state: Any) -> Iterable[Any]:
        yield row


class Vectorised(Operator):
    output = sp.StructType([sp.StructField("n", sp.LongType())])

    def process_batch(self, batch: Any, state: Any) -> Any:
        return None


def clicks(topology: Topology, name: str = "clicks", schema: Any = CLICKS) -> Stream:
    return topology.source(name, IterableSource([], schema))


def chain() -> tuple[Topology, Stream, Stream]:
    """A source and an operator, without a sink."""
    topology = Topology("job")
    source = clicks(topology)
    return topology, source, topology.operator("echo", Echo(), source, key="user_id")


def test_a_plan_has_all_that_was_said() -> None:
    topology = Topology("job")
    source = topology.source("load", Generator(rate=10, payload=0), tasks=3)
    assert source.name == "load"
    assert source.schema.names == ["key", "time"]
    counts = topology.operator(
        "counts", Vectorised(), source, key=["time", "key"], executors=2, shards=64, cores=4
    )
    assert counts.schema.equals(pa.schema([("n", pa.int64())]))
    topology.sink("out", MemorySink(max_rows=5), counts)
    plan = topology.plan()

    (load,), (operator,), (out,) = plan.sources, plan.operators, plan.sinks
    assert (plan.name, load.name, load.tasks, load.targets) == ("job", "load", 3, ("counts",))
    assert load.schema.equals(source.schema)
    assert cloudpickle.loads(load.blob) == Generator(rate=10, payload=0)
    assert (operator.name, operator.kind, operator.key) == ("counts", "batch", ("time", "key"))
    assert (operator.executors, operator.shards, operator.cores) == (2, 64, 4)
    assert (operator.inputs, operator.targets) == (("load",), ("out",))
    assert operator.input.equals(source.schema)
    assert operator.output.equals(counts.schema)
    assert isinstance(cloudpickle.loads(operator.blob), Vectorised)
    assert (out.name, out.inputs, out.collects) == ("out", ("counts",), True)
    assert out.schema.equals(counts.schema)
    assert cloudpickle.loads(out.blob).max_rows == 5


def branching() -> Plan:
    """Two sources into one operator; its stream, and one of the sources, go two ways."""
    topology = Topology("job")
    web, app = clicks(topology, "web"), topology.source("app", IterableSource([], CLICKS, tasks=2))
    both = topology.operator("both", Echo(), [web, app], key="user_id", executors=2)
    last = topology.operator("last", Echo(), both, key="page", executors=3)
    topology.sink("raw", NoSink(), [both, web])
    topology.sink("out", NoSink(), last)
    return topology.plan()


def test_processes_know_whom_they_hear_and_whom_they_tell() -> None:
    plan = branching()
    executors = ("both.0", "both.1")
    lasts = ("last.0", "last.1", "last.2")
    assert plan.participants() == ("web.0", "app.0", "app.1", *executors, *lasts, "raw", "out")
    assert plan.upstreams_of("web.0") == ()
    assert plan.downstreams_of("web.0") == (*executors, "raw")
    assert plan.downstreams_of("app.1") == executors
    for executor in executors:
        assert plan.upstreams_of(executor) == ("web.0", "app.0", "app.1")
        assert plan.downstreams_of(executor) == (*lasts, "raw")
    assert plan.upstreams_of("last.2") == executors
    assert plan.upstreams_of("raw") == (*executors, "web.0")
    assert plan.downstreams_of("raw") == ()
    assert plan.stage_of("last.1").name == "last"


def test_whoever_is_someones_upstream_has_them_downstream() -> None:
    plan = branching()
    names = plan.participants()
    down = {(one, other) for one in names for other in plan.downstreams_of(one)}
    assert down == {(other, one) for one in names for other in plan.upstreams_of(one)}


def test_a_plan_survives_pickling_and_cannot_be_changed() -> None:
    plan = branching()
    plan.stage_of("out")
    twin = pickle.loads(pickle.dumps(plan))  # noqa: S301 (our own)
    assert twin == plan
    assert twin.upstreams_of("raw") == plan.upstreams_of("raw")
    with pytest.raises(AttributeError):
        plan.name = "other"  # type: ignore[misc]


def test_an_unknown_process_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(BadValueError, match=r"did you mean 'last\.2'"):
        branching().upstreams_of("last2")


def test_operators_are_planned_behind_their_inputs_whatever_the_order_of_connecting() -> None:
    topology = Topology("job")
    source = clicks(topology)
    first = topology.operator("first", Echo(), source, key="page")
    second = topology.operator("second", Echo(), source, key="page")
    topology.connect(second, "first")
    topology.sink("out", NoSink(), first)
    topology.connect(source, "out")
    plan = topology.plan()
    assert [operator.name for operator in plan.operators] == ["second", "first"]
    assert plan.upstreams_of("first.0") == ("clicks.0", "second.0")
    assert plan.upstreams_of("out") == ("first.0", "clicks.0")


def test_a_circle_is_refused_with_its_way_and_leaves_no_trace() -> None:
    topology, _, echo = chain()
    middle = topology.operator("middle", Echo(), echo, key="page")
    last = topology.operator("last", Echo(), middle, key="page")
    topology.sink("out", NoSink(), last)
    before = topology.plan()
    for stream, way in ((last, "echo → middle → last → echo"), (echo, "echo → echo")):
        with pytest.raises(BadValueError, match=f"'echo' must not take .*; got '{way}'"):
            topology.connect(stream, "echo")
    assert topology.plan() == before


def test_connecting_to_what_is_not_there_or_takes_nothing_is_refused() -> None:
    topology, _, echo = chain()
    for name in ("ehco", "clicks"):
        with pytest.raises(BadValueError, match="be of an operator or a sink"):
            topology.connect(echo, name)
    with pytest.raises(BadValueError, match="did you mean 'echo'"):
        topology.connect(echo, "ehco")


def test_connecting_a_stream_twice_or_one_of_another_schema_is_refused() -> None:
    topology, source, _ = chain()
    with pytest.raises(BadValueError, match="must be different streams"):
        topology.connect(source, "echo")
    with pytest.raises(BadValueError, match="must have the same schema"):
        topology.connect(clicks(topology, "other", "user_id int"), "echo")


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("user", "key of operator 'echo' must be a column of its input.*did you mean 'user_id'"),
        (["page", "usr_id"], "did you mean 'user_id'"),
        ("tags", r"key column 'tags' of operator 'echo' must be a number.*list<element: string>"),
        ([], "be the name of a column"),
        (7, "be the name of a column"),
        (["page", None], "be the name of a column"),
        (["page", "page"], "have each column once"),
    ],
)
def test_a_key_that_cannot_be_is_refused(key: Any, says: str) -> None:
    topology = Topology("job")
    with pytest.raises(BadValueError, match=says) as refused:
        topology.operator("echo", Echo(), clicks(topology), key=key)
    assert isinstance(refused.value, UnsupportedKeyError) == (key == "tags")


class Reads(Echo):
    def __init__(self, columns: Any) -> None:
        self.columns = columns  # type: ignore[misc]


@pytest.mark.parametrize(
    ("columns", "key", "sent"),
    [
        (None, "page", ["user_id", "page", "tags", "clicks"]),
        (("clicks",), "page", ["page", "clicks"]),
        (["tags", "user_id"], ["page", "user_id"], ["user_id", "page", "tags"]),
        ((), "clicks", ["clicks"]),
        ({"page"}, "page", ["page"]),
        (["clicks", "clicks"], "page", ["page", "clicks"]),
        (["clicks", "tags", "page", "user_id"], "page", ["user_id", "page", "tags", "clicks"]),
    ],
)
def test_an_operator_is_sent_what_it_reads_and_its_key_in_the_order_of_the_stream(
    columns: Any, key: Any, sent: list[str]
) -> None:
    topology = Topology("job")
    source = clicks(topology)
    topology.sink("out", NoSink(), topology.operator("echo", Reads(columns), source, key=key))
    (operator,) = topology.plan().operators
    assert operator.input.equals(pa.schema([source.schema.field(name) for name in sent]))


def test_what_an_operator_reads_changes_nothing_for_others_that_take_the_stream() -> None:
    topology = Topology("job")
    web, app = clicks(topology, "web"), clicks(topology, "app")
    few = topology.operator("few", Reads(["clicks"]), web, key="page")
    topology.connect(app, "few")
    every = topology.operator("every", Echo(), [web, app], key="page")
    topology.sink("out", NoSink(), [web, few, every])
    plan = topology.plan()
    names = {operator.name: operator.input.names for operator in plan.operators}
    assert names == {"few": ["page", "clicks"], "every": web.schema.names}
    assert plan.sinks[0].schema.equals(web.schema)


def test_streams_that_come_together_have_one_schema_whatever_is_read_of_it() -> None:
    topology = Topology("job")
    topology.operator("few", Reads(["clicks"]), clicks(topology), key="page")
    with pytest.raises(BadValueError, match="must have the same schema"):
        topology.connect(clicks(topology, "short", "page string, clicks int"), "few")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["clcks"], "be columns of its input; got 'clcks'. Hint: did you mean 'clicks'"),
        ("clicks", "be several names of columns, or None"),
        ([3], "be columns of its input; got 3"),
    ],
)
def test_columns_that_are_not_there_are_refused(columns: Any, says: str) -> None:
    topology = Topology("job")
    with pytest.raises(BadValueError, match="columns of operator 'echo' must " + says):
        topology.operator("echo", Reads(columns), clicks(topology), key="page")
    topology.operator("echo", Echo(), clicks(topology, "again"), key="page")


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "é", "-a", ".a", "..", "a" * 41, "counts.0", "a\n", 7, None]
)
def test_names_that_would_not_do_in_file_names_are_refused(name: Any) -> None:
    topology, source, _ = chain()
    attempts: list[Callable[[], object]] = [
        lambda: Topology(name),
        lambda: clicks(topology, name),
        lambda: topology.operator(name, Echo(), source, key="page"),
        lambda: topology.sink(name, NoSink(), source),
    ]
    for attempt in attempts:
        with pytest.raises(BadValueError, match=r"name of a (topology|source|operator|sink) must"):
            attempt()


@pytest.mark.parametrize("name", ["a", "A-b_c.d", "0", "a" * 40, "v1.0rc"])
def test_names_that_do_are_taken(name: str) -> None:
    assert clicks(Topology(name), name).name == name


def test_two_of_one_name_are_refused_even_in_other_capitals() -> None:
    topology, source, echo = chain()
    with pytest.raises(BadValueError, match=r"'Echo' must have a name of its own.*operator 'echo'"):
        clicks(topology, "Echo")
    with pytest.raises(BadValueError, match="name of its own"):
        topology.operator("clicks", Echo(), source, key="page")
    with pytest.raises(BadValueError, match="name of its own"):
        topology.sink("echo", NoSink(), echo)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("user_id long, page string, tags array<string>", "clicks int32 in 'clicks', no column in"),
        (CLICKS.replace("clicks int", "clicks long"), "clicks int32 in 'clicks', clicks int64 in"),
        (CLICKS.replace("user_id", "user"), "user_id int64 in 'clicks', user int64 in 'other'"),
        (CLICKS + " NOT NULL", "clicks int32 in 'clicks', clicks int32 NOT NULL in 'other'"),
    ],
)
def test_streams_of_different_schemas_are_not_taken_together(schema: str, says: str) -> None:
    topology = Topology("job")
    streams = [clicks(topology), clicks(topology, "other", schema)]
    with pytest.raises(BadValueError, match=f"inputs of operator 'echo' must .*{says}"):
        topology.operator("echo", Echo(), streams, key="page")
    with pytest.raises(BadValueError, match=f"inputs of sink 'out' must .*{says}"):
        topology.sink("out", NoSink(), streams)


def test_only_streams_of_the_same_topology_are_taken() -> None:
    topology, source, _ = chain()
    stranger = clicks(Topology("elsewhere"), "far")
    for inputs, says in (
        (stranger, "be of topology 'job'; got \"'far' of 'elsewhere'\""),
        ([source, stranger], "be of topology 'job'"),
        ([], "be at least one stream"),
        ("clicks", "be a stream, or several; got 'clicks'"),
        ([source, source], "be different streams"),
    ):
        with pytest.raises(BadValueError, match=says):
            topology.sink("out", NoSink(), inputs)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["executors", "shards", "cores"])
@pytest.mark.parametrize("count", [0, -1, 1.0, "2", True, None, 2**31])
def test_counts_are_whole_and_at_least_one(what: str, count: Any) -> None:
    topology = Topology("job")
    with pytest.raises(BadValueError, match=f"{what} of operator 'echo' must be a whole number"):
        topology.operator("echo", Echo(), clicks(topology), key="page", **{what: count})


@pytest.mark.parametrize("tasks", [0, -1, 1.5, True])
def test_a_source_has_at_least_one_task(tasks: Any) -> None:
    with pytest.raises(BadValueError, match="tasks of source 'load' must be a whole number"):
        Topology("job").source("load", Generator(), tasks=tasks)


def test_classes_and_strangers_are_refused_in_place_of_instances() -> None:
    topology, source, _ = chain()
    with pytest.raises(BadValueError, match=r"instance of Source.*write Generator\(…\)"):
        topology.source("load", Generator)  # type: ignore[arg-type]
    with pytest.raises(BadValueError, match=r"instance of Operator.*write Echo\(…\)"):
        topology.operator("more", Echo, source, key="page")  # type: ignore[arg-type]
    with pytest.raises(BadValueError, match=r"instance of Sink.*derive from elasticutor's Sink"):
        topology.sink("out", print, source)  # type: ignore[arg-type]


def test_operators_with_neither_or_both_ways_of_processing_are_refused() -> None:
    class Neither(Operator):
        output = CLICKS

    class Both(Echo):
        def process_batch(self, batch: Any, state: Any) -> Any:
            return None

    topology = Topology("job")
    source = clicks(topology)
    for operator in (Neither(), Both()):
        with pytest.raises(BadValueError, match="process_batch"):
            topology.operator("echo", operator, source, key="page")


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (None, "output of operator 'echo' must be an Arrow schema"),
        (7, "output of operator 'echo': schema must be an Arrow schema"),
        ("a itn", "output of operator 'echo': DDL schema must have a type at character 3"),
    ],
)
def test_an_output_that_is_missing_or_no_schema_is_refused(output: Any, says: str) -> None:
    class Odd(Echo):
        pass

    Odd.output = output
    topology = Topology("job")
    with pytest.raises(BadValueError, match=says):
        topology.operator("echo", Odd(), clicks(topology), key="page")


def test_a_source_without_a_schema_is_refused() -> None:
    class Bare(Source):
        def open(self, task: int, tasks: int, offset: Any | None) -> Reader:
            raise NotImplementedError

    with pytest.raises(BadValueError, match="schema of source 'bare' must be"):
        Topology("job").source("bare", Bare())


def test_a_refusal_leaves_the_topology_as_it_was() -> None:
    topology, source, echo = chain()
    topology.sink("out", NoSink(), echo)
    before = topology.plan()
    with pytest.raises(BadValueError):
        topology.operator("more", Echo(), source, key="nothing")
    with pytest.raises(BadValueError):
        topology.sink("more", NoSink(), [])
    assert topology.plan() == before
    topology.sink("more", NoSink(), source)


def test_without_an_operator_there_is_no_plan() -> None:
    topology = Topology("job")
    with pytest.raises(BadValueError, match=r"topology 'job' must have an operator; got \[\]"):
        topology.plan()
    topology.sink("out", NoSink(), clicks(topology))
    with pytest.raises(BadValueError, match="must have an operator"):
        topology.plan()


def test_a_stream_that_nobody_takes_is_refused() -> None:
    topology, _, echo = chain()
    with pytest.raises(BadValueError, match=r"stream of operator 'echo' must be taken.*NoSink\(\)"):
        topology.plan()
    topology.sink("out", NoSink(), echo)
    clicks(topology, "idle")
    with pytest.raises(BadValueError, match="stream of source 'idle' must be taken"):
        topology.plan()


class Connection:
    def __init__(self) -> None:
        self.name = "db"
        self.locks = {"write": threading.Lock()}


class Holds(Echo):
    def __init__(self, held: object) -> None:
        self.fine = 1
        self.held = held


def refusal_of(operator: Operator) -> str:
    topology = Topology("job")
    echo = topology.operator("echo", operator, clicks(topology), key="page")
    topology.sink("out", NoSink(), echo)
    with pytest.raises(BadValueError, match="operator 'echo' must survive pickling") as refused:
        topology.plan()
    return str(refused.value)


def test_the_attribute_that_cannot_be_pickled_is_named() -> None:
    assert "got 'held: lock (" in refusal_of(Holds(threading.Lock())).replace('"', "'")
    nested = refusal_of(Holds([1, Connection()]))
    assert "held[1].locks['write']: lock (" in nested
    assert "make such things in open()" in nested


def test_what_a_function_drags_along_is_named() -> None:
    lock = threading.Lock()

    def guarded(batch: pa.RecordBatch) -> None:
        with lock:
            pass

    topology, _, echo = chain()
    topology.sink("out", CallableSink(guarded), echo)
    with pytest.raises(BadValueError, match=r"sink 'out' must survive .*function\.lock: lock"):
        topology.plan()


def test_an_attribute_of_a_local_class_is_named() -> None:
    class Local(Echo):
        lock = threading.Lock()

    assert "Local.lock: lock (" in refusal_of(Local())


class Forgets:
    """Pickles, and does not come back."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_what_does_not_come_back_from_pickling_is_named() -> None:
    assert "held: Forgets (invalid literal" in refusal_of(Holds(Forgets()))
