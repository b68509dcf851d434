"""A node's process: it starts and ends processes, and keeps the executors' stores.

It has every executor's state of this node in its care (`core.protocol.keeper.Keeper`), sends shards
to other nodes and takes them in, and tells the driver of processes that ended without being asked
to. It never looks into state: to it, keys and values are bytes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sys
import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.coordinator import PlaceCleared, ProcessLost
from elasticutor.core.protocol.ids import Peer, TaskId
from elasticutor.core.protocol.keeper import (
    CopyOn,
    DropOn,
    FoldOn,
    Keeper,
    ReadShard,
    SendSlice,
    WriteIncrement,
)
from elasticutor.errors import ElasticutorError, StaleAttemptError, UnknownPeerError
from elasticutor.process.actor import Actor
from elasticutor.process.checkpoint_io import CheckpointIo
from elasticutor.process.failures import SilentDriverError, described, lost_on, reporting
from elasticutor.process.hosting.hosts import SILENT
from elasticutor.process.hosting.zygote import Ended, Fork, ZygoteClient
from elasticutor.process.specs import Keeping, NodeSpec, TaskSpec
from elasticutor.state.checkpoint import StateFile
from elasticutor.state.levels import Levels, Records
from elasticutor.state.lmdb_backend import LmdbBackend
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Endpoint
from elasticutor.transport.mailbox import DRIVER, Mailbox

_TICK_S = 0.5
_CLOSE_S = 5.0
"""How long a task may take to close its operator before it is killed."""

StoreKey: TypeAlias = tuple[str, Peer, int]
"""A run, whose store it is, and which life of theirs."""


def run_node(payload: bytes, zygote: ZygoteClient) -> None:
    """Be the node that the payload describes, until its end."""
    spec: NodeSpec = pickle.loads(payload)  # noqa: S301 - it came from the host, which Spark started
    mail = Mailbox.at(spec.site, "node")
    with reporting(mail, "", f"node {spec.node}"):
        NodeProcess(spec, mail, zygote).run()


@dataclass(slots=True)
class _Store:
    """One executor's state on this node, or that of several who share it."""

    reply: Endpoint | None
    """Where the executor is; None where the driver leads the moves."""
    path: Path
    backend: LmdbBackend
    keeper: Keeper
    keeping: Keeping | None = None
    """Where its state is made durable; None: nowhere."""
    said_bytes: int = -1


@dataclass(slots=True)
class _Process:
    run: str
    who: Peer
    """The participant that it is, or that it works for."""
    task: TaskId | None
    life: int = 0
    ends: bool = False
    """Whether it has the order to end."""
    cpu: int | None = None


@dataclass(slots=True)
class _Ending:
    """A run that is being ended."""

    kill_at: float
    killed: bool = False
    waiting: set[str] = field(default_factory=set)


