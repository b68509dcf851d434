"""The data source that a user gave: checked here, made where it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from elasticutor.errors import BadValueError, ElasticutorError


class DataSourceError(ElasticutorError, RuntimeError):
    """A data source broke its interface."""


@dataclass(frozen=True)
class Given:
    """A data source's class and its options; or a data source that was made already."""

    source: DataSource | type[DataSource]
    options: Mapping[str, str]

    @property
    def who(self) -> str:
        """What errors call it."""
        return f"data source {self.source.name()!r}"

    def made(self) -> DataSource:
        """Return the data source itself: a new one, unless one was given."""
        if isinstance(self.source, DataSource):
            return self.source
        # Spark's own way: options of data sources do not tell capitals apart.
        return self.source(options=CaseInsensitiveDict(self.options))

    def has(self, method: str) -> bool:
        """Return whether it has a method that the base class only promises."""
        kind = self.source if isinstance(self.source, type) else type(self.source)
        return getattr(kind, method) is not getattr(DataSource, method)


def require_given(source: Any, options: Mapping[str, str] | None, *methods: str) -> Given:
    """Return a data source that has one of these methods and survives pickling."""
    _require_data_source(source)
    _require_options(source, options)
    given = Given(source, dict(options or {}))
    if not any(given.has(method) for method in methods):
        raise BadValueError(given.who, f"have {' or '.join(methods)}", "neither of them")
    try:
        cloudpickle.loads(cloudpickle.dumps(given))
    except Exception as error:  # users' classes may raise anything here
        hint = "make files and connections in the methods that use them, not in __init__"
        got = f"{type(error).__name__}: {error}"
        raise BadValueError(given.who, "survive pickling", got, hint) from error
    return given


def to_spark(schema: pa.Schema) -> StructType:
    """Return an Arrow schema as Spark has it; needs no JVM. Refuses columns that Spark lacks."""
    for field in schema:
        try:
            from_arrow_schema(pa.schema([field]), prefer_timestamp_ntz=True)
        except PySparkException as error:
            who, got = f"column {field.name!r}", str(field.type)
            raise BadValueError(who, "have a type that Spark has", got, "cast it") from error
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def require_kind(who: str, thing: Any, *kinds: type) -> Any:
    """Return what a user's method returned, if it is of one of these kinds."""
    if not isinstance(thing, kinds):
        must = f"return a {' or '.join(kind.__name__ for kind in kinds)}"
        raise DataSourceError(who, must, thing)
    return thing


def _require_data_source(source: Any) -> None:
    kind = source if isinstance(source, type) else type(source)
    if issubclass(kind, DataSource):
        return
    hint = "derive from pyspark.sql.datasource.DataSource"
    if isinstance(source, str):
        hint = "registered names are known to Spark's JVM only: give the class"
    raise BadValueError("data source", "be a DataSource, or its class", source, hint)


def _require_options(source: Any, options: Mapping[str, str] | None) -> None:
    if isinstance(source, DataSource) and options:
        hint = "give them when you make it, or give its class"
        raise BadValueError("options of a data source that is made", "be left out", options, hint)
    for name, value in (options or {}).items():
        given: tuple[Any, Any] = (name, value)
        if not all(isinstance(part, str) for part in given):
            raise BadValueError(f"option {name!r}", "be text", value, f"write {str(value)!r}")
