"""Messages between the Spark tasks of a query, which feed its operators, and the driver."""

from __future__ import annotations

from collections.abc import Mapping

from elasticutor.core.measure.latency import LatencyHistogram
from elasticutor.core.message import Message
from elasticutor.core.protocol.batch_protocol import Ingress
from elasticutor.core.protocol.ids import Attempt, Epoch, NodeId, Peer
from elasticutor.transport.channels import Endpoint


class Arrive(Message):
    """A task asks to be admitted."""

    frame: str
    """The elastic DataFrame that the task belongs to."""
    query: str
    """Empty for an action on a batch DataFrame."""
    group: str
    """The job group: the run of the query, unless the user has set another one."""
    task: Ingress
    endpoint: Endpoint
    home: str
    """Its machine, user and Spark executor; processes of one home can share files."""


class Admitted(Message):
    """The task may send, under this name."""

    task: int
    run: str
    attempt: Attempt
    epoch: Epoch
    upstream: Peer
    credit: int
    """Bytes that it may send to each executor, and each executor to it, until the next grant."""
    measure_s: float
    book: Mapping[str, Endpoint]
    """Where the executors are."""
    node: NodeId
    """The node on its machine; empty if there is none."""
    sockets: str
    """The directory of that node's ipc sockets."""


class Refused(Message):
    """The task must fail."""

    task: int
    error: bytes
    """The exception, pickled by the driver."""
    text: str
    """The same in words."""


class PartitionDone(Message):
    """The task has sent all rows, and has all their outputs."""

    run: str
    task: Ingress
    attempt: Attempt
    rows_in: Mapping[str, int]
    """By operator, as the next fields are."""
    rows_out: Mapping[str, int]
    latency: Mapping[str, LatencyHistogram]


class Left(Message):
    """The task may end: everything it has sent is durable."""

    task: int
