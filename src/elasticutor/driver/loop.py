"""The driver's loop: one thread that owns the sockets, the nodes and the runs of a cluster."""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any, TypeVar

from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.run import run_events as ev
from elasticutor.core.run.phases import RunPhase
from elasticutor.driver.supervisor import Supervisor
from elasticutor.errors import ElasticutorError, ProtocolError
from elasticutor.process.slices import ask_for_short_slices
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Endpoint, Links
from elasticutor.transport.mailbox import Mailbox
from elasticutor.transport.security import ClusterKeys

if TYPE_CHECKING:
    from elasticutor.driver.queries.query_driver import QueryDriver

log = logging.getLogger(__name__)

T = TypeVar("T")

_BEAT_S = 1.0
_LATE_S = 3.0
SILENCE_S = 10.0
"""A node that has not been heard of for so long counts as lost; it is asked every second."""


_FRAME_GONE = "the elastic DataFrame is gone: its cluster was stopped, or it is of another driver"


class ClusterError(ElasticutorError, RuntimeError):
    """A cluster that does not come up, or is gone."""


class DriverLoop:
    """Receives every message to the driver.

    Its thread handles one after the other; other threads run functions in it by `call`.
    """

    def __init__(self, keys: ClusterKeys, host: str, port: int = 0) -> None:
        self.keys = keys
        self.mail = _quick(
            lambda: Mailbox(Links("driver", keys, ipc_dir=None, host=host), "driver", port=port)
        )
        self.endpoint: Endpoint = self.mail.endpoint
        self.nodes: dict[NodeId, say.NodeUp] = {}
        self.gone: dict[NodeId, str] = {}
        """Nodes that were lost, and why."""
        self.runs: dict[str, Supervisor] = {}
        self.receptions: dict[str, QueryDriver] = {}
        """Where the tasks of queries are received, by their elastic DataFrame."""
        self.changed = threading.Condition()
        """Notified when a node comes or goes."""
        self.staff_changed: Callable[[str, Peer], None] = _nothing
        """Called when a task of an executor has come or gone, with its run and name."""
        self.cores_version = 0
        """Counts how often the cores of any executor changed, or runs came and went."""
        self.taken = 0
        """Messages that were taken in."""
        self._heard_at: dict[NodeId, float] = {}
        self._beat_at = time.monotonic()
        self._calls: deque[Callable[[], None]] = deque()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._timers = 0
        self._calling = threading.Lock()  # so that no call comes in behind the last look at them
        self._wake_reading, self._wake_writing = os.pipe()
        os.set_blocking(self._wake_reading, False)
        self.mail.watch(self._wake_reading)
        self._over = False
        self._thread = threading.Thread(target=self._run, name="elasticutor-hub", daemon=True)
        self._thread.start()

    # From other threads

    def post(self, function: Callable[[], None]) -> None:
        """Run a function in the loop's thread, some time soon; nothing if that has ended."""
        with self._calling:
            if not self._over:
                self._calls.append(function)
                os.write(self._wake_writing, b"!")

    def call(self, function: Callable[[], T], timeout_s: float = 30.0) -> T:
        """Run a function in the loop's thread, and wait for what it returns."""
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()

        def do() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        with self._calling:
            if self._over:
                raise ClusterError("cluster", "be running", "a call after its end")
            self._calls.append(do)
            os.write(self._wake_writing, b"!")
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            raise ClusterError("driver's thread", f"answer in {timeout_s:g} s", "silence") from None

    @property
    def over(self) -> bool:
        """Whether it takes no more calls."""
        return self._over

    def await_nodes(self, count: int, timeout_s: float, failed: Callable[[], str]) -> None:
        """Wait until a number of nodes is up."""
        until = time.monotonic() + timeout_s
        with self.changed:
            while len(self.nodes) < count:
                gone = {} if self.receptions else self.gone  # for queries, others take their places
                reason = failed() or "; ".join(f"{n}: {why}" for n, why in gone.items())
                if reason:
                    raise ClusterError("nodes", "start", reason)
                if time.monotonic() >= until:
                    raise ClusterError(
                        f"all {count} nodes",
                        f"be up within {timeout_s:g} s",
                        f"{len(self.nodes)}: {sorted(self.nodes)}",
                        "each needs a free Spark slot: are there enough, and does any other job "
                        "hold them?",
                    )
                self.changed.wait(0.1)

    def close(self) -> None:
        """Tell the nodes to end, and stop; idempotent."""
        if self._over:
            return
        self.call(self._end)
        self._thread.join(10.0)

    # In the loop's own thread

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Run a function in this thread, some seconds from now."""
        self._timers += 1
        heapq.heappush(self._due, (time.monotonic() + seconds, self._timers, function))

    def send_node(self, node: NodeId, message: Any) -> None:
        """Send to a node."""
        self.mail.send(_node(node), message)

    def send_nodes(self, nodes: Iterable[NodeId], message: Any) -> None:
        """Send the same to several nodes."""
        self.mail.send_all(map(_node, nodes), message)

    def lose_node(self, node: NodeId, reason: str) -> None:
        """Take in that a node is gone, with everything on it."""
        self.gone.setdefault(node, reason)
        seen = self.nodes.pop(node, None)
        if seen is not None:
            log.warning("node %s was lost: %s", node, reason)
        self._heard_at.pop(node, None)
        self.mail.forget(_node(node))
        self._introduce()
        for run in list(self.runs.values()):
            slot = seen.slot if seen is not None else str(node)
            run.decide(ev.NodeLeft(node, slot, reason))
        with self.changed:
            self.changed.notify_all()

    def _introduce(self) -> None:
        book = {_node(node): seen.endpoint for node, seen in self.nodes.items()}
        self.send_nodes(self.nodes, say.Peers(book))

    def _end(self) -> None:
        self.send_nodes(self.nodes, say.EndNode())
        self._over = True

    def _run(self) -> None:
        ask_for_short_slices()
        beat_at = time.monotonic()
        try:
            while not self._over:
                wake_at = min([beat_at, *(when for when, _, _ in self._due[:1])])
                self.mail.wait(max(0.0, min(wake_at - time.monotonic(), _BEAT_S)))
                self._make_calls()
                while self._due and self._due[0][0] <= time.monotonic():
                    self._do_safely(heapq.heappop(self._due)[2])
                try:
                    for message in self.mail.receive():
                        self._take_safely(message)
                except ProtocolError as error:
                    self._fail_all(error)
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + _BEAT_S
                    self._beat()
        except Exception:
            log.exception("the driver's thread has failed")
        finally:
            with self._calling:
                self._over = True
            self._make_calls()
            self.mail.close(linger_s=2.0)
            os.close(self._wake_reading)
            os.close(self._wake_writing)
            for run in self.runs.values():
                run.decide(ev.ClusterGone())

    def _fail_all(self, error: ProtocolError) -> None:
        """Act on a lost message to the driver: it may have been of any run."""
        self.mail.excuse()
        for run in list(self.runs.values()):
            run.decide(ev.MessageLost(error))

    def _make_calls(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reading, 4096)
        while self._calls:
            self._do_safely(self._calls.popleft())

    def _do_safely(self, function: Callable[[], None]) -> None:
        """Run a function; whatever it raises, this thread goes on."""
        try:
            function()
        except Exception:
            log.exception("something asked of the driver's thread has failed")

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beat_at > _LATE_S:  # this thread was held up itself: ask before judging
            self._heard_at = dict.fromkeys(self._heard_at, now)
        self._beat_at = now
        for node in list(self.nodes):
            if now - self._heard_at[node] > SILENCE_S:
                self.lose_node(node, f"not heard of for {SILENCE_S:g} s")
            else:
                self.send_node(node, say.Beat())
        for name, run in list(self.runs.items()):
            self._do_safely(run.tick)
            if run.phase is RunPhase.ENDED:
                del self.runs[name]

    def _take_safely(self, message: Any) -> None:
        """Handle a message; whatever it leads to, this thread goes on."""
        self.taken += 1
        try:
            self._take(message)
        except Exception as error:
            log.debug("a message that could not be handled", exc_info=True)
            self.mail.drop(f"{type(message).__name__}: {error}")

    def _take(self, message: Any) -> None:
        match message:
            case say.NodeUp(node):
                self._on_node_up(node, message)
            case say.Alive(node) if node in self.nodes:
                self._heard_at[node] = time.monotonic()
            case say.Alive():
                pass  # taken for lost, and lives on for a while
            case say.NodeGone(node, reason):
                self.lose_node(node, reason)
            case say.Failed(run="", who=who, text=text):
                self.lose_node(NodeId(who.removeprefix("node ")), text)
            case say.EndsHostUp(run=name) if name not in self.runs:
                end = say.EndRun(name, 0.0)
                self._answer_once(f"late host of {name}", message.endpoint, end)
            case say.Arrive(frame) if frame in self.receptions:
                self.receptions[frame].take(message)
            case say.Arrive(task=task):
                refused = say.Refused(task.task, b"", _FRAME_GONE)
                self._answer_once(f"late task {task.task}", message.endpoint, refused)
            case _:
                run = self.runs.get(getattr(message, "run", ""))
                if run is None:
                    self.mail.drop(f"{type(message).__name__} of no run")
                    return
                try:
                    run.take(message)
                except Exception as error:  # a bug, or a lie: it must not take other runs along
                    log.exception("handling %s failed", type(message).__name__)
                    run.decide(ev.RunFailed(error))

    def _answer_once(self, name: str, endpoint: Endpoint, message: Any) -> None:
        """Send to a process that has come too late, and forget it."""
        self.mail.know(name, endpoint)
        self.mail.send(name, message)
        self.mail.forget(name)

    def _on_node_up(self, node: NodeId, message: say.NodeUp) -> None:
        for other in [
            n for n, seen in self.nodes.items() if seen.slot == message.slot and n != node
        ]:
            self.lose_node(other, message.before or f"node {node!r} has come in its place")
        self.mail.know(_node(node), message.endpoint)
        self.nodes[node] = message
        self._heard_at[node] = time.monotonic()
        if message.note:
            log.warning("node %s: %s", node, message.note)
        self.send_node(node, say.Beat())
        self._introduce()
        for run in list(self.runs.values()):
            run.decide(ev.NodeJoined(node))
        with self.changed:
            self.changed.notify_all()


def _quick(make: Callable[[], T]) -> T:
    """Make something whose threads run soon after they wake up, as the thread does that makes it.

    In a thread of its own: the calling one belongs to the user.
    """
    with ThreadPoolExecutor(1, initializer=ask_for_short_slices) as pool:
        return pool.submit(make).result()


def _nothing(run: str, who: Peer) -> None:
    """Ignore it."""


def _node(node: NodeId) -> str:
    return f"node {node}"
