from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol import repartition as rc
from elasticutor.core.protocol.giver import Drain, Release
from elasticutor.core.protocol.ids import MoveId, NodeId, Peer, ShardId, TaskId
from elasticutor.errors import BadValueError, OutOfOrderError, UnknownShardError

MOVES = (do.OpenShard, do.CopyShard, do.DropShard)
SHARDS = 12
EXECUTORS = tuple(Peer(f"x.{number}") for number in range(4))
UPSTREAMS = tuple(Peer(f"s.{number}") for number in range(3))
SINK = Peer("out")
Row = tuple[Peer, int, int]
HOMES = [(who, NodeId(f"n{number % 2}")) for number, who in enumerate(EXECUTORS)]


def repartitioner() -> rc.Repartitioner:
    return rc.Repartitioner(SHARDS, HOMES, UPSTREAMS)


class Everybody:
    """Upstreams, executors, a sink and nodes that answer in any order.

    A row is (upstream, shard, number). Executors put out what they take in, later, and the sink
    takes that in later still; between an executor and the sink order is kept.
    """

    def __init__(self, seed: int) -> None:
        self.lead = repartitioner()
        self.rng = random.Random(seed)
        self.routes = {
            who: rc.PausableRoute(who, shards=SHARDS, executors=len(EXECUTORS)) for who in UPSTREAMS
        }
        self.drains = {who: Drain(who, [SINK]) for who in EXECUTORS}
        self.inside: dict[Peer, list[Row]] = {who: [] for who in EXECUTORS}
        self.unsent: dict[Peer, list[Row]] = {who: [] for who in EXECUTORS}
        self.unread: dict[Peer, list[Row | rc.ConfirmOutputs]] = {who: [] for who in EXECUTORS}
        self.taken: list[Row] = []
        self.rows = 0
        self.answers: list[rc.Event] = []
        self.log: list[rc.Order] = []
        self.now = 0.0

    def send(self, upstream: Peer, rows: int) -> None:
        """Let an upstream send rows of random shards; to nobody while it is paused."""
        route = self.routes[upstream]
        if not route.paused:
            shards = np.array([self.rng.randrange(SHARDS) for _ in range(rows)], dtype=int)
            for shard, number in zip(shards.tolist(), route.owners(shards).tolist(), strict=True):
                route.sent(number, 1)
                self.inside[EXECUTORS[number]].append((upstream, shard, self.rows))
                self.rows += 1

    def process(self, who: Peer) -> None:
        """Let an executor process a row, if it has one."""
        if self.inside[who]:
            self.unsent[who].append(self.inside[who].pop(0))
            self.drains[who].processed(1)
            self.proceed(who)

    def put_out(self, who: Peer) -> None:
        """Let an executor send an output, as if it had got credit."""
        if self.unsent[who]:
            self.unread[who].append(self.unsent[who].pop(0))
            self.proceed(who)

    def take_in(self, who: Peer) -> None:
        """Let the sink take in one thing that the executor has sent."""
        if not self.unread[who]:
            return
        match self.unread[who].pop(0):
            case rc.ConfirmOutputs(destination=destination, round=number):
                self.note(self.drains[who].taken(rc.OutputsTaken(destination, number)))
            case row:
                self.taken.append(row)

    def proceed(self, who: Peer) -> None:
        for step in self.drains[who].proceed(sent=not self.unsent[who]):
            assert isinstance(step, rc.ConfirmOutputs)
            self.unread[who].append(step)

    def note(self, answer: rc.Event | None) -> None:
        if answer is not None:
            self.answers.append(answer)

    def enact(self, orders: list[rc.Order]) -> None:
        for order in orders:
            self.log.append(order)
            match order:
                case rc.PauseUpstream(upstream=who):
                    self.note(self.routes[who].pause(order))
                case rc.UpdateTable(upstream=who):
                    self.note(self.routes[who].update(order))
                case rc.DrainExecutor(executor=who):
                    self.drains[who].begin(order)
                    self.proceed(who)
                case rc.ReleaseShards(executor=who):
                    assert not self.inside[who]
                    assert not self.unsent[who]
                    assert not self.unread[who]
                    release = Release(who)
                    for label in release.begin(order, TaskId(0)):
                        self.note(release.reached(label.move))
                case do.OpenShard(move=move):
                    self.note(ev.ShardOpened(move))
                case do.CopyShard(move=move):
                    self.note(ev.CopyArrived(move, 100))
                case do.DropShard(node=node, shard=shard):
                    self.note(ev.ShardDropped(node, shard))

    def step(self) -> None:
        """Something happens: an answer arrives, a row is sent, or one goes on its way."""
        self.now += 0.001
        if self.answers and self.rng.random() < 0.3:
            answer = self.answers.pop(self.rng.randrange(len(self.answers)))
            self.enact(self.lead.handle(answer, self.now))
        elif self.rng.random() < 0.3:
            self.send(self.rng.choice(UPSTREAMS), self.rng.randrange(3))
        else:
            for who in EXECUTORS:
                self.rng.choice((self.process, self.put_out, self.take_in))(who)

    def finish(self) -> None:
        for _ in range(10_000):
            if self.lead.step is rc.Step.IDLE:
                return
            self.step()
        raise AssertionError(self.lead.waiting_for())


