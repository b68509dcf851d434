"""Conversion of users' schemas, in three forms, to Arrow.

`to_arrow` takes an Arrow schema, a DDL string such as `"user_id long, price decimal(10, 2)"`, or a
Spark `StructType`. All three become what Spark itself would send as Arrow, so that the same tuples
can come from Spark and go back to it. Neither Spark nor a JVM is needed: this has its own reader of
DDL, and a `StructType` is asked for its JSON.

Comments and other metadata of columns are read and left out, because they say nothing about the
tuples.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import pyarrow as pa

from elasticutor.errors import BadValueError

SchemaLike: TypeAlias = Any
"""An Arrow schema, a DDL string, or a Spark `StructType`."""

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("ns"),
    "void": pa.null(),
    # The metadata is how Spark knows a variant from any other struct of two binaries.
    "variant": pa.struct(
        [
            pa.field("value", pa.binary(), nullable=False),
            pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
        ]
    ),
}
_DECIMALS = ("decimal", "dec", "numeric")
_LENGTHS = ("char", "character", "varchar")
_NESTED = ("array", "map", "struct")
_DAY_TIME = ("day", "hour", "minute", "second")
_KNOWN = (*_PLAIN, *_DECIMALS, *_LENGTHS, *_NESTED, "interval")
_MOST_DIGITS = 38
_FINEST_TIME = 9


def to_arrow(schema: SchemaLike, resolve: Callable[[str], SchemaLike] | None = None) -> pa.Schema:
    """Return an Arrow schema, with the types that Spark maps to.

    `schema` is an Arrow schema, which is returned as it is; a DDL string; or a Spark `StructType`
    (anything with `jsonValue` or `json`). `resolve` reads DDL strings in place of the reader here.

    Example:
        >>> print(to_arrow("user_id long NOT NULL, tags array<string>").remove_metadata())
        user_id: int64 not null
        tags: list<element: string>
          child 0, element: string
        >>> to_arrow("user_id lnog, clicks int")
        Traceback (most recent call last):
            ...
        elasticutor.errors.BadValueError: DDL schema must have a type at character 9; got 'lnog'. \
Hint: did you mean 'long'?
            user_id lnog, clicks int
                    ^
    """
    if isinstance(schema, str) and resolve is not None:
        return to_arrow(resolve(schema))
    if isinstance(schema, pa.Schema):
        found = schema
    elif isinstance(schema, str):
        found = pa.schema(_Ddl(schema).columns())
    else:
        found = pa.schema(_fields(_spark_json(schema)))
    _require_columns(found)
    return found


def closest(name: str, known: Iterable[str]) -> str:
    """Return a hint for a mistyped name: the nearest known one, or all of them."""
    names = list(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    if near:
        return f"did you mean {lowered[near[0]]!r}?"
    return "there are " + ", ".join(map(repr, names)) if names else "there are none"


def columns_read(who: str, columns: Any, known: Sequence[str], of: str) -> tuple[str, ...] | None:
    """Return the columns that an operator says it reads (`Operator.columns`); None: all of them.

    `who` names the operator in errors, and `of` what has the `known` columns.
    """
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Sequence | set | frozenset):
        must = "be several names of columns, or None for all of them"
        raise BadValueError(f"columns of {who}", must, columns, 'for example ("user_id", "at")')
    for name in columns:
        if name not in known:
            hint = closest(str(name), known)
            raise BadValueError(f"columns of {who}", f"be columns of {of}", name, hint)
    return tuple(columns)


def _require_columns(schema: pa.Schema) -> None:
    names = schema.names
    if not names:
        raise BadValueError("schema", "have at least one column", "none")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadValueError("schema", "have columns of different names", names, f"rename {twice}")


def _spark_json(schema: object) -> dict[str, Any]:
    """Return what a `StructType` says about itself, known by its methods and not by its class."""
    spoken: object = None
    if not isinstance(schema, type):
        if callable(ask := getattr(schema, "jsonValue", None)):
            spoken = ask()
        elif callable(ask := getattr(schema, "json", None)):
            spoken = json.loads(ask())
    if isinstance(spoken, dict) and spoken.get("type") == "struct":
        return spoken
    hint = 'for example "user_id long, clicks int"'
    raise BadValueError("schema", "be an Arrow schema, DDL or a StructType", schema, hint)


def _fields(struct: dict[str, Any]) -> list[pa.Field]:
    return [
        _field(field["name"], _json_type(field["type"]), nullable=field["nullable"])
        for field in struct["fields"]
    ]


def _json_type(spoken: str | dict[str, Any]) -> pa.DataType:
    """Return a type in Spark's JSON: its DDL name, or an object if it has others inside."""
    if isinstance(spoken, str):
        return _Ddl(spoken).single()
    kind = spoken["type"]
    if kind == "struct":
        return pa.struct(_fields(spoken))
    if kind == "array":
        return _list(_json_type(spoken["elementType"]), nullable=spoken["containsNull"])
    if kind == "map":
        key, value = _json_type(spoken["keyType"]), _json_type(spoken["valueType"])
        return _map(key, value, nullable=spoken["valueContainsNull"])
    if kind == "udt":
        return _json_type(spoken["sqlType"])
    raise BadValueError("type in a StructType", "be one that Arrow has", kind)


