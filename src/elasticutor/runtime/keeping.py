"""From a plan to how its state is kept in a checkpoint."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

import cloudpickle

from elasticutor.operator import Operator
from elasticutor.runtime.specs import Keeping
from elasticutor.schemas import to_arrow
from elasticutor.state.checkpoint import Checkpoint, InUseError, Location, StateForm
from elasticutor.topology import OperatorPlan, Plan

log = logging.getLogger(__name__)

_RELEASE_S = 30.0
"""How long a run that has ended may take to let go of its checkpoint."""


@dataclass(slots=True)
class _Held:
    run: str
    ends: bool = False
    released: threading.Event = field(default_factory=threading.Event)


_OPEN: dict[str, _Held] = {}
"""The checkpoints that runs of this process have, and which: a claim cannot tell them apart."""


def form_of(operator: OperatorPlan) -> StateForm:
    """How an operator's state is kept."""
    made: Operator = cloudpickle.loads(operator.blob)
    schema = None if made.state_schema is None else to_arrow(made.state_schema)
    key = tuple((name, str(operator.input.field(name).type)) for name in operator.key)
    return StateForm(operator.name, operator.executors, operator.shards, key, schema)


def keeping_of(uri: str, plan: Plan) -> dict[str, Keeping]:
    """Where and how the state of every operator is kept."""
    return {operator.name: Keeping(uri, form_of(operator)) for operator in plan.operators}


def opened(
    uri: str, run: str, plan: Plan, epoch: int | None = None, below: int | None = None
) -> Checkpoint:
    """The checkpoint, claimed for a run and checked against its plan.

    Raises:
        CheckpointError: It is damaged, does not fit, or is in use.
    """
    location = Location.at(uri)
    where = location.identity
    held = _OPEN.get(where)
    if held is not None and held.ends:
        held.released.wait(_RELEASE_S)
    mine = _Held(run)
    held = _OPEN.setdefault(where, mine)
    if held is not mine:
        hint = "stop that run, or give this one another location"
        raise InUseError(
            f"checkpoint {location.uri}", "be free", f"run {held.run}, of this process", hint
        )
    try:
        return Checkpoint.open(
            uri,
            run=run,
            topology=plan.name,
            forms=[form_of(operator) for operator in plan.operators],
            sources={source.name: source.tasks for source in plan.sources},
            epoch=epoch,
            below=below,
            say=log.warning,
        )
    except BaseException:
        _OPEN.pop(where, None)
        raise


def ends(checkpoint: Checkpoint) -> None:
    """A run has ended: it will release its checkpoint soon, and whoever wants it may wait."""
    held = _OPEN.get(checkpoint.location.identity)
    if held is not None:
        held.ends = True


def release(checkpoint: Checkpoint) -> None:
    """Let others have a checkpoint."""
    try:
        checkpoint.release()
    except Exception as error:
        log.warning("the checkpoint could not be released: %s", error)
    finally:
        held = _OPEN.pop(checkpoint.location.identity, None)
        if held is not None:
            held.released.set()