class NodeProcess(Actor):
    """The life of one node."""

    def __init__(self, spec: NodeSpec, mail: Mailbox, zygote: ZygoteClient) -> None:
        super().__init__(mail, "a node")
        self._spec = spec
        self._zygote = zygote
        self._stores: dict[StoreKey, _Store] = {}
        self._lives: dict[tuple[str, str], int] = {}
        """The first life of an executor that may still ask for something."""
        self._processes: dict[str, _Process] = {}
        self._closing: dict[str, float] = {}  # names of tasks, and when to kill them
        self._ending: dict[str, _Ending] = {}
        self._ended: set[str] = set()
        self._slices: deque[tuple[StoreKey, CopyOn | FoldOn | DropOn]] = deque()
        self._archive = CheckpointIo(spec.node)
        self._others: set[str] = set()
        """The nodes that it knows, by the names under which they are reached."""
        self._free_cpus = list(spec.cpus)
        self._heard_at = time.monotonic()
        mail.watch(zygote.fileno())
        mail.watch(self._archive.fileno())

    def run(self) -> None:
        """Serve until the cluster ends, or the driver has been silent for too long."""
        spec = self._spec
        self._mail.send(
            DRIVER,
            say.NodeUp(
                spec.node,
                spec.cores,
                self._mail.endpoint,
                os.getpid(),
                spec.site.host,
                spec.home,
                spec.site.sockets,
                spec.note,
                spec.slot,
                spec.before,
            ),
        )
        self.every(_TICK_S, self._tick)
        self.serve()

    def work(self) -> float:
        """Take the ends of processes, and do a slice of what is long."""
        for notice in self._zygote.receive():
            if isinstance(notice, Ended):
                self._on_ended(notice)
        self._archive.take()
        if self._slices:
            self._go_on(*self._slices.popleft())
        if self._archive.busy:
            self._archive.hand_out()
        return 0.0 if self._slices or self._archive.busy else _TICK_S

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._heard_at > self._spec.silence_s:
            silence = SilentDriverError.after(self._spec.silence_s, f"node {self._spec.node!r}")
            sys.stderr.write(f"{silence}\n")
            raise SystemExit(SILENT)
        for name, kill_at in list(self._closing.items()):
            if now >= kill_at:
                del self._closing[name]
                self._zygote.kill(name)
        for ending in self._ending.values():
            if now >= ending.kill_at and not ending.killed:
                ending.killed = True
                for name in ending.waiting:
                    self._zygote.kill(name)
        for store in self._stores.values():
            used = store.backend.used_bytes()
            if used != store.said_bytes and store.reply is not None:
                store.said_bytes = used
                self._answer(store.reply, ev.StateMeasured(self._spec.node, used))

    def _answer(self, reply: Endpoint, message: Any) -> None:
        self._mail.know(reply.ipc or reply.tcp, reply)
        self._mail.send(reply.ipc or reply.tcp, message)

    # The driver

    def _on_beat(self, message: say.Beat) -> None:
        self._heard_at = time.monotonic()
        self._mail.send(DRIVER, say.Alive(self._spec.node))

    def _on_peers(self, message: say.Peers) -> None:
        """Keep the addresses of nodes that are up, and forget all others."""
        for gone in self._others - message.book.keys():
            self._mail.forget(gone)
        self._others = set(message.book)
        self._mail.know_all(message.book)

    def _on_end_node(self, message: say.EndNode) -> None:
        self.finish()

    def _start_executor(self, order: say.StartExecutor) -> None:
        name = f"{order.run}/{order.who}/{order.life}"
        self._processes[name] = _Process(order.run, order.who, None, order.life)
        target = "elasticutor.process.main:run_executor"
        self._zygote.fork(Fork(name, target, order.payload, log=self._log(order.run, order.who)))

    def _drop_executor(self, order: say.DropExecutor) -> None:
        """Drop what is left of an executor's earlier lives."""
        self._lives[order.run, order.who] = order.life
        for name, process in self._processes.items():
            if (process.run, process.who) == (order.run, order.who) and process.life < order.life:
                process.ends = True
                self._closing.pop(name, None)
                self._zygote.kill(name)
        for key in [key for key in self._stores if key[:2] == (order.run, order.who)]:
            if key[2] < order.life:
                self._close_store(key)

    def _close_store(self, key: StoreKey) -> None:
        store = self._stores.pop(key)
        self._archive.forget(key)
        store.backend.close()
        if store.reply is not None:
            self._mail.forget(store.reply.ipc or store.reply.tcp)
        shutil.rmtree(store.path, ignore_errors=True)

    def _end_run(self, order: say.EndRun) -> None:
        ending = _Ending(time.monotonic() + order.grace_s)
        for name, process in self._processes.items():
            if process.run == order.run:
                process.ends = True
                ending.waiting.add(name)
        self._ending[order.run] = ending
        self._close_ended_runs()

    def _close_ended_runs(self) -> None:
        for run in [run for run, ending in self._ending.items() if not ending.waiting]:
            del self._ending[run]
            self._ended.add(run)
            for key in [key for key in self._stores if key[0] == run]:
                self._close_store(key)
            for life in [life for life in self._lives if life[0] == run]:
                del self._lives[life]
            shutil.rmtree(Path(self._spec.state) / run, ignore_errors=True)
            cleared = PlaceCleared(self._spec.node)
            self._mail.send(DRIVER, say.Said(run, Peer(self._spec.node), cleared))

    def _on_ended(self, notice: Ended) -> None:
        process = self._processes.pop(notice.name, None)
        self._closing.pop(notice.name, None)
        if process is None:
            return
        if process.cpu is not None:
            self._free_cpus.append(process.cpu)
        for store in self._stores.values():
            store.backend.check_readers()
        for ending in self._ending.values():
            ending.waiting.discard(notice.name)
        if not process.ends:
            reason = lost_on(self._spec.node, notice.code, notice.said)
            lost = ProcessLost(process.who, process.life, process.task, reason)
            self._mail.send(DRIVER, say.Said(process.run, process.who, lost))
        self._close_ended_runs()

    def _log(self, run: str, who: str) -> str:
        return str(Path(self._spec.logs) / f"{run}-{who}.log")

    def _read_state(self, order: say.ReadState) -> None:
        stores = [s for key, s in self._stores.items() if key[:2] == (order.run, order.who)]
        items = tuple(item for s in stores for item in s.keeper.store.contents().items())
        answer = say.StateRead(self._spec.node, order.run, order.who, order.ask, items)
        self._mail.send(DRIVER, answer)

    # The executors

    def _to_node(self, message: say.ToNode) -> None:
        order, key = message.order, (message.run, message.who, message.life)
        over = message.run in self._ending or message.run in self._ended
        if over or message.life < self._lives.get(key[:2], 0):
            return
        store = (message.run, Peer(message.store or message.who), message.life)
        try:
            match order:
                case do.OpenStore():
                    reply = None if message.store else message.reply
                    self._open_store(store, reply, order, message.payload)
                case do.StartTask(_, task):
                    self._start_task(key, store, task, message.payload)
                case do.EndTask(_, task):
                    self._end_task(key, task, message.task)
                case _:
                    errands = self._stores[store].keeper.handle(order)
                    self._carry_out(store, errands, message.reply)
        except StaleAttemptError:
            return
        except Exception as error:
            self._fail(key, error)

    def _fail(self, key: StoreKey, error: Exception) -> None:
        run, who, life = key
        if life < self._lives.get((run, who), 0):
            return
        blob, text = described(error)
        self._mail.send(DRIVER, say.Failed(run, f"{who} on node {self._spec.node}", blob, text))

    def _for_store(self, message: say.ForStore) -> None:
        key = (message.run, message.store, 0)
        if message.run in self._ending:
            return
        try:
            self._carry_out(key, self._stores[key].keeper.handle(message.order))
        except Exception as error:
            self._fail(key, error)

    def _open_store(
        self, key: StoreKey, reply: Endpoint | None, order: do.OpenStore, payload: bytes
    ) -> None:
        if key in self._stores:
            return  # of another that shares it
        run, who, life = key
        path = Path(self._spec.state) / run / f"{who}-{life}"
        path.mkdir(parents=True, mode=0o700)
        backend = LmdbBackend.create(str(path), map_size=self._spec.map_bytes)
        levels = Levels.create(backend, attempt=order.attempt, committed=order.committed)
        keeping = pickle.loads(payload) if payload else None  # noqa: S301 - of our own executor
        keeper = Keeper(self._spec.node, levels)
        self._stores[key] = _Store(reply, path, backend, keeper, keeping)

    def _start_task(self, key: StoreKey, store: StoreKey, task: TaskId, payload: bytes) -> None:
        run, who, life = key
        spec: TaskSpec = pickle.loads(payload)  # noqa: S301 - from our own executor, authenticated
        mine = self._spec.site
        site = replace(spec.site, node=self._spec.node, sockets=mine.sockets, host=mine.host)
        spec = replace(spec, site=site, store=str(self._stores[store].path))
        name = f"{run}/{who}/{life}/{task}"
        cpu = self._free_cpus.pop(0) if self._free_cpus else None
        self._processes[name] = _Process(run, who, task, life, cpu=cpu)
        self._zygote.fork(
            Fork(
                name,
                "elasticutor.process.task:run_task",
                pickle.dumps(spec, pickle.HIGHEST_PROTOCOL),
                cpus=() if cpu is None else (cpu,),
                log=self._log(run, f"{who}-{task}"),
            )
        )

    def _end_task(self, key: StoreKey, task: TaskId, where: Endpoint | None) -> None:
        run, who, life = key
        name = f"{run}/{who}/{life}/{task}"
        process = self._processes.get(name)
        if process is None:
            return
        process.ends = True
        self._closing[name] = time.monotonic() + _CLOSE_S
        if where is not None:
            # From here and not from its main process: so its end never comes before the word of it.
            self._answer(where, say.Close())
            self._mail.forget(where.ipc or where.tcp)

    def _on_slice(self, message: say.Slice) -> None:
        key = (message.run, message.who, message.life)
        store = self._stores.get(key)
        if store is None or message.run in self._ending:
            return
        try:
            self._carry_out(key, store.keeper.receive(message.piece))
        except StaleAttemptError:
            return  # of a move that was given up
        except Exception as error:
            self._fail(key, error)

    def _go_on(self, key: StoreKey, errand: CopyOn | FoldOn | DropOn) -> None:
        store = self._stores.get(key)
        if store is not None:
            try:
                self._carry_out(key, store.keeper.go_on(errand))
            except Exception as error:
                self._fail(key, error)

    def _carry_out(self, key: StoreKey, errands: list[Any], reply: Endpoint | None = None) -> None:
        store = self._stores[key]
        reply = reply or store.reply
        for errand in errands:
            match errand:
                case SendSlice(node=node):
                    with contextlib.suppress(UnknownPeerError):  # it is gone, and so is the move
                        self._mail.send(f"node {node}", say.Slice(*key, errand))
                case CopyOn() | FoldOn() | DropOn():
                    self._slices.append((key, errand))
                case WriteIncrement():
                    self._write(key, store, errand, reply)
                case ReadShard():
                    self._read(key, store, errand)
                case _ if reply is None:
                    self._mail.send(DRIVER, say.Said(key[0], key[1], errand))
                case _:
                    self._answer(reply, errand)

    # Checkpoints

    def _write(
        self, key: StoreKey, store: _Store, errand: WriteIncrement, reply: Endpoint | None
    ) -> None:
        if store.keeping is None:
            # Without a checkpoint nothing outlives the run, so there is nothing to write.
            self._carry_out(key, store.keeper.written(errand), reply)
        else:
            then = partial(self._on_written, key, errand)
            self._archive.write(store.keeping, key[1], errand, then)

    def _read(self, key: StoreKey, store: _Store, errand: ReadShard) -> None:
        if store.keeping is None:
            who = f"shard {errand.shard} of {key[1]}"
            raise ElasticutorError(who, "be in a checkpoint", "none is kept")
        self._archive.read(key, store.keeping, key[1], errand, partial(self._on_read, key))

    def _on_written(
        self, key: StoreKey, increment: WriteIncrement, file: StateFile | Exception | None
    ) -> None:
        store = self._stores.get(key)
        if store is None or key[0] in self._ending:
            return
        if isinstance(file, Exception):
            self._fail(key, file)
        else:
            note = None if file is None else file.as_note()
            self._carry_out(key, store.keeper.written(increment, note))

    def _on_read(self, key: StoreKey, read: ReadShard, found: Records | Exception) -> None:
        store = self._stores.get(key)
        if store is None or key[0] in self._ending:
            return
        try:
            if isinstance(found, Exception):
                raise found
            self._carry_out(key, store.keeper.restored(read, found))
        except StaleAttemptError:
            return  # of a move that was given up
        except Exception as error:
            self._fail(key, error)


NodeProcess.handlers = {
    say.Beat: NodeProcess._on_beat,
    say.Peers: NodeProcess._on_peers,
    say.EndNode: NodeProcess._on_end_node,
    say.StartExecutor: NodeProcess._start_executor,
    say.DropExecutor: NodeProcess._drop_executor,
    say.EndRun: NodeProcess._end_run,
    say.ReadState: NodeProcess._read_state,
    say.ToNode: NodeProcess._to_node,
    say.ForStore: NodeProcess._for_store,
    say.Slice: NodeProcess._on_slice,
}
