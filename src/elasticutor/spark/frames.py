"""Translation of a DataFrame, operators and a key for the engine, and of outputs for Spark.

Nothing runs here, and nothing is started: whatever can be seen to be wrong with columns, types,
names or the key is refused before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql import types as T  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from elasticutor.checks import require_whole
from elasticutor.errors import BadValueError, UnsupportedKeyError
from elasticutor.operator import Operator, kind_of
from elasticutor.plan import OperatorPlan, Plan
from elasticutor.schemas import closest, columns_read, to_arrow
from elasticutor.spark.arrow import TAG, Incoming, Outgoing, engine_schema, wider
from elasticutor.topology import (
    MOST,
    pickled,
    require_hashable,
    require_instance,
    require_name,
    resolved,
)

_WORD: Final = re.compile(r"[^\W\d]\w*")
_EXPRESSION_ID: Final = re.compile(r"#\d+L?")
_ROWS_CHANGE: Final = frozenset({"Aggregate", "Generate"})
_DEEPEST: Final = 8
_BY_BYTES: Final = "UTF8_BINARY"
# By name, because older versions lack some.
_CARRIED: Final = re.compile(
    r"(Boolean|Byte|Short|Integer|Long|Float|Double|Decimal|String|Char|Varchar|Binary"
    r"|Date|Timestamp|TimestampNTZ|Time|DayTimeInterval|Null|Variant)Type"
)
_INSTEAD: Final = {
    "YearMonthIntervalType": "take its months as an int: extract(MONTH FROM …), extract(YEAR …)",
    "CalendarIntervalType": "take its parts as numbers: extract(DAY FROM …)",
    "GeometryType": "take its bytes: st_asbinary(…)",
    "GeographyType": "take its bytes: st_asbinary(…)",
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """The engine's inputs, and how its outputs go back."""

    frame: DataFrame  # the needed columns in their order; then those of the key that had to be made
    plan: Plan  # the operators alone: no sources, no sinks
    schema: pa.Schema  # of the frame, as the engine has it
    output: StructType  # what comes back, without the hidden column
    outputs: Mapping[str, pa.Schema]  # per operator, what it makes, in the types that Spark takes
    tagged: bool  # whether rows say which operator made them

    def incoming(self) -> Incoming:
        """For a task: makes batches of `schema` of what Spark hands it."""
        return Incoming(self.schema)

    def outgoing(self, hidden: str | None) -> Outgoing:
        """For a task: makes batches of `declared(hidden)` of what operators made."""
        return Outgoing(self.outputs, hidden, tagged=self.tagged)

    def declared(self, hidden: str | None) -> StructType:
        """Return the schema for `mapInArrow`: the output, perhaps behind an int column."""
        if hidden is None:
            return self.output
        taken = [name for name in self.output.names if name.lower() == hidden.lower()]
        if taken:
            raise BadValueError("output", f"have no column named {hidden!r}", taken[0], "rename it")
        return StructType([StructField(hidden, T.IntegerType(), False), *self.output.fields])


