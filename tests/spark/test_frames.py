"""What `elastic()` makes of a DataFrame, operators and a key, with Spark at both ends."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

from elasticutor.errors import BadValueError, UnsupportedKeyError
from elasticutor.operator import Operator
from elasticutor.process.operator.rows import RowWriter, values_of
from elasticutor.spark.frames import Prepared, prepare

HIDDEN = "_part"
ALL_TYPES = [
    "CAST(1 AS TINYINT) AS byte",
    "2S AS short",
    "3 AS int",
    "4L AS long",
    "FLOAT(1.5) AS float",
    "2.5D AS double",
    "true AS bool",
    "'é' AS text",
    "X'00FF' AS bytes",
    "DATE'1969-12-31' AS day",
    "TIMESTAMP'2020-06-01 12:00:00.000005' AS moment",
    "TIMESTAMP_NTZ'2020-06-01 12:00:00.000005' AS wall",
    "CAST(1.25 AS DECIMAL(10, 2)) AS price",
    "CAST(-1.5 AS DECIMAL(38, 10)) AS wide",
    "null AS nothing",
    "INTERVAL '1 02:03:04.000005' DAY TO SECOND AS span",
    "INTERVAL '5' HOUR AS hours",
    "array(1, null, 3) AS numbers",
    "array(null) AS nulls",
    "map('a', 1, 'b', null) AS counts",
    "map(named_struct('x', 1), array(TIMESTAMP'2020-06-01 12:00:00')) AS odd",
    "map('k', TIMESTAMP'2020-06-01 12:00:00') AS moments",
    "named_struct('x', 1, 'y', array(named_struct('t', TIMESTAMP'2020-06-01 12:00:00')),"
    " 'm', map('q', CAST(1.5 AS DECIMAL(5, 1)))) AS nested",
    "named_struct('z', null) AS hollow",
    "CAST('ab' AS CHAR(3)) AS fixed",
]


class Takes(Operator):
    output = "key string, n bigint"

    def __init__(self, columns: Sequence[str] | None = None, output: Any = None) -> None:
        if columns is not None:
            self.columns = columns  # type: ignore[misc]
        if output is not None:
            self.output = output  # type: ignore[misc]

    def process(self, key: Any, row: Any, state: Any) -> Iterable[Any]:
        yield row


def prepared(df: DataFrame, key: Any = "a", operators: Any = None, **more: Any) -> Prepared:
    operators = operators or {"counts": Takes()}
    return prepare(df, operators, key, executors=2, shards=8, cores=1, **more)


@contextmanager
def configured(spark: SparkSession, **values: str) -> Iterator[None]:
    names = {name: f"spark.sql.{name.replace('__', '.')}" for name in values}
    before = {name: str(spark.conf.get(full)) for name, full in names.items()}
    for name, full in names.items():
        spark.conf.set(full, values[name])
    try:
        yield
    finally:
        for name, full in names.items():
            spark.conf.set(full, before[name])


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.sql("""
        SELECT 1 AS a, named_struct('b', 2, 'c', named_struct('d', 'x')) AS s, 3 AS `x.y`,
            array(1, 2) AS arr, 4 AS `q``z`, map(1, 2) AS m, 'x' COLLATE UTF8_LCASE AS folded,
            INTERVAL '1' MONTH AS months, parse_json('1') AS v, 5 AS `Two Words`
    """).select("*")


# There and back -----------------------------------------------------------------------------------


def passed(one: Prepared, by: Callable[[pa.RecordBatch], pa.RecordBatch]) -> DataFrame:
    """The frame through `mapInArrow`, as an only operator would get and make it."""
    incoming, outgoing = one.incoming(), one.outgoing(HIDDEN)
    wanted = one.schema

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            made = incoming(batch)
            assert made.schema.equals(wanted, check_metadata=True)
            made.validate(full=True)
            yield outgoing("same", by(made), 7)

    return one.frame.mapInArrow(run, one.declared(HIDDEN))


def by_rows(schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    writer = RowWriter(schema)
    return lambda batch: writer.batch(list(zip(*map(values_of, batch.columns), strict=True)))


@pytest.mark.parametrize(
    ("zone", "large"), [("UTC", "false"), ("Europe/Berlin", "true"), ("+03:00", "false")]
)
def test_columns_of_all_types_pass_through_batches_and_rows_unchanged(
    spark: SparkSession, zone: str, large: str
) -> None:
    with configured(spark, session__timeZone=zone, execution__arrow__useLargeVarTypes=large):
        full = spark.range(2).selectExpr(*ALL_TYPES)
        # And a row that has nothing at all.
        df = full.union(full.select(*(F.lit(None).cast(f.dataType) for f in full.schema)).limit(1))
        one = prepared(df, "int", {"same": Takes(output=df.schema)})
        for way in (lambda batch: batch, by_rows(one.schema)):
            back = passed(one, way)
            assert back.select(HIDDEN).distinct().collect() == [(7,)]
            back = back.drop(HIDDEN)
            assert back.schema.simpleString() == df.schema.simpleString()
            assert back.collect() == df.collect()
            # As the session shows it, and not as Python does.
            shown = ["cast(moment AS string)", "cast(wall AS string)", "cast(nested AS string)"]
            assert back.selectExpr(*shown).collect() == df.selectExpr(*shown).collect()


def test_variants_pass_through(spark: SparkSession) -> None:
    df = spark.sql("SELECT 1 AS a, parse_json('{\"b\": [1, null]}') AS v")
    back = passed(prepared(df, "a", {"same": Takes(output=df.schema)}), lambda batch: batch)
    assert back.selectExpr("to_json(v)").collect() == [('{"b":[1,null]}',)]


def test_arrays_of_nothing_pass_through(spark: SparkSession) -> None:
    df = spark.sql("SELECT 1 AS a, array() AS none")
    one = prepared(df, "a", {"same": Takes(output="a int, none array<void>")})
    assert passed(one, lambda batch: batch).collect() == [(7, 1, [])]


def test_several_operators_make_one_tagged_result(spark: SparkSession) -> None:
    df = spark.range(4).selectExpr("id AS a", "cast(id AS string) AS b")
    one = prepared(df, "a", {"x": Takes(output="n long"), "y": Takes(output="t string NOT NULL")})
    assert (
        one.output.simpleString() == "struct<operator:string,x:struct<n:bigint>,y:struct<t:string>>"
    )
    incoming, outgoing = one.incoming(), one.outgoing(HIDDEN)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in map(incoming, batches):
            yield outgoing("x", batch.select(["a"]).rename_columns(["n"]), 0)
            yield outgoing("y", batch.select(["b"]).rename_columns(["t"]), 1)

    back = one.frame.mapInArrow(run, one.declared(HIDDEN)).repartition(2, HIDDEN)
    assert sorted(back.select("x.n").where("operator = 'x'").collect()) == [(n,) for n in range(4)]
    rows = back.where("operator = 'y' AND x IS NULL AND _part = 1").select("y.t")
    assert sorted(rows.collect()) == [(str(n),) for n in range(4)]
    assert [plan.input.names for plan in one.plan.operators] == [["a", "b"], ["a", "b"]]
    cloudpickle.loads(cloudpickle.dumps(run))


def test_a_dictionary_of_one_operator_is_tagged_if_asked_for(frame: DataFrame) -> None:
    one = prepared(frame.select("a"), operators={"counts": Takes()}, tagged=True)
    assert one.output.names == ["operator", "counts"]
    assert prepared(frame.select("a")).output.names == ["key", "n"]


def test_what_goes_to_the_executors_can_be_pickled_and_says_it_all(frame: DataFrame) -> None:
    one = prepared(frame.select("a", "arr"), "a")
    plan = pickle.loads(pickle.dumps(one.plan))  # noqa: S301
    (operator,) = plan.operators
    assert (plan.name, plan.sources, plan.sinks) == ("elastic", (), ())
    assert (operator.executors, operator.shards, operator.cores) == (2, 8, 1)
    assert (operator.inputs, operator.targets, operator.kind) == ((), (), "record")
    assert operator.input.equals(one.schema)
    # Nullable, although Spark knows that there are no nulls.
    assert operator.input.field("a").nullable
    assert operator.input.field("arr").type.value_field.nullable
    assert plan.participants() == ("counts.0", "counts.1")


# The key ------------------------------------------------------------------------------------------


KEYS = [
    ("a", ["a"]),
    ("A", ["a"]),
    ("`x.y`", ["x.y"]),
    ("x.y", ["x.y"]),
    ("q`z", ["q`z"]),
    ("two words", ["Two Words"]),
    ("s.b", ["s.b"]),
    ("s.c.d", ["s.c.d"]),
    ("s", ["s"]),
    ("a % 10", ["(a % 10)"]),
    ("cast(a AS string)", ["cast(a as string)"]),
    ("a + 1 AS bucket", ["bucket"]),
    ("a + 1 AS m", ["(a + 1)"]),
    (["a", "s.b", "arr[0]"], ["a", "s.b", "arr[0]"]),
    (("Two Words",), ["Two Words"]),
]


@pytest.mark.parametrize(("key", "names"), KEYS, ids=str)
def test_keys_are_columns_by_name_or_are_made_of_an_expression(
    frame: DataFrame, key: Any, names: list[str]
) -> None:
    one = prepared(frame, key, {"counts": Takes([])})
    assert list(one.plan.operators[0].key) == names
    assert sorted(one.frame.columns) == sorted(names)
    assert one.schema.names == one.frame.columns
    assert one.frame.count() == 1


def test_columns_of_spark_are_keys_too(frame: DataFrame) -> None:
    for key, name in [
        (F.col("a"), "a"),
        (frame.a, "a"),
        (frame["s.b"], "s.b"),
        ((frame.a + 1).alias("next"), "next"),
        (F.col("`x.y`") % 2, "(x.y % 2)"),
    ]:
        one = prepared(frame, key, {"counts": Takes([])})
        assert one.plan.operators[0].key == (name,)


def test_a_key_that_is_made_never_hides_a_column(spark: SparkSession) -> None:
    df = spark.sql("SELECT 1 AS a, 9 AS `(a % 10)`, named_struct('a', 4) AS s, 8 AS `s.a`")
    one = prepared(df, [F.expr("a % 10"), F.col("s.a")], {"same": Takes(["(a % 10)", "s.a"])})
    assert one.frame.columns == ["(a % 10)", "s.a", "(a % 10)'", "s.a'"]
    assert one.frame.collect() == [(9, 8, 1, 4)]


REFUSED_KEYS = [
    ("usr", "must be a column of the DataFrame; got 'usr'"),
    ("s.nope", "No such struct field"),
    ("a %", "PARSE_SYNTAX_ERROR"),
    ("a, m", "several as a list"),
    ("*", "give several as a list"),
    ("explode(arr)", "be made of one row at a time"),
    ("sum(a)", "be made of one row at a time"),
    ([], "at least one column"),
    (["a", "A"], "each column once"),
    (["a % 10", "a%10"], "each column once"),
    (3, "be the name of a column"),
    ("months", "Hint: take its months"),
]


@pytest.mark.parametrize(("key", "said"), REFUSED_KEYS, ids=str)
def test_what_cannot_be_a_key_is_refused_with_a_reason(
    frame: DataFrame, key: Any, said: str
) -> None:
    with pytest.raises(BadValueError) as refused:
        prepared(frame, key, {"counts": Takes([])})
    assert said in str(refused.value)


def test_a_mistyped_key_is_told_its_nearest_name(spark: SparkSession) -> None:
    with pytest.raises(BadValueError, match="did you mean 'user_id'"):
        prepared(spark.range(1).selectExpr("id AS user_id"), "userid")


@pytest.mark.parametrize("key", ["m", "arr", "folded", "v", "struct(a, m)"])
def test_types_without_a_hash_or_equality_cannot_be_keys(frame: DataFrame, key: str) -> None:
    with pytest.raises(UnsupportedKeyError, match=r"key column .* of operator 'counts'.*Hint: "):
        prepared(frame, key, {"counts": Takes([])})


def test_capitals_count_where_the_session_says_so(spark: SparkSession) -> None:
    df = spark.range(1).selectExpr("id AS a")
    with configured(spark, caseSensitive="true"):
        both = df.selectExpr("a", "a + 1 AS A")
        assert prepared(both, "A").plan.operators[0].key == ("A",)
        with pytest.raises(BadValueError, match="did you mean 'a'"):
            prepared(df, "A")
    with pytest.raises(BadValueError, match="'a' and 'A'"):
        prepared(both, "A")


# The columns --------------------------------------------------------------------------------------


def test_only_columns_that_someone_reads_are_sent_in_their_order(frame: DataFrame) -> None:
    operators = {"x": Takes(["arr", "a"]), "y": Takes(("Two Words", "m"))}
    one = prepared(frame, "s.b", operators)
    assert one.frame.columns == ["a", "arr", "m", "Two Words", "s.b"]
    assert {plan.input for plan in one.plan.operators} == {one.schema}
    everything = prepared(frame.drop("months"), "a")
    assert everything.frame.columns == frame.drop("months").columns


def test_a_frame_of_which_all_is_needed_stays_as_it_is(frame: DataFrame) -> None:
    df = frame.select("a", "`x.y`")
    assert prepared(df, "a").frame is df


@pytest.mark.parametrize(
    ("columns", "said"),
    [(["Two words"], "did you mean 'Two Words'"), ("arr", "be several names"), ([3], "got 3")],
)
def test_columns_that_are_not_there_are_refused(frame: DataFrame, columns: Any, said: str) -> None:
    with pytest.raises(BadValueError) as refused:
        prepared(frame, "a", {"counts": Takes(columns)})
    assert said in str(refused.value)
    assert "columns of operator 'counts'" in str(refused.value)


def test_a_column_twice_is_refused(spark: SparkSession) -> None:
    df = spark.range(1).selectExpr("id", "id")
    with pytest.raises(BadValueError, match=r"'id' twice.*Hint: rename"):
        prepared(df, "id")


def test_other_things_than_frames_of_a_classic_session_are_refused() -> None:
    class Remote:
        pass

    Remote.__module__ = "pyspark.sql.connect.dataframe"
    with pytest.raises(BadValueError, match="Spark Connect"):
        prepared(Remote())  # type: ignore[arg-type]
    with pytest.raises(BadValueError, match="df must be a DataFrame of Spark; got 'list'"):
        prepared([1])  # type: ignore[arg-type]


REFUSED_TYPES = [
    ("INTERVAL '1' MONTH", "column 'c' of the DataFrame"),
    ("array(named_struct('i', make_interval(1)))", "element.i of column 'c' of the DataFrame"),
    ("map('k', INTERVAL '1' YEAR)", "value of column 'c' of the DataFrame"),
    ("named_struct('x', 1, 'x', 2)", "have fields of different names"),
]


@pytest.mark.parametrize(("expression", "said"), REFUSED_TYPES)
def test_types_that_spark_does_not_carry_are_refused_unless_nobody_reads_them(
    spark: SparkSession, expression: str, said: str
) -> None:
    df = spark.sql(f"SELECT 1 AS a, {expression} AS c")
    with pytest.raises(BadValueError) as refused:
        prepared(df)
    assert said in str(refused.value)
    assert prepared(df, operators={"counts": Takes(["a"])}).frame.columns == ["a"]


# Operators ----------------------------------------------------------------------------------------


OUTPUTS = [
    ("a long, b char(3), c array<varchar(2)>", "struct<a:bigint,b:string,c:array<string>>"),
    ("a interval hour to minute", "struct<a:interval hour to minute>"),
    (
        StructType([StructField("a", ArrayType(IntegerType(), False), False)]),
        "struct<a:array<int>>",
    ),
    (
        pa.schema({"a": pa.uint32(), "b": pa.large_string(), "t": pa.timestamp("ms", "UTC")}),
        "struct<a:bigint,b:string,t:timestamp>",
    ),
    (pa.schema({"w": pa.timestamp("us")}), "struct<w:timestamp_ntz>"),
]


@pytest.mark.parametrize(("output", "spark_type"), OUTPUTS, ids=str)
def test_outputs_are_what_spark_calls_them(frame: DataFrame, output: Any, spark_type: str) -> None:
    one = prepared(frame.select("a"), operators={"counts": Takes(output=output)})
    assert one.output.simpleString() == spark_type
    assert one.declared(HIDDEN).names == [HIDDEN, *one.output.names]


REFUSED_OPERATORS: list[tuple[dict[str, Any], str]] = [
    ({}, "operators must be at least one"),
    ({"a b": Takes()}, "name of a operator"),
    ({"a": Takes}, "write Takes("),
    ({"a": Takes(), "A": Takes()}, "capitals apart"),
    ({"operator": Takes(), "b": Takes()}, "'operator' of the result"),
    ({"a": Takes(output="n lnog")}, "did you mean 'long'"),
    ({"a": Takes(output="n interval month")}, "output of operator 'a'"),
    ({"a": Takes(output=pa.schema({"n": pa.month_day_nano_interval()}))}, "column 'n'"),
    ({"a": Operator()}, "override process"),
]


@pytest.mark.parametrize(
    ("operators", "said"), REFUSED_OPERATORS, ids=lambda value: str(value)[:30]
)
def test_operators_that_cannot_be_are_refused(
    frame: DataFrame, operators: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadValueError) as refused:
        prepare(frame.select("a"), operators, "a", executors=1, shards=1, cores=1)
    assert said in str(refused.value)


@pytest.mark.parametrize("what", ["executors", "shards", "cores"])
def test_numbers_below_one_are_refused(frame: DataFrame, what: str) -> None:
    counts: dict[str, Any] = {"executors": 1, "shards": 1, "cores": 1, what: 0}
    with pytest.raises(BadValueError, match=f"{what} of operator 'a'"):
        prepare(frame.select("a"), {"a": Takes()}, "a", **counts)


def test_an_output_named_like_the_hidden_column_is_refused(frame: DataFrame) -> None:
    one = prepared(frame.select("a"), operators={"counts": Takes(output="_PART int")})
    with pytest.raises(BadValueError, match="_PART"):
        one.declared(HIDDEN)


def test_strings_stay_strings(frame: DataFrame) -> None:
    one = prepared(frame.select("a"))
    assert one.output["key"].dataType == StringType()
