"""What the processes of a job need to know: a topology that was checked and pickled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import pyarrow as pa

from elasticutor.errors import BadValueError
from elasticutor.schemas import closest


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A source, and how many processes read it."""

    name: str
    blob: bytes  # the pickled `Source`
    schema: pa.Schema
    tasks: int
    targets: tuple[str, ...]  # operators and sinks that take its stream

    @property
    def processes(self) -> tuple[str, ...]:
        """The names of its processes, task by task."""
        return tuple(f"{self.name}.{task}" for task in range(self.tasks))


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """An operator and its elastic executors."""

    name: str
    blob: bytes  # the pickled `Operator`
    kind: Literal["record", "batch"]
    key: tuple[str, ...]
    input: pa.Schema
    """Of what it is sent: the columns that it reads and those of its key, in the streams' order."""
    output: pa.Schema
    executors: int
    shards: int  # of each executor
    cores: int  # of each executor, to begin with
    inputs: tuple[str, ...]  # sources and operators whose streams it takes
    targets: tuple[str, ...]  # operators and sinks that take its stream

    @property
    def processes(self) -> tuple[str, ...]:
        """The names of its executors."""
        return tuple(f"{self.name}.{executor}" for executor in range(self.executors))


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """A sink."""

    name: str
    blob: bytes  # the pickled `Sink`
    schema: pa.Schema
    inputs: tuple[str, ...]  # sources and operators whose streams it takes
    collects: bool  # whether its batches are wanted on the driver

    @property
    def processes(self) -> tuple[str, ...]:
        """The name of its only process."""
        return (self.name,)


StagePlan: TypeAlias = SourcePlan | OperatorPlan | SinkPlan
"""A source, operator or sink of a plan."""


@dataclass(frozen=True)
class Plan:
    """All that a job's processes need to know; it can be pickled, and never changes.

    Processes are called after what they belong to: `clicks.0` is a task of a source, `counts.1` an
    executor, `out` a sink. Every upstream process feeds every executor of an operator, by key.
    """

    name: str
    sources: tuple[SourcePlan, ...]
    operators: tuple[OperatorPlan, ...]  # none comes before one of its inputs
    sinks: tuple[SinkPlan, ...]

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        """Sources, operators and sinks, in this order."""
        return (*self.sources, *self.operators, *self.sinks)

    def participants(self) -> tuple[str, ...]:
        """The names of all processes: source tasks, executors, sinks."""
        return tuple(process for stage in self.stages for process in stage.processes)

    def stage_of(self, process: str) -> StagePlan:
        """What a process belongs to."""
        if process not in self._stages:
            hint = closest(process, self._stages)
            raise BadValueError("name of a process", f"be in {self.name!r}", process, hint)
        return self._stages[process]

    def upstreams_of(self, process: str) -> tuple[str, ...]:
        """The processes that send to this one."""
        stage = self.stage_of(process)
        return () if isinstance(stage, SourcePlan) else self._processes_of(stage.inputs)

    def downstreams_of(self, process: str) -> tuple[str, ...]:
        """The processes that this one sends to."""
        stage = self.stage_of(process)
        return () if isinstance(stage, SinkPlan) else self._processes_of(stage.targets)

    @cached_property
    def _stages(self) -> dict[str, StagePlan]:
        return {process: stage for stage in self.stages for process in stage.processes}

    def _processes_of(self, names: Iterable[str]) -> tuple[str, ...]:
        stages = {stage.name: stage for stage in self.stages}
        return tuple(process for name in names for process in stages[name].processes)