def prepare(
    df: DataFrame,
    operators: Mapping[str, Operator],
    key: str | Column | Sequence[str | Column],
    *,
    executors: int,
    shards: int,
    cores: int,
    tagged: bool | None = None,
) -> Prepared:
    """Check everything, and return what the engine takes.

    A key is a column by its name, a column within a struct (`"a.b"`), a `Column`, an expression in
    SQL (`"a % 10"`), or several of these. What is no column of the DataFrame becomes one, named as
    the expression reads, or by its alias. If `tagged`, by default if there are several operators,
    the output is a column `operator` with the name of the operator that made a row, and a struct of
    its output for each of them.
    """
    _require_frame(df)
    _require_operators(operators, tagged)
    names, columns = _key(df, key)
    frame = _needed(df, operators, names, columns)
    for field in frame.schema.fields:
        _require_carried(f"column {field.name!r} of the DataFrame", field.dataType)
    # First by Spark's own types: `array()` has elements of no type that are never null.
    schema = engine_schema(to_arrow(_simplified(frame.schema, nullable=True)))
    who = f"operator {next(iter(operators))!r}"
    for name in names:
        _require_comparable(who, frame.schema[name])
        require_hashable(who, schema.field(name))
    plans: list[OperatorPlan] = []
    outputs: dict[str, StructType] = {}
    for name, operator in operators.items():
        who = f"operator {name!r}"
        for what, count in (("executors", executors), ("shards", shards), ("cores", cores)):
            require_whole(f"{what} of {who}", count, most=MOST)
        output, outputs[name] = _output(who, operator)
        plans.append(
            OperatorPlan(
                name=name,
                blob=pickled(who, operator),
                kind=kind_of(operator),
                key=tuple(names),
                input=schema,
                output=output,
                executors=executors,
                shards=shards,
                cores=cores,
                inputs=(),
                targets=(),
            )
        )
    several = len(operators) > 1 if tagged is None else tagged
    return Prepared(
        frame=frame,
        plan=Plan("elastic", (), tuple(plans), ()),
        schema=schema,
        output=_tagged(outputs) if several else next(iter(outputs.values())),
        outputs={name: to_arrow(struct) for name, struct in outputs.items()},
        tagged=several,
    )


# The DataFrame ------------------------------------------------------------------------------------


def _require_frame(df: Any) -> None:
    if type(df).__module__.startswith("pyspark.sql.connect"):
        hint = "start the session with SparkSession.builder.master(…), without .remote(…)"
        raise BadValueError("df", "be of a classic session", "one of Spark Connect", hint)
    if not isinstance(df, DataFrame):
        hint = ""
        if type(df).__module__.startswith("pandas"):
            hint = "spark.createDataFrame(df) makes one of it"
        raise BadValueError("df", "be a DataFrame of Spark", type(df).__name__, hint)
    seen: dict[str, str] = {}
    for name in df.columns:
        alike = seen.setdefault(name if _tells_capitals(df) else name.lower(), name)
        if alike is not name:
            got = f"{alike!r} and {name!r}" if alike != name else f"{name!r} twice"
            hint = "rename with toDF(…) or select(…); a join on a list of names has these once"
            raise BadValueError("DataFrame", "have columns of different names", got, hint)


def _tells_capitals(df: DataFrame) -> bool:
    return df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"


def _needed(
    df: DataFrame,
    operators: Mapping[str, Operator],
    names: Sequence[str],
    columns: Mapping[str, Column],
) -> DataFrame:
    """Return the frame of the columns that an operator reads, and of `names`, those of the key."""
    wanted: set[str] = set(names)
    for name, operator in operators.items():
        known = [*df.columns, *columns]
        read = columns_read(f"operator {name!r}", operator.columns, known, "the DataFrame")
        wanted.update(df.columns if read is None else read)
    kept = [name for name in df.columns if name in wanted]
    if not columns and len(kept) == len(df.columns):
        return df
    quoted = ("`" + name.replace("`", "``") + "`" for name in kept)
    return df.select(*map(F.col, quoted), *columns.values())


# The key ------------------------------------------------------------------------------------------


def _key(df: DataFrame, key: Any) -> tuple[list[str], dict[str, Column]]:
    """Return the names of the key's columns, and those of them that have to be made."""
    parts = list(key) if isinstance(key, list | tuple) else [key]
    if not parts:
        raise BadValueError("key", "have at least one column", key)
    names: list[str] = []
    made: dict[str, Column] = {}
    for part in parts:
        name, column = _key_part(df, part)
        if column is not None:
            # The same expression twice is found below, since its name is that of a made one.
            while name not in made and any(_same(name, known) for known in df.columns):
                name += "'"
            made[name] = column.alias(name)
        names.append(name)
    if len(set(names)) < len(names):
        raise BadValueError("key", "have each column once", names)
    return names, made


def _same(one: str, other: str) -> bool:
    return one.lower() == other.lower()


