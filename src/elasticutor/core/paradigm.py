"""The paradigms that the paper compares (5): ours, and its rivals in the same engine."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

Paradigm: TypeAlias = Literal["elastic", "static", "rc", "naive"]
"""Elastic; one core per executor and no balancing; resource-centric, where shards move between
executors of one core and all upstreams are told; elastic with a naive choice of cores."""

PARADIGMS: tuple[Paradigm, ...] = get_args(Paradigm)
