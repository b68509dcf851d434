"""The specification of each process: pickled, and handed on by the node that starts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.protocol.ids import NodeId, Peer, TaskId
from elasticutor.state.checkpoint import StateForm
from elasticutor.transport.channels import Endpoint
from elasticutor.transport.security import ClusterKeys


@dataclass(frozen=True, slots=True)
class Site:
    """Where a process is, and how it reaches the driver."""

    run: str
    node: NodeId
    sockets: str
    """The directory of the process's socket files; empty where there is none."""
    host: str
    """The address under which others reach this machine."""
    keys: ClusterKeys
    driver: Endpoint
    life: int = 0
    """Which one of its name it is: one that was lost has a successor."""
    on_node: bool = True
    """Whether it is on a node; sources and sinks are on none."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where the tuples of a stream go: to the executors of one operator by key, or to a sink."""

    name: str
    key: tuple[str, ...]
    """Empty for a sink."""
    peers: tuple[Peer, ...]
    shards: int = 0
    """Of the operator as a whole, where upstreams hold the table of them; otherwise 0."""
    columns: tuple[str, ...] | None = None
    """Those of the stream that are sent, in its order, the key's among them; None: all of them."""

    @property
    def returns(self) -> bool:
        """Whether the tuples go back to the sender of what they were made of."""
        return not self.name

    def schema(self, stream: pa.Schema) -> pa.Schema:
        """Of what is sent, given that of the stream."""
        if self.columns is None:
            return stream
        return pa.schema([stream.field(name) for name in self.columns])


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """A user's operator, and what goes in and out."""

    name: str
    blob: bytes
    key: tuple[str, ...]
    input: pa.Schema
    output: pa.Schema
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where an executor's state is made durable, and how."""

    uri: str
    form: StateForm


@dataclass(frozen=True, slots=True)
class Tempo:
    """How often things are done, in seconds."""

    balance_s: float = 0.1
    """Between two looks at the balance of an executor's tasks; 0: never."""
    measure_s: float = 0.25
    """Between two measurements sent to the driver."""
    patience_s: float = 60.0
    """How long to wait for an answer before giving up."""


@dataclass(frozen=True, slots=True)
class ExecutorSpec:
    """An elastic executor's main process."""

    site: Site
    who: Peer
    number: int
    config: ExecutorConfig
    operator: OperatorSpec
    upstreams: tuple[Peer, ...]
    cores: Mapping[NodeId, int]
    nodes: Mapping[NodeId, Endpoint]
    tempo: Tempo
    store: Peer
    """Whose state it works on: its own, or its operator's where upstreams hold the table."""
    keeping: Keeping | None = None
    """Where its state is made durable; None: nowhere."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task's process; the node that starts it fills in the site and the store."""

    site: Site
    who: Peer
    """Its executor."""
    number: int
    task: TaskId
    operator: OperatorSpec
    main: Endpoint
    store: str = ""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A source task."""

    site: Site
    who: Peer
    blob: bytes
    schema: pa.Schema
    task: int
    tasks: int
    routes: tuple[Route, ...]
    credit_bytes: int
    tempo: Tempo
    checkpointed: bool = False
    """Whether it learns which epochs are committed, and its reader what that covers."""


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """A sink."""

    site: Site
    who: Peer
    blob: bytes
    schema: pa.Schema
    upstreams: tuple[Peer, ...]
    credit_bytes: int
    tempo: Tempo
    checkpointed: bool = False
    """Whether it publishes by epochs, if it can; otherwise there is one, at the very end."""
    job: str = ""
    """What stays the same when the run is started again: where the checkpoint is."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node's process."""

    node: NodeId
    cores: int
    cpus: tuple[int, ...]
    """To pin tasks to; empty: not pinned."""
    site: Site
    home: str
    state: str
    """The directory of its stores."""
    logs: str
    map_bytes: int
    note: str
    silence_s: float
    """How long the driver may be silent before the node ends by itself."""
    slot: str
    """What it is called among the nodes that were wanted, whichever life of it this is."""
    before: str = ""
    """How the one before it in this slot ended."""