def _key_part(df: DataFrame, part: Any) -> tuple[str, Column | None]:
    """Return the name of a key's column, and how it is made if it is not one of the DataFrame."""
    if isinstance(part, Column) and not type(part).__module__.startswith("pyspark.sql.connect"):
        return _analysed(df, part, lambda: part)
    if not isinstance(part, str):
        must = "be the name of a column, a Column, an expression in SQL, or several of these"
        raise BadValueError("key", must, part)
    if part in df.columns:
        return part, None
    alike = [name for name in df.columns if _same(name, part)]
    if alike and not _tells_capitals(df):
        return alike[0], None
    if _WORD.fullmatch(part):
        # Spark would say so too, at length.
        raise BadValueError("key", "be a column of the DataFrame", part, closest(part, df.columns))
    return _analysed(df, part, lambda: F.expr(part))


def _analysed(df: DataFrame, part: Any, make: Callable[[], Column]) -> tuple[str, Column | None]:
    """Return what Spark makes of an expression; see `_key_part`."""
    try:
        column = make()
        selected = df.select(column)
    except PySparkException as error:
        first = str(error).strip().split("\n", 1)[0]
        hint = closest(str(part), df.columns) + ("; several as a list" if "," in str(part) else "")
        must = "be a column of the DataFrame, or an expression of them"
        raise BadValueError("key", must, f"{part}: {first}", hint) from None
    if len(selected.columns) != 1:
        raise BadValueError("key", "be one column each", str(part), "give several as a list")
    plan = selected._jdf.queryExecution().analyzed()
    own = df._jdf.queryExecution().analyzed()
    for node in _down_to(plan, own):
        if node in _ROWS_CHANGE:
            hint = "make it a column first, with select(…) or groupBy(…)"
            raise BadValueError("key", "be made of one row at a time", str(part), hint)
    found = plan.expressions().head()
    if found.getClass().getSimpleName() == "AttributeReference":
        for place, name in enumerate(df.columns):
            if own.output().apply(place).exprId().equals(found.exprId()):
                return name, None
        return selected.columns[0], column
    name = selected.columns[0]
    # Spark calls a field of a struct by its last name alone, and a cast like what is cast.
    path = _EXPRESSION_ID.sub("", found.child().toString())
    taken = any(_same(name, known) for known in df.columns)
    return (path if taken or path.endswith(f".{name}") else name), column


def _down_to(plan: Any, own: Any) -> Iterator[str]:
    """Yield the names of the nodes that Spark put on top of a plan."""
    for _ in range(_DEEPEST):
        if plan.equals(own):
            return
        yield plan.nodeName()
        plan = plan.children().head()


def _require_comparable(who: str, column: StructField) -> None:
    """Refuse keys that Spark compares otherwise than by their bytes, or not at all."""
    for _, kind in _parts("", column.dataType):
        name = f"key column {column.name!r} of {who}"
        if isinstance(kind, T.StringType) and getattr(kind, "collation", _BY_BYTES) != _BY_BYTES:
            hint = "key by lower(…), or by collate(…, 'UTF8_BINARY')"
            raise UnsupportedKeyError(name, "be a string without collation", str(kind), hint)
        if type(kind).__name__ == "VariantType":
            hint = "key by variant_get(…) of it, or by to_json(…)"
            raise UnsupportedKeyError(name, "be of a type with equality", str(kind), hint)


# Types --------------------------------------------------------------------------------------------


def _parts(path: str, kind: DataType) -> Iterator[tuple[str, DataType]]:
    """Yield a type and all that are inside of it, with the way there."""
    yield path, kind
    if isinstance(kind, T.UserDefinedType):
        yield from _parts(path, kind.sqlType())
    elif isinstance(kind, StructType):
        for field in kind.fields:
            yield from _parts(f"{path}.{field.name}", field.dataType)
    elif isinstance(kind, T.ArrayType):
        yield from _parts(f"{path}.element", kind.elementType)
    elif isinstance(kind, T.MapType):
        yield from _parts(f"{path}.key", kind.keyType)
        yield from _parts(f"{path}.value", kind.valueType)


