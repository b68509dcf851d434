"""What carries the core's instructions out."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from elasticutor.core.protocol import instructions as do
from elasticutor.lab.check.world.hosts import ExecutorHost
from elasticutor.lab.sim.core_host import CoreHost
from elasticutor.lab.sim.model.elastic import ElasticHost


@pytest.mark.parametrize("host", [ExecutorHost, ElasticHost])
def test_every_instruction_has_a_method_that_carries_it_out(host: type[CoreHost]) -> None:
    assert set(host._methods) == {
        kind for base in get_args(do.Instruction) for kind in base.__subclasses__() or [base]
    }


def test_a_subclass_carries_instructions_out_by_its_own_methods() -> None:
    class Noting(ElasticHost):
        def record(self, order: Any) -> None:
            noted.append(order)

    noted: list[Any] = []
    host = object.__new__(Noting)
    host.carry_out([do.ReportHotShards(()), do.ReportHotShards(())])
    assert noted == [do.ReportHotShards(()), do.ReportHotShards(())]
