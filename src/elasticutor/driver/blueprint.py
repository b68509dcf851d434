"""From a plan to the specification of every process of a run."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.measure.pacing import report_every_s
from elasticutor.core.paradigm import Paradigm
from elasticutor.core.protocol.ids import NodeId, Peer
from elasticutor.core.scheduler.placement import Placement
from elasticutor.errors import BadValueError
from elasticutor.plan import OperatorPlan, Plan, SinkPlan, SourcePlan
from elasticutor.process.specs import (
    ExecutorSpec,
    Keeping,
    OperatorSpec,
    Route,
    SinkSpec,
    Site,
    SourceSpec,
    Tempo,
)
from elasticutor.transport import messages as say

if TYPE_CHECKING:
    from elasticutor.driver.loop import DriverLoop

End: TypeAlias = tuple[str, str, Callable[[Site], Any]]
"""A source or a sink: its kind, its name, and what makes its specification at a site."""


_RETURN = (Route("", (), (Peer(""),)),)
"""Back to the sender of what it was made of; the main process knows it."""


def in_paradigm(plan: Plan, paradigm: Paradigm) -> Plan:
    """The plan with the executors that a paradigm has.

    In the static and the resource-centric one, every core is an executor of its own; in the latter
    all executors of an operator know all of its shards.

    Raises:
        BadValueError: The resource-centric paradigm, with an operator fed by another.
    """
    if paradigm.is_scheduled:
        return plan
    sources = {source.name for source in plan.sources}
    for operator in plan.operators:
        if paradigm.holds_tables_upstream and not set(operator.inputs) <= sources:
            raise BadValueError(
                f"operator {operator.name!r} in the paradigm {paradigm.value!r}",
                "be fed by sources alone: they hold the table of its shards",
                list(operator.inputs),
                "use another paradigm for this topology",
            )
    return replace(plan, operators=tuple(_split(op, paradigm) for op in plan.operators))


def _split(operator: OperatorPlan, paradigm: Paradigm) -> OperatorPlan:
    executors = operator.executors * operator.cores
    shards = operator.shards
    if paradigm.holds_tables_upstream:
        shards *= operator.executors
    return replace(operator, executors=executors, cores=1, shards=shards)


def _paced(tempo: Tempo, plan: Plan, paradigm: Paradigm) -> Tempo:
    """The tempo of the executors, slower where they are too many for the driver to keep up."""
    executors = sum(operator.executors for operator in plan.operators)
    paced = replace(tempo, measure_s=report_every_s(tempo.measure_s, executors))
    if not paradigm.balances:
        paced = replace(paced, balance_s=0.0)
    elif paradigm.holds_tables_upstream:  # each look at the balance is a report to the driver
        paced = replace(paced, balance_s=report_every_s(tempo.balance_s, executors))
    return paced


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the executors of an operator have in common."""

    spec: OperatorSpec
    upstreams: tuple[Peer, ...]
    numbers: Mapping[str, int]
    """Of each executor, its place among them."""


