"""Schemas from DDL, Arrow and Spark: the same types that Spark itself would use."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as sp
from pyspark.sql.pandas.types import to_arrow_schema

from elasticutor.errors import BadValueError
from elasticutor.schemas import closest, to_arrow

DECIMAL = sp.DecimalType(10, 2)
INNER = sp.StructType([sp.StructField("a", sp.IntegerType()), sp.StructField("b c", DECIMAL)])

DDL: list[tuple[str, sp.DataType]] = [
    ("boolean", sp.BooleanType()),
    ("tinyint", sp.ByteType()),
    ("byte", sp.ByteType()),
    ("smallint", sp.ShortType()),
    ("short", sp.ShortType()),
    ("int", sp.IntegerType()),
    ("INTEGER", sp.IntegerType()),
    ("bigint", sp.LongType()),
    ("Long", sp.LongType()),
    ("float", sp.FloatType()),
    ("real", sp.FloatType()),
    ("double", sp.DoubleType()),
    ("decimal", sp.DecimalType(10, 0)),
    ("dec(5)", sp.DecimalType(5, 0)),
    ("numeric( 38 , 38 )", sp.DecimalType(38, 38)),
    ("string", sp.StringType()),
    ("string collate UTF8_LCASE", sp.StringType("UTF8_LCASE")),
    ("varchar(20)", sp.StringType()),
    ("char(3)", sp.StringType()),
    ("binary", sp.BinaryType()),
    ("date", sp.DateType()),
    ("timestamp", sp.TimestampType()),
    ("timestamp_ltz", sp.TimestampType()),
    ("timestamp_ntz", sp.TimestampNTZType()),
    ("time", sp.TimeType()),
    ("time(3)", sp.TimeType(3)),
    ("interval day to second", sp.DayTimeIntervalType()),
    ("interval hour", sp.DayTimeIntervalType(1)),
    ("void", sp.NullType()),
    ("variant", sp.VariantType()),
    ("array<string>", sp.ArrayType(sp.StringType())),
    ("array<array<int>>", sp.ArrayType(sp.ArrayType(sp.IntegerType()))),
    ("map<string,int>", sp.MapType(sp.StringType(), sp.IntegerType())),
    ("struct<a:int, `b c` decimal(10,2)>", INNER),
    (
        "array<map<string, struct<a:int, `b c`: decimal(10,2)>>>",
        sp.ArrayType(sp.MapType(sp.StringType(), INNER)),
    ),
]


def as_spark_maps(schema: sp.StructType) -> pa.Schema:
    mapped: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return mapped


def one_column(kind: sp.DataType) -> sp.StructType:
    return sp.StructType([sp.StructField("x", kind)])


def assert_same(ours: pa.Field, sparks: pa.Field) -> None:
    assert ours.equals(sparks)
    # Equality is blind to the names of what lists and maps contain.
    assert str(pa.schema([ours])) == str(pa.schema([sparks]))


@pytest.mark.parametrize(("ddl", "kind"), DDL, ids=[ddl for ddl, _ in DDL])
def test_a_type_in_ddl_becomes_what_spark_makes_of_it(ddl: str, kind: sp.DataType) -> None:
    for text in (f"x {ddl}", f" x:{ddl} ", f"a int,x {ddl} COMMENT 'y'"):
        assert_same(to_arrow(text).field("x"), as_spark_maps(one_column(kind)).field("x"))


@pytest.mark.parametrize("kind", [kind for _, kind in DDL], ids=[ddl for ddl, _ in DDL])
def test_a_struct_type_becomes_what_spark_makes_of_it(kind: sp.DataType) -> None:
    schema = one_column(kind)
    assert_same(to_arrow(schema).field("x"), as_spark_maps(schema).field("x"))


def test_what_may_not_be_null_inside_a_struct_type_may_not_in_arrow() -> None:
    schema = sp.StructType(
        [
            sp.StructField("a", sp.ArrayType(sp.LongType(), containsNull=False)),
            sp.StructField("m", sp.MapType(sp.DateType(), sp.LongType(), valueContainsNull=False)),
            sp.StructField("c", sp.LongType(), True, {"comment": "how many"}),
        ]
    )
    assert to_arrow(schema).equals(as_spark_maps(schema))


def test_whoever_only_speaks_json_is_understood() -> None:
    class Told:
        def json(self) -> str:
            return one_column(DECIMAL).json()

    assert to_arrow(Told()).equals(pa.schema([("x", pa.decimal128(10, 2))]))


def test_columns_keep_their_order_names_and_nullability() -> None:
    schema = to_arrow(
        "user_id long NOT NULL COMMENT 'who; it''s \\' odd', `a ``b`` <c>, d` int,\n"
        'comment string COMMENT "x, y int", date date, `Größe 1` double, 1st int not null'
    )
    assert schema.names == ["user_id", "a `b` <c>, d", "comment", "date", "Größe 1", "1st"]
    assert [field.nullable for field in schema] == [False, True, True, True, True, False]


def test_the_whole_may_be_written_as_a_struct() -> None:
    assert to_arrow("struct<a: int, b: string>").equals(to_arrow("a int, b string"))
    assert to_arrow("struct int").names == ["struct"]


def test_an_arrow_schema_stays_as_it_is() -> None:
    schema = pa.schema([("a", pa.large_string())], metadata={b"k": b"v"})
    assert to_arrow(schema) is schema


def test_another_reader_of_ddl_may_be_handed_in() -> None:
    asked: list[str] = []

    def resolve(ddl: str) -> sp.StructType:
        asked.append(ddl)
        return one_column(sp.LongType())

    assert to_arrow("whatever it is", resolve).equals(pa.schema([("x", pa.int64())]))
    assert asked == ["whatever it is"]


@pytest.mark.parametrize(
    ("ddl", "at", "got", "hint"),
    [
        ("user_id lnog, x int", 9, "lnog", "did you mean 'long'?"),
        ("a int b string", 7, "b", ""),
        ("a int,", 7, "the end", ""),
        ("a", 2, "the end", ""),
        ("", 1, "the end", ""),
        ("a-b int", 2, "-", "backquotes"),
        ("a int, , b int", 8, ",", ""),
        ("a array<int", 12, "the end", ""),
        ("a array int", 9, "int", ""),
        ("a array<int>>", 13, ">", ""),
        ("a map<int>", 10, ">", ""),
        ("a int not", 10, "the end", ""),
        ("a int comment hello", 15, "hello", ""),
        ("a decimal(39)", 3, "decimal", ""),
        ("a decimal(2, 3)", 3, "decimal", ""),
        ("a decimal(0)", 3, "decimal", ""),
        ("a decimal(x)", 11, "x", ""),
        ("a varchar", 10, "the end", ""),
        ("a time(10)", 7, "(", ""),
        ("a interval year to month", 3, "interval", "use an int"),
        ("a interval day to", 3, "interval", ""),
        ("a interval second to day", 3, "interval", ""),
        ("a interval day to day", 3, "interval", ""),
        ("Größe int", 3, "ö", "backquotes"),
        ("a 'int'", 3, "'int'", ""),
        ("int", 4, "the end", ""),
    ],
)
def test_a_mistake_in_ddl_is_shown_where_it_is(ddl: str, at: int, got: str, hint: str) -> None:
    with pytest.raises(BadValueError) as refused:
        to_arrow(ddl)
    error = refused.value
    assert error.must.endswith(f" at character {at}")
    assert error.got == got
    assert hint in error.hint
    *_, line, caret = str(error).split("\n")
    assert line == f"    {ddl}"
    assert caret.index("^") - 4 == at - 1


def test_in_a_text_of_several_lines_the_line_is_shown() -> None:
    with pytest.raises(BadValueError, match="at line 2, character 3; got 'intt'") as refused:
        to_arrow("a int,\nb intt,\nc int")
    assert str(refused.value).endswith("\n    b intt,\n      ^")


@pytest.mark.parametrize("schema", [None, 7, ["a"], sp.LongType(), sp.StructType, pa.int64()])
def test_what_is_no_schema_is_refused(schema: object) -> None:
    with pytest.raises(BadValueError, match="schema must be an Arrow schema, DDL or a StructType"):
        to_arrow(schema)


def test_types_that_arrow_lacks_are_refused_in_a_struct_type_too() -> None:
    with pytest.raises(BadValueError, match="interval"):
        to_arrow(one_column(sp.YearMonthIntervalType()))


def test_a_column_that_is_only_null_must_be_nullable() -> None:
    for ddl in ("x void NOT NULL", "m map<void, int>"):
        with pytest.raises(BadValueError, match="must be nullable"):
            to_arrow(ddl)


def test_columns_of_one_name_are_refused_and_so_is_having_none() -> None:
    with pytest.raises(BadValueError, match="columns of different names"):
        to_arrow("a int, b int, a string")
    with pytest.raises(BadValueError, match="at least one column"):
        to_arrow(pa.schema([]))


@given(st.text(alphabet="ab int<>(),:`'\"1\n-\\", max_size=30))
def test_any_text_is_read_or_refused_with_our_error(text: str) -> None:
    with suppress(BadValueError):
        assert to_arrow(text).names


def test_a_mistyped_name_in_other_capitals_is_found() -> None:
    assert closest("USER_ID", ["user_id", "clicks"]) == "did you mean 'user_id'?"
    assert closest("a", []) == "there are none"


def test_reading_schemas_loads_no_spark() -> None:
    code = (
        "import sys, elasticutor.schemas as s; s.to_arrow('a int'); print('pyspark' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.strip() == "False"
