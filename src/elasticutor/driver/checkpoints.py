"""From a plan to how its state is kept in a checkpoint."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import cloudpickle

from elasticutor.operator import Operator
from elasticutor.plan import OperatorPlan, Plan
from elasticutor.process.specs import Keeping
from elasticutor.schemas import to_arrow
from elasticutor.state.checkpoint import Checkpoint, InUseError, Location, StateForm
from elasticutor.state.checkpoint.opening import refuse_other

log = logging.getLogger(__name__)

_RELEASE_S = 30.0
"""How long a run that has ended may take to let go of its checkpoint."""
ENDING = "start again when that run has ended"
"""The hint about a run that takes longer."""


@dataclass(slots=True)
class _Held:
    run: str
    goes_on: Callable[[], bool]
    """Whether what the run serves goes on; if not, the run ends soon. May take a while."""
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
    uri: str,
    run: str,
    plan: Plan,
    epoch: int | None = None,
    below: int | None = None,
    goes_on: Callable[[], bool] = lambda: True,
) -> Checkpoint:
    """The checkpoint, claimed for a run and checked against its plan.

    A run of this process that has it and is about to end is waited for.

    Raises:
        CheckpointError: It is damaged, does not fit, or is in use.
    """
    location = Location.at(uri)
    if below is not None:
        refuse_other(location, plan.name)
    _reserve(location, _Held(run, goes_on))
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
        _free(location)
        raise


def _reserve(location: Location, mine: _Held) -> None:
    """Note that a run of this process has a checkpoint; wait for an earlier one that ends."""
    until = time.monotonic() + _RELEASE_S
    while (held := _OPEN.setdefault(location.identity, mine)) is not mine:
        got = f"run {held.run}, of this process"
        hint = "stop that run, or give this one another location"
        if held.ends or not held.goes_on():
            if held.released.wait(max(0.0, until - time.monotonic())):
                continue
            got, hint = f"{got}, which has been ending for {_RELEASE_S:g} s", ENDING
        raise InUseError(f"checkpoint {location.uri}", "be free", got, hint)


def ends(checkpoint: Checkpoint) -> None:
    """Note that a run has ended: it releases its checkpoint soon, and the next one may wait."""
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
        _free(checkpoint.location)


def _free(location: Location) -> None:
    held = _OPEN.pop(location.identity, None)
    if held is not None:
        held.released.set()
