"""Hosts: the work of a Spark task that hosts nodes, or the sources and sinks of a run.

A host starts a zygote, has its processes forked, and stays until all have ended. It knows nothing
of Spark; a plain process will do as well.
"""

from __future__ import annotations

import os
import pickle
import secrets
import shutil
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from elasticutor._version import __version__
from elasticutor.core.protocol.coordinator import PlaceCleared, ProcessLost
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.errors import ElasticutorError
from elasticutor.process.failures import SilentDriverError, described_end, lost_on
from elasticutor.process.hosting.directories import SHARED_MEMORY, NodeDirectories, remove_stale
from elasticutor.process.hosting.zygote import Ended, Fork, Zygote
from elasticutor.process.specs import NodeSpec, Site
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Endpoint, Links, advertised_host
from elasticutor.transport.mailbox import DRIVER, Mailbox
from elasticutor.transport.security import ClusterKeys

GIB = 1024**3
_TICK_S = 1.0
SILENCE_S = 30.0
"""How long the driver may be silent before a node, or a host of sources and sinks, ends."""
SILENT = 75
"""The exit code of a node that got no heartbeat from the driver."""
_LONG_LIFE_S = 30.0
"""A node that has lasted so long is started again at once when it is lost."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 5.0
"""Before one is started again that was lost sooner: at first, and at most."""
_PATIENCE_S = 60.0
"""How long a host of sources and sinks waits for the order what to start."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What a host needs to find its cluster; handed out through Spark, keys included."""

    cluster: str
    keys: ClusterKeys
    driver: Endpoint
    address: tuple[str, int]
    """The driver's, to find out which of our own addresses reaches it."""
    version: str = __version__
    """Of elasticutor on the driver."""

    def require_version(self) -> None:
        """Refuse to work with another version: its messages may not be ours."""
        if self.version != __version__:
            raise ElasticutorError(
                "elasticutor on Spark's executors",
                f"be the driver's version, {self.version}",
                __version__,
                "install the same version everywhere",
            )


@dataclass(frozen=True, slots=True)
class NodesWanted:
    """The nodes that one host is to start."""

    names: tuple[str, ...]
    cores: int
    pin: bool | None
    """Pin tasks to CPUs; None: if the machine has more CPUs than its nodes have cores."""
    map_bytes: int = 64 * GIB
    """The most that one executor's state on one node can take."""
    need_bytes: int = GIB // 4
    """Less free shared memory than this, and state goes to disk."""
    shared_memory: str = SHARED_MEMORY
    silence_s: float = SILENCE_S
    slots: tuple[str, ...] = ()
    """The names that they had at first; empty: these."""

    def renamed(self, suffix: str) -> NodesWanted:
        """The same under other names, so that no node is mistaken for one that was lost."""
        if not suffix:
            return self
        names = tuple(f"{name}{suffix}" for name in self.names)
        return replace(self, names=names, slots=self.slots or self.names)

    def only(self, number: int) -> NodesWanted:
        """The one of this number."""
        slots = self.slots[number : number + 1]
        return replace(self, names=self.names[number : number + 1], slots=slots)