@given(st.integers(0, 2**32), st.dictionaries(st.integers(0, SHARDS - 1), st.integers(0, 3)))
def test_a_round_ends_with_everybody_at_the_same_table_in_whatever_order_they_answer(
    seed: int, owners: dict[int, int]
) -> None:
    world = Everybody(seed)
    for _ in range(20):
        world.step()
    world.enact(world.lead.move({ShardId(s): to for s, to in owners.items()}, world.now))
    world.finish()
    for shard, to in owners.items():
        assert world.lead.table[shard] == to
    everything = np.arange(SHARDS)
    for route in world.routes.values():
        assert route.owners(everything).tolist() == world.lead.table
        assert not route.paused


@given(st.integers(0, 2**32))
def test_outputs_of_a_shard_keep_their_order_over_a_round(seed: int) -> None:
    world = Everybody(seed)
    for number in range(3):
        for _ in range(20):
            world.step()
        owners = {ShardId(shard): (shard + number) % 4 for shard in range(SHARDS)}
        world.enact(world.lead.move(owners, world.now))
        world.finish()
    for _ in range(10 * world.rows):
        for who in EXECUTORS:
            world.process(who)
            world.put_out(who)
            world.take_in(who)
    assert len(world.taken) == world.rows
    for upstream in UPSTREAMS:
        for shard in range(SHARDS):
            numbers = [number for *whose, number in world.taken if whose == [upstream, shard]]
            assert numbers == sorted(numbers)


@given(st.integers(0, 2**32))
def test_state_is_sent_only_when_all_givers_have_drained_and_flushed(seed: int) -> None:
    world = Everybody(seed)
    for _ in range(10):
        world.step()
    world.enact(world.lead.move({ShardId(s): (s + 1) % 4 for s in range(6)}, world.now))
    world.finish()
    kinds = [type(order) for order in world.log]
    moves = {do.OpenShard: 3, do.CopyShard: 3, do.DropShard: 3}
    order = {rc.PauseUpstream: 0, rc.DrainExecutor: 1, rc.ReleaseShards: 2, **moves}
    ranks = [order.get(kind, 4) for kind in kinds[:-1]]
    assert ranks == sorted(ranks)
    assert kinds[-1] is rc.ReportRound


def test_only_shards_that_change_their_node_are_sent() -> None:
    world = Everybody(1)
    near, far = ShardId(0), ShardId(4)  # both of x.0, on n0
    world.enact(world.lead.move({near: 2, far: 1}, 0.0))
    world.finish()
    sent = [order for order in world.log if isinstance(order, MOVES)]
    assert sent == [
        do.OpenShard(NodeId("n1"), MoveId(1), far),
        do.CopyShard(NodeId("n0"), MoveId(1), far, NodeId("n1")),
        do.DropShard(NodeId("n0"), far),
    ]
    report = world.log[-1]
    assert isinstance(report, rc.ReportRound)
    assert (report.shards, report.remote, report.size) == (2, 1, 100)


def test_only_those_who_give_shards_drain_and_what_all_upstreams_sent_them_counts() -> None:
    lead = repartitioner()
    lead.move({ShardId(1): 0}, 0.0)
    orders: list[rc.Order] = []
    for number, who in enumerate(UPSTREAMS):
        orders = lead.handle(rc.UpstreamPaused(who, 1, (9, number + 1, 9, 9)), 0.1)
    assert orders == [rc.DrainExecutor(EXECUTORS[1], 1, 6)]