class Blueprint:
    """Makes the specifications of one run's processes."""

    def __init__(
        self,
        hub: DriverLoop,
        run: str,
        plan: Plan,
        config: ExecutorConfig,
        tempo: Tempo,
        paradigm: Paradigm,
        keeping: Mapping[str, Keeping] | None = None,
    ) -> None:
        self._hub = hub
        self._run = run
        self._plan = plan
        self._config = config
        self.tempo = _paced(tempo, plan, paradigm)
        """Of the executors."""
        ends = sum(source.tasks for source in plan.sources) + len(plan.sinks)
        self._ends_tempo = replace(tempo, measure_s=report_every_s(tempo.measure_s, ends))
        self._paradigm = paradigm
        self._keeping = keeping
        """By operator, where state is made durable; None: nowhere."""
        self._shared: dict[str, _Shared] = {}

    def site(self, node: NodeId, life: int = 0) -> Site:
        """The site of a process on a node."""
        seen = self._hub.nodes[node]
        hub = self._hub
        return Site(self._run, node, seen.sockets, seen.host, hub.keys, hub.endpoint, life)

    def site_elsewhere(self, host: say.EndsHostUp, life: int = 0) -> Site:
        """The site of a process on no node."""
        name, hub = NodeId(f"ends-{host.number}"), self._hub
        return Site(
            self._run, name, host.sockets, host.host, hub.keys, hub.endpoint, life, on_node=False
        )

    def executor(self, who: Peer, placed: Placement, life: int = 0) -> say.StartExecutor:
        """The order to start a main process, for the node that it is placed on."""
        operator = self._plan.stage_of(who)
        assert isinstance(operator, OperatorPlan)  # the caller knows its executors
        shared = self._shared.get(operator.name)
        if shared is None:
            shared = self._shared[operator.name] = self._shared_by(operator)
        executor = ExecutorSpec(
            self.site(placed.node, life),
            who,
            shared.numbers[who],
            replace(self._config, shards=operator.shards),
            shared.spec,
            shared.upstreams,
            placed.cores,
            {node: seen.endpoint for node, seen in self._hub.nodes.items()},
            self.tempo,
            Peer(operator.name) if self._paradigm.shares_stores else who,
            None if self._keeping is None else self._keeping[operator.name],
        )
        payload = pickle.dumps(executor, pickle.HIGHEST_PROTOCOL)
        return say.StartExecutor(self._run, who, payload, life)

    def _shared_by(self, operator: OperatorPlan) -> _Shared:
        spec = OperatorSpec(
            operator.name,
            operator.blob,
            operator.key,
            operator.input,
            operator.output,
            _RETURN if self._config.outputs == "return" else self._routes(operator),
        )
        names = operator.processes
        numbers = {name: number for number, name in enumerate(names)}
        return _Shared(spec, _peers(self._plan.upstreams_of(names[0])), numbers)

    def ends(self) -> Iterator[End]:
        """All sources and sinks."""
        for source in self._plan.sources:
            routes = self._routes(source)
            for task, name in enumerate(source.processes):
                yield "source", name, partial(self._source, source, Peer(name), task, routes)
        for sink in self._plan.sinks:
            yield "sink", sink.name, partial(self._sink, sink)

    def _source(
        self, source: SourcePlan, who: Peer, task: int, routes: tuple[Route, ...], site: Site
    ) -> SourceSpec:
        return SourceSpec(
            site,
            who,
            source.blob,
            source.schema,
            task,
            source.tasks,
            routes,
            self._config.min_credit_bytes,
            self._ends_tempo,
            self._keeping is not None,
        )

    def _sink(self, sink: SinkPlan, site: Site) -> SinkSpec:
        return SinkSpec(
            site,
            Peer(sink.name),
            sink.blob,
            sink.schema,
            _peers(self._plan.upstreams_of(sink.name)),
            self._config.min_credit_bytes,
            self._ends_tempo,
            self._keeping is not None,
            next((kept.uri for kept in (self._keeping or {}).values()), ""),
        )

    def _routes(self, stage: SourcePlan | OperatorPlan) -> tuple[Route, ...]:
        """The routes of a stage's stream."""
        stream = stage.schema if isinstance(stage, SourcePlan) else stage.output
        operators = {operator.name: operator for operator in self._plan.operators}
        routes = []
        for name in stage.targets:
            operator = operators.get(name)
            if operator is None:
                routes.append(Route(name, (), (Peer(name),)))
            else:
                shards = operator.shards if self._paradigm.holds_tables_upstream else 0
                read = operator.input.names
                columns = None if read == stream.names else tuple(read)
                peers = _peers(operator.processes)
                routes.append(Route(name, operator.key, peers, shards, columns))
        return tuple(routes)


def _peers(names: Iterable[str]) -> tuple[Peer, ...]:
    return tuple(map(Peer, names))
