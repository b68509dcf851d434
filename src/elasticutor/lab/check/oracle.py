"""Checks a run at every step and at its end, and counts what happens on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticutor.core.executor.executor import Phase
from elasticutor.core.executor.reassignment import Move, MovePhase
from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Attempt, MoveId, Peer, TaskId
from elasticutor.errors import LATE, ProtocolError
from elasticutor.lab.check.pipeline import ChainOperator, Expected, Row, by_origin
from elasticutor.lab.check.world.hosts import ExecutorHost

TO_UPSTREAMS = (do.GrantCredit, do.Emit, do.EmitMarker)


def heard_by_peers(instructions: list[do.Instruction]) -> list[do.Instruction]:
    """Returns what upstreams and destinations hear of an event.

    The marker of an epoch whose end has waited for a move tells nothing of the move.
    """
    ended = any(isinstance(one, do.FlushTask) for one in instructions)
    heard = [one for one in instructions if isinstance(one, TO_UPSTREAMS)]
    return [one for one in heard if not (ended and isinstance(one, do.EmitMarker))]


# Asked for at random, so they may be impossible; or late, when who was lost had ended anyway.
_MAY_BE_REFUSED = (ev.MoveAsked, ev.CoreTaken, ev.TaskLost, ev.NodeLost)


@dataclass(slots=True)
class _Watch:
    """What is kept of one executor between two events."""

    moves: tuple[Move, ...] = ()
    overlapping: set[MoveId] = field(default_factory=set)
    flushed: set[MoveId] = field(default_factory=set)
    most_flights: int = 0
    windows: dict[TaskId, float] = field(default_factory=dict)
    """How much each task might have ahead when its last chunk was handed out, in seconds."""


class Oracle:
    """Watches a run."""

    def __init__(self, largest_batch: int, destinations: int) -> None:
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self._largest_batch = largest_batch
        self._largest_outputs = largest_batch * destinations
        self._watches: dict[str, _Watch] = {}
        self._given_up: list[Move] = []  # by failures that no attempt has answered yet
        self._rolled_back: set[Attempt] = set()

    def violate(self, text: str) -> None:
        """Note that something happened that must not."""
        if len(self.violations) < 20:
            self.violations.append(text)

    # At every step

    def handled(
        self, host: ExecutorHost, event: ev.Event, instructions: list[do.Instruction]
    ) -> None:
        """Look at an executor after an event."""
        watch = self._watches.setdefault(host.address, _Watch())
        kind = type(event)
        if kind is ev.AttemptBegun:
            self.counts["attempts"] += 1
        elif kind is ev.ChunkProcessed:
            self.counts["chunks"] += 1
            self._check_buffers(host, watch)
        elif kind is ev.ChunkProgressed:
            self.counts["partial_results"] += 1
            self._check_buffers(host, watch)
        elif isinstance(event, ev.LabelReached) and event.returned:
            self.counts["moves_with_returned_tuples"] += 1
            self.counts["returned_tuples"] += event.returned
        elif kind is ev.TuplesArrived:
            self._check_memory(host, event)  # type: ignore[arg-type]
        if kind in ev.MOVE_EVENTS and heard_by_peers(instructions):
            self.violate(f"{host.name}: upstreams heard of {event}")
        self._check_waiting(host)
        self._count_moves(host, watch, instructions)

    def before_attempt(self, host: ExecutorHost, begun: ev.AttemptBegun) -> None:
        """Look at what an attempt gives up, before the executor does."""
        prepared = host.core.epochs.prepared
        if prepared is not None and begun.base < prepared:
            self._rolled_back.add(begun.attempt)  # once, however many executors it is for
            self.counts["rollbacks_after_prepare"] = len(self._rolled_back)

    def refused(self, host: ExecutorHost, message: Any, error: ProtocolError) -> None:
        """Note a refusal, which is a violation unless it can happen in a healthy run."""
        self.counts[f"refused_{type(error).__name__}"] += 1
        if not isinstance(message, _MAY_BE_REFUSED) and not isinstance(error, LATE):
            self.violate(f"{host.name} refused {_short(message)}: {error}")

    def aborted(self, hosts: list[ExecutorHost]) -> None:
        """Note that an attempt was given up."""
        under_way = [move for host in hosts if host.alive for move in host.core.moves]
        under_way += self._given_up
        self._given_up = []
        self.counts["aborts"] += 1
        self.counts["aborts_mid_move"] += bool(under_way)
        for phase in {move.phase for move in under_way}:
            self.counts[f"aborts_while_{phase.value}"] += 1

    def _check_waiting(self, host: ExecutorHost) -> None:
        """A held shard, a move or an upstream holds up nothing but what it must."""
        core = host.core
        if core.starving():
            self.violate(f"waiting: tasks {core.starving()} of {host.name} could work")
        if core.moves and not core.epochs.all_marked:
            waiting = [move.id for move in core.moves if move.phase is MovePhase.WAITING]
            if waiting:
                self.violate(f"waiting: moves {waiting} of {host.name}, though no epoch ends")

    def _check_memory(self, host: ExecutorHost, event: ev.TuplesArrived) -> None:
        if host.core.phase is not Phase.RUNNING:
            return
        config = host.core.config
        inside = host.core.inside_bytes(event.upstream)
        if inside > config.max_credit_bytes + self._largest_batch:
            self.violate(f"memory: {host.name} has {inside} bytes of {event.upstream} inside")

    def _check_buffers(self, host: ExecutorHost, watch: _Watch) -> None:
        """Outputs that wait: the limit, and those of chunks that tasks had before it was met."""
        core = host.core
        flights = sum(len(task.flights) for task in core.tasks.values())
        watch.most_flights = max(watch.most_flights, flights)
        limit = core.config.output_bytes + (watch.most_flights + 1) * self._largest_outputs
        for upstream in core.epochs.upstreams:
            if core.buffered_bytes(upstream) > limit:
                self.violate(f"memory: {host.name} buffers more than {limit} bytes of outputs")

    def _count_moves(
        self, host: ExecutorHost, watch: _Watch, instructions: list[do.Instruction]
    ) -> None:
        epochs = host.core.epochs
        moves = host.core.moves
        if any(isinstance(instruction, do.ReportFailure) for instruction in instructions):
            self._given_up = list(watch.moves)
        watch.moves = moves
        if moves and (epochs.marked or epochs.flushing or epochs.persisting):
            watch.overlapping.update(move.id for move in moves)
            if epochs.flushing:
                watch.flushed.update(move.id for move in moves)
        for instruction in instructions:
            if isinstance(instruction, do.ReportMove):
                self._count_move(watch, instruction)
            elif isinstance(instruction, do.Dispatch):
                task = host.core.tasks.get(instruction.task)
                if task is not None:
                    watch.windows[task.id] = task.window_s(host.core.config)
            elif isinstance(instruction, do.SendLabel):
                self._check_window(host, watch, instruction)

    def _count_move(self, watch: _Watch, report: do.ReportMove) -> None:
        if report.source is None:
            self.counts["relocations"] += 1
            return
        self.counts["moves"] += 1
        self.counts["moves_remote"] += report.remote
        self.counts["moves_at_epoch_end"] += report.move in watch.overlapping
        self.counts["moves_during_flush"] += report.move in watch.flushed

    def _check_window(self, host: ExecutorHost, watch: _Watch, label: do.SendLabel) -> None:
        """Require that a label waits behind a window of work, however long the queues are.

        The window counts that was in force when the last chunk was handed out: it is smaller for
        tuples that turn out to cost more.
        """
        task, config = host.core.tasks[label.task], host.core.config
        ahead = task.in_flight_s - (task.flights[-1].estimate_s if task.flights else 0.0)
        window_s = max(watch.windows.get(task.id, 0.0), task.window_s(config))
        if len(task.flights) > config.min_chunks and ahead >= window_s + 1e-9:
            self.violate(f"drain: {host.name} task {task.id} has {ahead:.4f} s ahead of a label")

    # At the end

    def check_end(
        self,
        hosts: list[ExecutorHost],
        operators: tuple[ChainOperator, ...],
        expected: Expected,
        committed: Mapping[Peer, dict[bytes, bytes]],
        published: list[Row],
    ) -> None:
        """Compare everything with the sequential fold."""
        for host in hosts:
            # One that was hit after the last commit is not restarted: no attempt follows.
            if host.alive and host.core.phase is not Phase.FAILED:
                self._check_quiet(host)
                self._check_ownership(host, committed[host.name])
        for operator in operators:
            self._check_state(operator, expected, committed)
        self._check_outputs(expected, published)

    def _check_quiet(self, host: ExecutorHost) -> None:
        core = host.core
        if core.phase is not Phase.RUNNING:
            self.violate(f"held: {host.name} is {core.waiting_for()}")
        if core.moves or core.epochs.flushing or core.epochs.persisting:
            self.violate(f"held: {host.name} still waits: {core.waiting_for()}")
        if core.waiting or any(task.flights for task in core.tasks.values()):
            self.violate(f"held: {host.name} still has tuples: {core.waiting_for()}")
        if any(not task.idle for task in host.tasks.values()):
            self.violate(f"held: a task of {host.name} still has work")
        if set(core.tasks) != set(host.tasks):
            self.violate(f"tasks of {host.name}: {sorted(core.tasks)} but {sorted(host.tasks)} run")

    def _check_ownership(self, host: ExecutorHost, committed: dict[bytes, bytes]) -> None:
        core = host.core
        live: dict[bytes, Any] = {}
        for shard, (owner, home) in enumerate(zip(core.table.owners, core.homes, strict=True)):
            if owner not in core.tasks or core.tasks[owner].node != home:
                self.violate(f"owner: shard {shard} of {host.name}: task {owner}, state on {home}")
        for node, keeper in host.keepers.items():
            leftover = (keeper.store.watched, keeper.core.moves_under_way)
            if any(leftover) or len(keeper.store.uncommitted) > 1:
                self.violate(f"leak: {node} of {host.name} still has {leftover}")
            for shard_id in keeper.store.shards():
                if core.homes[shard_id] != node:
                    self.violate(f"owner: {node} has a second copy of {host.name}/{shard_id}")
            live.update(keeper.store.contents())
        if live != committed:
            self.violate(f"state: stores of {host.name} differ from what was made durable")

    def _check_state(
        self,
        operator: ChainOperator,
        expected: Expected,
        committed: Mapping[Peer, dict[bytes, bytes]],
    ) -> None:
        found: dict[bytes, Any] = {}
        for name in operator.executor_names:
            found.update(committed[name])
        values = {key: operator.codec.load(value) for key, value in found.items()}
        wanted = {
            key: operator.codec.load(operator.codec.dump(value))
            for key, value in expected.state(operator).items()
        }
        if values != wanted:
            keys = sorted(k for k in {*values, *wanted} if values.get(k) != wanted.get(k))
            first = keys[0]
            self.violate(
                f"state: operator {operator.name} differs from the fold in {len(keys)} of "
                f"{len(wanted)} keys, first {first!r}: "
                f"got {values.get(first)}, expected {wanted.get(first)}"
            )

    def _check_outputs(self, expected: Expected, published: list[Row]) -> None:
        found = by_origin(published)
        for origin in sorted({*found, *expected.outputs}):
            got, wanted = found.get(origin, []), expected.outputs.get(origin, [])
            if got != wanted:
                self.violate(
                    f"outputs: origin {origin}: {len(got)} tuples, expected {len(wanted)}; "
                    + _first_difference(got, wanted)
                )
                return


def _first_difference(got: list[Row], wanted: list[Row]) -> str:
    for place, (left, right) in enumerate(zip(got, wanted, strict=False)):
        if left != right:
            return f"at {place}: {left} instead of {right}"
    return "the shorter is the beginning of the longer"


def _short(message: Any) -> str:
    text = str(message)
    return text if len(text) < 200 else text[:200] + "…"