@pytest.mark.parametrize(
    "answer",
    [
        rc.UpstreamPaused(UPSTREAMS[0], 2, (0, 0, 0, 0)),
        rc.UpstreamPaused(Peer("stranger"), 1, (0, 0, 0, 0)),
        rc.ExecutorDrained(EXECUTORS[0], 1),
        ev.ShardOpened(MoveId(1)),
        ev.CopyArrived(MoveId(1), 1),
        rc.TableUpdated(UPSTREAMS[0], 1),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_and_changes_nothing(answer: Any) -> None:
    lead = repartitioner()
    lead.move({ShardId(0): 1}, 0.0)
    waiting = lead.waiting_for()
    with pytest.raises(OutOfOrderError):
        lead.handle(answer, 0.1)
    assert lead.waiting_for() == waiting
    assert lead.step is rc.Step.PAUSING


def test_an_answer_that_comes_twice_is_refused() -> None:
    lead = repartitioner()
    lead.move({ShardId(0): 1}, 0.0)
    paused = rc.UpstreamPaused(UPSTREAMS[0], 1, (0, 0, 0, 0))
    lead.handle(paused, 0.1)
    with pytest.raises(OutOfOrderError, match="come once"):
        lead.handle(paused, 0.2)


def test_even_loads_start_no_round_and_uneven_ones_start_one() -> None:
    lead = repartitioner()
    assert lead.balance(np.full(SHARDS, 0.1), 0.0) == []
    uneven = np.full(SHARDS, 0.1)
    uneven[[0, 4, 8]] = 0.6  # all of x.0
    orders = lead.balance(uneven, 0.0)
    assert orders == [rc.PauseUpstream(who, 1) for who in UPSTREAMS]
    assert lead.balance(uneven, 0.1) == []  # one at a time
    with pytest.raises(OutOfOrderError, match="be idle"):
        lead.move({ShardId(0): 1}, 0.1)


def test_a_report_splits_the_time_into_pause_migration_and_update() -> None:
    lead = repartitioner()
    lead.move({ShardId(0): 1}, 10.0)
    for who in UPSTREAMS:
        lead.handle(rc.UpstreamPaused(who, 1, (0, 0, 0, 0)), 11.0)
    lead.handle(rc.ExecutorDrained(EXECUTORS[0], 1), 12.0)
    lead.handle(rc.ShardsReleased(EXECUTORS[0], 1), 13.0)
    lead.handle(ev.ShardOpened(MoveId(1)), 14.0)
    lead.handle(ev.CopyArrived(MoveId(1), 64), 15.0)
    orders: list[rc.Order] = []
    for who in UPSTREAMS:
        orders = lead.handle(rc.TableUpdated(who, 1), 16.0)
    assert orders == [rc.ReportRound(1, 1, 1, 3.0, 2.0, 1.0, 64)]


def test_no_shards_executors_or_upstreams_are_refused() -> None:
    for shards, homes, upstreams in ((0, HOMES, UPSTREAMS), (4, [], UPSTREAMS), (4, HOMES, ())):
        with pytest.raises(BadValueError, match="be one or more each"):
            rc.Repartitioner(shards, homes, upstreams)


@pytest.mark.parametrize("owners", [{-1: 0}, {SHARDS: 0}, {0: -1}, {0: len(EXECUTORS)}])
def test_shards_and_executors_that_are_not_there_are_refused_and_no_round_begins(
    owners: dict[int, int],
) -> None:
    lead = repartitioner()
    with pytest.raises((UnknownShardError, BadValueError), match="must be 0 to"):
        lead.move({ShardId(1): 2, **{ShardId(shard): to for shard, to in owners.items()}}, 0.0)
    assert lead.step is rc.Step.IDLE
    assert lead.table == rc.first_table(SHARDS, len(EXECUTORS)).tolist()


def test_counts_of_other_executors_than_there_are_are_refused_and_the_answer_is_still_due() -> None:
    lead = repartitioner()
    lead.move({ShardId(0): 1}, 0.0)
    with pytest.raises(BadValueError, match="one for each executor; got 3"):
        lead.handle(rc.UpstreamPaused(UPSTREAMS[0], 1, (1, 2, 3)), 0.1)
    assert len(lead.waiting_for()) == len(UPSTREAMS)
    orders: list[rc.Order] = []
    for who in UPSTREAMS:
        orders = lead.handle(rc.UpstreamPaused(who, 1, (1, 0, 0, 0)), 0.2)
    assert orders == [rc.DrainExecutor(EXECUTORS[0], 1, 3)]


@given(st.integers(0, 2**32))
def test_answers_of_a_round_that_is_over_are_refused_and_change_nothing(seed: int) -> None:
    world = Everybody(seed)
    old: list[rc.Event] = []
    for number in (1, 2):
        world.enact(world.lead.move({ShardId(0): number, ShardId(5): 3 - number}, world.now))
        while world.lead.step is not rc.Step.IDLE:
            before = (world.lead.step, world.lead.waiting_for(), list(world.lead.table))
            for late in old:
                with pytest.raises(OutOfOrderError):
                    world.lead.handle(late, world.now)
            assert (world.lead.step, world.lead.waiting_for(), world.lead.table) == before
            new = list(world.answers)
            world.step()
            gone = [answer for answer in new if answer not in world.answers]
            # That an old copy is gone is for nobody to wait for.
            old += [answer for answer in gone if not isinstance(answer, ev.ShardDropped)]
    assert len(old) > 10


def test_a_move_to_where_shards_are_is_no_move() -> None:
    lead = repartitioner()
    assert lead.move({ShardId(0): 0, ShardId(5): 1}, 0.0) == []
    assert lead.step is rc.Step.IDLE
    assert lead.waiting_for() == []


def test_without_a_change_of_nodes_tables_change_as_soon_as_givers_have_flushed() -> None:
    lead = repartitioner()
    lead.move({ShardId(0): 2}, 0.0)
    for who in UPSTREAMS:
        lead.handle(rc.UpstreamPaused(who, 1, (0, 0, 0, 0)), 1.0)
    lead.handle(rc.ExecutorDrained(EXECUTORS[0], 1), 2.0)
    orders = lead.handle(rc.ShardsReleased(EXECUTORS[0], 1), 3.0)
    assert orders == [rc.UpdateTable(who, 1, {ShardId(0): 2}) for who in UPSTREAMS]
    assert lead.step is rc.Step.UPDATING