def _require_carried(who: str, kind: DataType) -> None:
    """Refuse types that Spark does not carry to Python and back as Arrow."""
    for path, part in _parts("", kind):
        where = f"{path.removeprefix('.')} of {who}" if path else who
        if isinstance(part, StructType):
            if len(set(part.names)) < len(part.names):
                raise BadValueError(where, "have fields of different names", part.names)
        elif not isinstance(part, T.ArrayType | T.MapType | T.UserDefinedType):
            name = type(part).__name__
            if not _CARRIED.fullmatch(name):
                hint = _INSTEAD.get(name, "cast it to another type")
                must = "be of a type that Spark carries to Python and back"
                raise BadValueError(where, must, part.simpleString(), hint)


# What comes back ----------------------------------------------------------------------------------


def _require_operators(operators: Mapping[str, Operator], tagged: bool | None) -> None:
    if not operators:
        raise BadValueError("operators", "be at least one", operators)
    if tagged is False and len(operators) > 1:
        raise BadValueError("outputs of several operators", "be tagged", list(operators))
    seen: dict[str, str] = {}
    for name, operator in operators.items():
        require_name("operator", name)
        require_instance(f"operator {name!r}", operator, Operator)
        kind_of(operator)
        alike = seen.setdefault(name.lower(), name)
        if alike != name:
            must = "have a name of its own, capitals apart"
            raise BadValueError(f"operator {name!r}", must, f"that of operator {alike!r}")
        if name.lower() == TAG and (tagged or len(operators) > 1):
            must = f"not be called like the column {TAG!r} of the result"
            raise BadValueError(f"operator {name!r}", must, name)


def _output(who: str, operator: Operator) -> tuple[pa.Schema, StructType]:
    """Return the schema of an operator's output, for the engine and for Spark."""
    given: Any = getattr(operator, "output", None)
    who = f"output of {who}"
    output = resolved(who, given)
    if isinstance(given, pa.Schema):
        return output, _from_arrow(who, output)
    if isinstance(given, str):
        try:
            given = StructType.fromDDL(given)
        except PySparkException as error:
            first = str(error).strip().split("\n", 1)[0]
            raise BadValueError(who, "be DDL that Spark can read", given, first) from None
    if not isinstance(given, StructType):
        return output, _from_arrow(who, output)
    for field in given.fields:
        _require_carried(f"column {field.name!r} of the {who}", field.dataType)
    struct: StructType = _simplified(given)
    return to_arrow(struct), struct


def _from_arrow(who: str, output: pa.Schema) -> StructType:
    fields: list[StructField] = []
    for field in output:
        try:
            one = pa.schema([field.with_type(wider(field.type))])
            fields += from_arrow_schema(one, prefer_timestamp_ntz=True).fields
        except (PySparkException, pa.ArrowException) as error:
            name, must = f"column {field.name!r} of the {who}", "be of a type that Spark has"
            raise BadValueError(name, must, str(field.type)) from error
    return StructType(fields)


def _simplified(kind: Any, *, nullable: bool = False) -> Any:
    """Return a type with plain strings in place of strings of a given length."""

    def inner(part: DataType) -> DataType:
        simple: DataType = _simplified(part, nullable=nullable)
        return simple

    if isinstance(kind, StructType):
        return StructType(
            [
                StructField(field.name, inner(field.dataType), field.nullable or nullable)
                for field in kind.fields
            ]
        )
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(inner(kind.elementType), kind.containsNull or nullable)
    if isinstance(kind, T.MapType):
        key, value = inner(kind.keyType), inner(kind.valueType)
        return T.MapType(key, value, kind.valueContainsNull or nullable)
    return T.StringType() if isinstance(kind, T.CharType | T.VarcharType) else kind


def _tagged(outputs: Mapping[str, StructType]) -> StructType:
    tag = StructField(TAG, T.StringType(), False)
    return StructType([tag, *(StructField(name, one, True) for name, one in outputs.items())])