def _field(name: str, kind: pa.DataType, *, nullable: bool) -> pa.Field:
    if pa.types.is_null(kind) and not nullable:
        raise BadValueError(f"void column {name!r}", "be nullable", "NOT NULL")
    return pa.field(name, kind, nullable=nullable)


def _list(element: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    return pa.list_(_field("element", element, nullable=nullable))


def _map(key: pa.DataType, value: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    keys = _field("key", key, nullable=False)
    return pa.map_(keys, _field("value", value, nullable=nullable))


@dataclass(frozen=True, slots=True)
class _Token:
    """A piece of DDL; the last one of every text is the `end`."""

    kind: str
    text: str
    at: int

    def __str__(self) -> str:
        return self.text or "the end"


_TOKEN = re.compile(
    r"""\s*(?:(?P<word>[A-Za-z0-9_]+)
        |(?P<quoted>`(?:[^`]|``)+`)
        |(?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
        |(?P<mark>[<>(),:])
        |(?P<end>$))""",
    re.VERBOSE | re.DOTALL,
)


class _Ddl:
    """A reader of one DDL text, by recursive descent; it knows what Spark's grammar calls types."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._next = 0

    def columns(self) -> list[pa.Field]:
        """Return the text as the columns of a table, or as one struct of them."""
        first, second, *_ = (*self._tokens, self._tokens[-1])
        if first.text.lower() == "struct" and second.text == "<":
            kind = self.single()
            return [kind.field(place) for place in range(kind.num_fields)]
        fields = self._columns()
        self._require_end("',' or the end")
        return fields

    def single(self) -> pa.DataType:
        kind = self._type()
        self._require_end("the end of the type")
        return kind

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        place = 0
        while not tokens or tokens[-1].kind != "end":
            found = _TOKEN.match(self._text, place)
            if found is None:
                place += len(self._text[place:]) - len(self._text[place:].lstrip())
                stray = _Token("stray", self._text[place], place)
                self._refuse(stray, "a name, a type or ','", "put names like this in `backquotes`")
            kind = str(found.lastgroup)
            tokens.append(_Token(kind, found[kind], found.start(kind)))
            place = found.end()
        return tokens

    def _columns(self) -> list[pa.Field]:
        fields = [self._column()]
        while self._took(","):
            fields.append(self._column())
        return fields

    def _column(self) -> pa.Field:
        token = self._take()
        if token.kind == "quoted":
            name = token.text[1:-1].replace("``", "`")
        elif token.kind == "word":
            name = token.text
        else:
            self._refuse(token, "the name of a column")
        self._took(":")
        kind = self._type()
        nullable = True
        if self._took("not"):
            self._expect("null")
            nullable = False
        if self._took("comment") and (comment := self._take()).kind != "string":
            self._refuse(comment, "the comment in quotes")
        return _field(name, kind, nullable=nullable)

    def _type(self) -> pa.DataType:
        token = self._take()
        name = token.text.lower() if token.kind == "word" else ""
        if name in _DECIMALS:
            return self._decimal(token)
        if name in _LENGTHS:
            self._numbers(1, 1)
            return pa.string()
        if name in _NESTED:
            return self._nested(name)
        if name == "interval":
            return self._interval(token)
        if name not in _PLAIN:
            hint = closest(token.text, _KNOWN) if token.kind == "word" else "a type follows a name"
            self._refuse(token, "a type", hint)
        if name == "time":
            self._time()
        elif name == "string" and self._took("collate"):
            self._take()
        return _PLAIN[name]

    def _nested(self, name: str) -> pa.DataType:
        self._expect("<")
        if name == "struct":
            kind = pa.struct([] if self._peek().text == ">" else self._columns())
        elif name == "array":
            kind = _list(self._type())
        else:
            key = self._type()
            self._expect(",")
            kind = _map(key, self._type())
        self._expect(">")
        return kind

    def _decimal(self, token: _Token) -> pa.DataType:
        precision, scale = (*self._numbers(0, 2), 0, 0)[:2]
        if self._tokens[self._next - 1] is token:
            precision = 10
        if not (1 <= precision <= _MOST_DIGITS and scale <= precision):
            self._refuse(token, f"at most {_MOST_DIGITS} digits, of which at most all are decimals")
        return pa.decimal128(precision, scale)

    def _time(self) -> None:
        before = self._peek()
        if any(digits > _FINEST_TIME for digits in self._numbers(0, 1)):
            self._refuse(before, f"at most {_FINEST_TIME} digits of a second")

    def _interval(self, token: _Token) -> pa.DataType:
        """Days to seconds are a duration; months have no Arrow type that Spark would take."""
        units = [self._take().text.lower()]
        if self._took("to"):
            units.append(self._take().text.lower())
        places = [_DAY_TIME.index(unit) for unit in units if unit in _DAY_TIME]
        if len(places) < len(units) or places != sorted(set(places)):
            hint = "an interval of months has no Arrow type in Spark; use an int"
            self._refuse(token, "an interval such as 'interval day to second'", hint)
        return pa.duration("us")

    def _numbers(self, least: int, most: int) -> list[int]:
        """Numbers in round brackets, which may be left out if the least is 0."""
        if least == 0 and self._peek().text != "(":
            return []
        self._expect("(")
        numbers = [self._number()]
        while len(numbers) < most and self._took(","):
            numbers.append(self._number())
        self._expect(")")
        return numbers

    def _number(self) -> int:
        token = self._take()
        if not (token.text.isascii() and token.text.isdigit()):
            self._refuse(token, "a number")
        return int(token.text)

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _took(self, *texts: str) -> bool:
        token = self._peek()
        taken = token.kind in ("word", "mark") and token.text.lower() in texts
        self._next += taken
        return taken

    def _expect(self, text: str) -> None:
        if not self._took(text):
            self._refuse(self._peek(), repr(text))

    def _require_end(self, wanted: str) -> None:
        if self._peek().kind != "end":
            self._refuse(self._peek(), wanted)

    def _refuse(self, token: _Token, wanted: str, hint: str = "it is here") -> NoReturn:
        """Say what should have been at this place, and point at it."""
        before = self._text[: token.at]
        start = before.rfind("\n") + 1
        line = self._text[start:].split("\n", 1)[0]
        shown = f"{hint}\n    {line}\n    {' ' * (token.at - start)}^"
        where = f"character {token.at - start + 1}"
        if "\n" in self._text:
            where = f"line {before.count(chr(10)) + 1}, {where}"
        raise BadValueError("DDL schema", f"have {wanted} at {where}", str(token), shown)
