"""`ProcessCluster`: nodes as processes of this machine, without Spark."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from elasticutor.core.run.run_events import HostLost
from elasticutor.driver.cluster import SCHEDULE_S, START_TIMEOUT_S, BaseCluster
from elasticutor.driver.supervisor import Supervisor
from elasticutor.process.failures import described_end
from elasticutor.process.hosting.hosts import NodesWanted, host_ends, host_nodes

_END_S = 15.0
"""How long a host may take to end by itself."""


class ProcessCluster(BaseCluster):
    """Nodes as processes of this machine, without Spark: for tests, and for trying things out.

    Args:
        nodes: How many; each has its own directory and sockets, and TCP between them.
        cores: Of each node.
        schedule_s: How often the scheduler may change cores; 0: never.
        options: Further fields of `NodesWanted`.
    """

    def __init__(
        self,
        nodes: int = 1,
        cores: int = 2,
        *,
        schedule_s: float = SCHEDULE_S,
        start_timeout_s: float = START_TIMEOUT_S,
        **options: Any,
    ) -> None:
        names = tuple(f"n{number}" for number in range(nodes))
        self._wanted = NodesWanted(names, cores, options.pop("pin", False), **options)
        self._hosts: list[_Host] = []
        super().__init__(
            host="127.0.0.1",
            port=0,
            expected=nodes,
            start_timeout_s=start_timeout_s,
            schedule_s=schedule_s,
        )

    def _start_nodes(self, generation: int = 0) -> None:
        wanted = self._wanted.renamed(f"g{generation}" if generation else "")
        self._hosts.append(_Host(self._nodes_ended, host_nodes, self._bootstrap, wanted))

    def _nodes_ended(self, how: str) -> None:
        self._all_nodes_lost(f"the host of the nodes has ended ({how})")

    def _start_ends(self, supervisor: Supervisor, numbers: Sequence[int]) -> None:
        for number in numbers:

            def ended(how: str, number: int = number) -> None:
                self._hub.post(lambda: supervisor.decide(HostLost(number, how)))

            host = _Host(ended, host_ends, self._bootstrap, supervisor.run, number)
            supervisor.on_ended(host.finish)
            self._hosts = [other for other in self._hosts if other.running] + [host]

    def _why_not(self) -> str:
        ended = [host.how for host in self._hosts if not host.running]
        return f"their host has ended ({ended[0]})" if ended else ""

    def _stop_hosts(self) -> None:
        until = time.monotonic() + _END_S
        for host in self._hosts:
            if not host.join(until - time.monotonic()):
                host.kill()
                host.join(10.0)


class _Host:
    """A host as a process of this machine, and a thread that waits for its end.

    Args:
        ended: Called in that thread with how it ended, in words.
        target: What it does there, with
        args: these arguments.
    """

    def __init__(self, ended: Callable[[str], None], target: Any, *args: Any) -> None:
        self.how = ""
        """How it ended; empty as long as it has not."""
        context = multiprocessing.get_context("spawn")
        self._process: BaseProcess = context.Process(
            target=_be_host, args=(target, *args), daemon=True
        )
        self._ended = ended
        self._process.start()
        self._thread = threading.Thread(target=self._wait, name="host's end", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it has not ended, as far as is known."""
        return not self.how

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; returns whether it has come."""
        self._thread.join(max(0.1, timeout_s))
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Let it end by itself, and kill it if it does not; returns at once."""

        def see_to_it() -> None:
            if not self.join(_END_S):
                self.kill()

        threading.Thread(target=see_to_it, name="end of host", daemon=True).start()

    def kill(self) -> None:
        """End it at once; its zygote sees that, and ends all others."""
        self._process.kill()

    def _wait(self) -> None:
        self._process.join()
        self.how = described_end(self._process.exitcode or 0)
        self._ended(self.how)


def _be_host(target: Callable[..., None], *args: Any) -> None:
    """Run in a host's process: Ctrl-C is for the driver, which then says what to do.

    If the driver ends without a word, so does the host.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_driver, name="driver's end", daemon=True).start()
    target(*args)


def _die_with_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os.kill(os.getpid(), signal.SIGKILL)