def home() -> str:
    """Which machine, user and Spark executor this process is on: those alike can share files."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = socket.gethostname()
    spark = os.environ.get("SPARK_EXECUTOR_DIRS", "") or os.environ.get("SPARK_LOCAL_DIRS", "")
    return f"{boot}:{os.getuid()}:{spark}"


def host_nodes(bootstrap: Bootstrap, wanted: NodesWanted) -> None:
    """Start nodes, and stay until all of them have ended."""
    bootstrap.require_version()
    remove_stale()
    host = advertised_host(bootstrap.address)
    places = [
        NodeDirectories.make(
            bootstrap.cluster, name, need_bytes=wanted.need_bytes, shm=wanted.shared_memory
        )
        for name in wanted.names
    ]
    mail = _mail(bootstrap, host, f"host of {', '.join(wanted.names)}")
    try:
        owned = [path for place in places for path in place.owned]
        holding = [lock for place in places for lock in place.locks]
        with Zygote.start(owned=owned, holding=holding) as zygote:
            cpus = _cpus(wanted)
            nodes = [
                _Hosted(_node_spec(bootstrap, wanted, number, place, host, cpus))
                for number, place in enumerate(places)
            ]
            _await_nodes(zygote, mail, nodes)
    finally:
        mail.close(linger_s=2.0)
        for place in places:
            place.remove()


class _Hosted:
    """A node that is started, and started again as another one when it was lost."""

    def __init__(self, spec: NodeSpec) -> None:
        self._first = spec
        self._lives = 0
        self._started_at = 0.0
        self._pause_s = 0.0
        self._silences = 0
        self._how = ""
        self.name = ""
        self.due_at = 0.0
        """When to start it; infinity while it lives."""

    def lost(self, how: str, *, silent: bool) -> None:
        """Note its end. The sooner that was after its start, the longer the next one waits.

        The driver may hear of its successor before its end, so the successor knows how it ended.
        Without a heartbeat from the driver twice in a row, there is no driver and no successor.
        """
        self._how = how
        self._silences = self._silences + 1 if silent else 0
        if self._silences > 1:
            self.over()
            return
        now = time.monotonic()
        lasted_s = now - self._started_at
        if lasted_s > _LONG_LIFE_S:
            self._pause_s = 0.0
        self.due_at = now + self._pause_s
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s + _FIRST_PAUSE_S)

    def over(self) -> None:
        """Note that it has ended in good order: it is not started again."""
        self.due_at = float("inf")

    def start(self, zygote: Zygote) -> None:
        """Start it, for the first time or again."""
        self.name = f"{self._first.node}.{self._lives}" if self._lives else str(self._first.node)
        self._lives += 1
        self._started_at, self.due_at = time.monotonic(), float("inf")
        for left in Path(self._first.state).iterdir():  # its predecessor's, and not open
            shutil.rmtree(left, ignore_errors=True)
        node = NodeId(self.name)
        site = replace(self._first.site, node=node)
        spec = replace(self._first, node=node, site=site, before=self._how)
        payload, log = pickle.dumps(spec, pickle.HIGHEST_PROTOCOL), str(Path(spec.logs, "node.log"))
        target = "elasticutor.process.node:run_node"
        zygote.fork(Fork(self.name, target, payload, connected=True, log=log))


def _await_nodes(zygote: Zygote, mail: Mailbox, nodes: Sequence[_Hosted]) -> None:
    mail.watch(zygote.fileno())
    while zygote.living or any(node.due_at < float("inf") for node in nodes):
        for node in nodes:
            if node.due_at <= time.monotonic():
                node.start(zygote)
        mail.wait(min(_TICK_S, *(max(0.0, n.due_at - time.monotonic()) for n in nodes), _TICK_S))
        for _ in mail.receive():
            mail.drop("a host of nodes takes no messages")
        for event in zygote.receive():
            if isinstance(event, Ended):
                ended = next(node for node in nodes if node.name == event.name)
                if event.code:
                    how = f"its process ended ({described_end(event.code)})"
                    last = f"; its last words: {event.said.strip()}" if event.said.strip() else ""
                    mail.send(DRIVER, say.NodeGone(NodeId(event.name), how + last))
                    ended.lost(how + last, silent=event.code == SILENT)
                else:  # the cluster is over
                    for node in nodes:
                        node.over()


def _cpus(wanted: NodesWanted) -> tuple[int, ...]:
    if not hasattr(os, "sched_getaffinity") or wanted.pin is False:
        return ()
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    needed = wanted.cores * len(wanted.names)
    enough = len(cpus) >= needed if wanted.pin else len(cpus) > needed
    return cpus[-needed:] if enough else ()


def _node_spec(
    bootstrap: Bootstrap,
    wanted: NodesWanted,
    number: int,
    place: NodeDirectories,
    host: str,
    cpus: tuple[int, ...],
) -> NodeSpec:
    node, cores = NodeId(wanted.names[number]), wanted.cores
    return NodeSpec(
        node=node,
        cores=cores,
        cpus=cpus[number * cores : (number + 1) * cores],
        site=Site("", node, str(place.sockets), host, bootstrap.keys, bootstrap.driver),
        home=home(),
        state=str(place.state),
        logs=str(place.logs),
        map_bytes=wanted.map_bytes,
        note=place.note,
        silence_s=wanted.silence_s,
        slot=(wanted.slots or wanted.names)[number],
    )


def ends_name(number: int) -> str:
    """The name of a host of sources and sinks."""
    return f"ends {number}"


def host_ends(bootstrap: Bootstrap, run: str, number: int) -> None:
    """Start the sources and sinks that the driver names, and stay until all have ended."""
    bootstrap.require_version()
    host = advertised_host(bootstrap.address)
    mail = _mail(bootstrap, host, f"{ends_name(number)} of {run}")
    # One host of a number may follow another of the same while that is still ending.
    name = f"e{number}-{secrets.token_hex(3)}"
    place = NodeDirectories.make(bootstrap.cluster, name, need_bytes=0)
    try:
        with Zygote.start(owned=place.owned, holding=place.locks) as zygote:
            up = say.EndsHostUp(run, number, mail.endpoint, home(), host, str(place.sockets))
            mail.send(DRIVER, up)
            for end in _await_ends(mail):
                _start_end(zygote, end)
            _await_end(zygote, mail, run, f"host {number} of sources and sinks")
        name = ends_name(number)
        mail.send(DRIVER, say.Said(run, Peer(name), PlaceCleared(name)))
    finally:
        mail.close(linger_s=2.0)
        place.remove()


def _start_end(zygote: Zygote, end: say.StartEnd) -> None:
    target = f"elasticutor.process.{end.kind}:run_{end.kind}"
    if f"{end.who}/{end.life}" in zygote.living:
        return  # the order came twice
    zygote.fork(Fork(f"{end.who}/{end.life}", target, end.payload))


def _await_ends(mail: Mailbox) -> tuple[say.StartEnd, ...]:
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        mail.wait(_TICK_S)
        for message in mail.receive():
            if isinstance(message, say.StartEnds):
                return message.ends
            if isinstance(message, say.EndRun):
                return ()
    raise ElasticutorError("driver", f"say what to start within {_PATIENCE_S:g} s", "silence")


def _await_end(zygote: Zygote, mail: Mailbox, run: str, where: str) -> None:
    mail.watch(zygote.fileno())
    kill_at, heard_at = float("inf"), time.monotonic()
    over = not zygote.living
    while zygote.living or not over:
        mail.wait(_TICK_S)
        for message in mail.receive():
            heard_at = time.monotonic()
            match message:
                case say.EndRun():
                    over, kill_at = True, time.monotonic() + message.grace_s
                case say.StartEnds() if not over:
                    for end in message.ends:
                        _start_end(zygote, end)
                case say.KillEnd():
                    zygote.kill(f"{message.who}/{message.life}")
                case say.Beat():
                    pass
                case _:
                    mail.drop(f"{type(message).__name__} is not for a host of sources and sinks")
        if time.monotonic() - heard_at > SILENCE_S:
            raise SilentDriverError.after(SILENCE_S, where)
        if time.monotonic() >= kill_at:
            kill_at = float("inf")
            for name in zygote.living:
                zygote.kill(name)
        for event in zygote.receive():
            if isinstance(event, Ended) and event.code:
                who, _, life = event.name.rpartition("/")
                reason = lost_on(where, event.code, event.said)
                lost = ProcessLost(Peer(who), int(life), None, reason)
                mail.send(DRIVER, say.Said(run, Peer(who), lost))


def _mail(bootstrap: Bootstrap, host: str, name: str) -> Mailbox:
    links = Links(name, bootstrap.keys, ipc_dir=None, host=host)
    mail = Mailbox(links, "host")
    mail.know(DRIVER, bootstrap.driver)
    return mail
