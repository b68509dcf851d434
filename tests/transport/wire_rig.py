"""Control messages of every kind, and when two messages say the same."""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from tests.core.work_rig import done

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.measure.metrics import ExecutorMetrics, Meter
from elasticutor.core.message import Message
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import NodeId, TaskId
from elasticutor.transport import control
from elasticutor.transport.codec import Kind
from elasticutor.transport.packets import Packet

integers = st.integers(-(2**63), 2**63 - 1)
scalars = st.none() | st.booleans() | integers | st.floats() | st.text(max_size=8) | st.binary()
plain_values = st.recursive(
    scalars | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(scalars | st.tuples(scalars, scalars), inner, max_size=3)
        | st.frozensets(scalars, max_size=3)
        | st.sets(scalars, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def histograms(draw: st.DrawFn) -> LatencyHistogram:
    made = LatencyHistogram()
    for seconds in draw(st.lists(st.floats(0, 5000), max_size=4)):
        made.record(seconds, draw(st.integers(1, 10**9)))
    return made


@st.composite
def measurements(draw: st.DrawFn) -> ExecutorMetrics:
    shards = draw(st.integers(1, 20))
    meter = Meter(shards, now=0.0)
    meter.arrived(draw(st.integers(0, 10**12)), 7)
    wait_s = draw(st.floats(0, 10))
    rows = [3, *[0] * (shards - 1)]
    meter.add_work(done(rows, draw(st.floats(0, 10)), waits_s=[wait_s], wait_counts=[3]))
    return meter.snapshot(draw(st.floats(0.1, 10)))


arrays = st.sampled_from(["<f8", "<i4", "<u8", "|b1"]).flatmap(
    lambda kind: st.integers(0, 5).map(lambda size: np.arange(size * 2)[::2].astype(kind))
)
orders = st.sampled_from(
    [do.SendLabel(TaskId(1), *(2, 3)), ev.BalanceDue(), do.OpenStore(NodeId("n"), *(1, 2))]  # type: ignore[arg-type]
)

CONTROL = sorted(control._FORMS, key=lambda kind: kind.__qualname__)


@functools.cache
def messages_of(kind: type) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{name: of(hint) for name, hint in get_type_hints(kind).items()})


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if hint is Any:
        return plain_values | orders
    hint = getattr(hint, "__supertype__", hint)
    if hint is int:
        return integers
    if hint is LatencyHistogram:
        return histograms()
    if hint is ExecutorMetrics:
        return measurements()
    if "ndarray" in str(hint):
        return arrays
    if dataclasses.is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, Message)):
        return messages_of(hint)  # type: ignore[arg-type]
    origin: Any = get_origin(hint)
    args: tuple[Any, ...] = get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(of, args))
    if origin is Mapping:
        return st.dictionaries(of(args[0]), of(args[1]), max_size=3)
    if origin is tuple:
        if args[-1] is ...:
            return st.lists(of(args[0]), max_size=3).map(tuple)
        return st.tuples(*map(of, args))
    return st.from_type(hint)


controls = st.sampled_from(CONTROL).flatmap(messages_of)


def same(one: Any, other: Any) -> bool:
    """Whether two messages say the same, where `==` does not look or NaN is in the way."""
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other) and (one.ndim == 2 or one.dtype == other.dtype)
    if isinstance(one, pa.Buffer | memoryview):
        return bytes(one) == bytes(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        both_nan = math.isnan(one) and math.isnan(other)  # a note in JSON has one NaN
        return both_nan or struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, Packet):
        return all(same(getattr(one, n), getattr(other, n)) for n in ("births", "hashes", "data"))
    if isinstance(one, msgspec.Struct):
        return all(same(getattr(one, n), getattr(other, n)) for n in one.__struct_fields__)
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.values()), list(other.values())) and repr([*one]) == repr([*other])
    if isinstance(one, set | frozenset):  # each NaN has a hash, and so a place, of its own
        return sorted(map(repr, one)) == sorted(map(repr, other))
    return bool(one == other) or repr(one) == repr(other)


def as_shipped(frames: list[Any]) -> list[bytes]:
    return [bytes(memoryview(frame)) for frame in frames]


def control_head(name: str) -> bytes:
    """What a control message of this name begins with."""
    return bytes([0xE1, 1, Kind.CONTROL, len(name)]) + name.encode()
