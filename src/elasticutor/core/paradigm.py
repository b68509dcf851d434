"""The paradigms that the paper compares (5): ours, and its rivals in the same engine."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias, get_args

from elasticutor.errors import BadValueError

ParadigmName: TypeAlias = Literal["elastic", "static", "rc", "naive"]
"""What users call a paradigm; `Paradigm.named` makes it one."""

PARADIGMS: tuple[ParadigmName, ...] = get_args(ParadigmName)


class Paradigm(StrEnum):
    """How a run balances load, and what its executors are."""

    ELASTIC = "elastic"
    STATIC = "static"
    """One core per executor, and nothing ever moves."""
    RESOURCE_CENTRIC = "rc"
    """One core per executor; shards move between executors while all upstreams pause."""
    NAIVE = "naive"
    """Elastic, with cores chosen without regard to state and locality (naive-EC)."""

    @classmethod
    def named(cls, name: str) -> Paradigm:
        """The paradigm of this name."""
        if name not in PARADIGMS:
            raise BadValueError("paradigm", f"be one of {list(PARADIGMS)}", name)
        return cls(name)

    @property
    def is_scheduled(self) -> bool:
        """Whether executors can have several cores, and the scheduler changes them."""
        return self in (Paradigm.ELASTIC, Paradigm.NAIVE)

    @property
    def assigns_naively(self) -> bool:
        """Whether the scheduler ignores migration costs and locality."""
        return self is Paradigm.NAIVE

    @property
    def balances(self) -> bool:
        """Whether shards move to where there is less to do."""
        return self is not Paradigm.STATIC

    @property
    def holds_tables_upstream(self) -> bool:
        """Whether shards move between executors, and upstreams hold the table of an operator."""
        return self is Paradigm.RESOURCE_CENTRIC

    @property
    def shares_stores(self) -> bool:
        """Whether all executors of an operator on a node have one store there."""
        return self is Paradigm.RESOURCE_CENTRIC
