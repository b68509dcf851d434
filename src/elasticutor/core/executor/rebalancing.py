"""Starts the moves of an executor: for a balanced load, a new core, or one that is taken.

`elasticutor.core.executor.balancing` plans which shards should move (paper 3.1); here is decided
how uneven the load has to be for that, and how many moves run at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from elasticutor.core.executor.balancing import plan_reassignments
from elasticutor.core.executor.config import ExecutorConfig
from elasticutor.core.executor.datapath import DataPath
from elasticutor.core.executor.epochs import Epochs
from elasticutor.core.executor.reassignment import Reassigner
from elasticutor.core.executor.tasks import TaskSet
from elasticutor.core.measure.load import FloatArray
from elasticutor.core.protocol.ids import ShardId
from elasticutor.core.protocol.instructions import Cause, Instruction, ReportHotShards

_NEW_CORE_THRESHOLD = 1.05
_WORTH_EVENING_OUT_S = 0.01
"""When a batch ends: a task that is behind the mean by less may stay so."""
_LEAST_UNEVEN = 0.02
"""And one that is behind by a smaller share: what is left is an estimate."""


@dataclass(slots=True, eq=False)
class Rebalancer:
    """Decides when shards change their task, while the executor runs."""

    _config: ExecutorConfig
    _data: DataPath
    _moves: Reassigner
    _task_set: TaskSet
    _epochs: Epochs
    """What the state of an unplaced shard is restored from."""
    _emit: Callable[[Instruction], None]
    _after_moves: Callable[[float], None]
    """Called with the time when moves may have started."""
    _hot: tuple[ShardId, ...] = ()

    def balance(self, now: float) -> None:
        """Look for what has changed, then for what has been uneven for long; chance is neither.

        Few or expensive tuples make an uneven load by chance alone, and moving shards after it
        would be all cost and no gain. So θ is raised by what chance can do in the time looked at.
        """
        config = self._config
        tasks = sum(task.staying for task in self._task_set.tasks.values())
        if self._data.rest_is_known:
            self._even_out_rest(now, tasks)
            return
        threshold = config.balance_threshold
        if self.arrange(now, threshold + config.chance * self._data.noise(tasks)):
            self._data.has_changed()
        elif tasks > 1 and not self._moves.moves:
            loads = self._data.steady_loads()
            threshold += config.chance * self._data.steady_noise(tasks)
            self.arrange(now, threshold, loads=loads)

    def use_new_core(self, now: float) -> None:
        """Give a new task something to do.

        Among many balanced tasks, one without any load would not lift δ over the usual threshold,
        and would get nothing.
        """
        self.arrange(now, min(_NEW_CORE_THRESHOLD, self._config.balance_threshold), "core granted")

    def arrange(
        self,
        now: float,
        threshold: float = math.inf,
        cause: Cause = "balance",
        loads: FloatArray | None = None,
    ) -> bool:
        """Start the moves that are needed, and those that balance the load beyond the threshold.

        Returns whether there were any.
        """
        moves, task_set = self._moves, self._task_set
        if not any(task.staying for task in task_set.tasks.values()):
            return False
        leaving = task_set.leaving
        if math.isinf(threshold) and not leaving and not moves.table.shards_of(None):
            return False
        loads_now = self._data.loads() if loads is None else loads
        plan = plan_reassignments(
            loads_now,
            moves.planned_owners(),
            {task.id: task.node for task in task_set.running},
            threshold=threshold,
            leaving=leaving,
            pinned=[move.shard for move in moves.moves.values()],
            homes=moves.homes,
        )
        # Not all may start at once: those that matter most come first.
        for move in sorted(plan.moves, key=lambda move: -loads_now[move.shard]):
            forced = move.source is None  # waiting tuples depend on it
            if forced or len(moves.moves) < self._config.max_moves:
                why = "lost" if forced else "core taken" if move.source in leaving else cause
                moves.start(move.shard, move.destination, why, self._epochs.committed, now)
        if loads is None and not math.isinf(threshold) and plan.hot != self._hot:
            self._hot = plan.hot
            self._emit(ReportHotShards(plan.hot))
        self._after_moves(now)
        return bool(plan.moves)

    def _even_out_rest(self, now: float, tasks: int) -> None:
        """Let all tasks end together: a batch is done when the last of them is.

        Nothing is left to chance then, and rates do not matter any more, only what is left to do.
        """
        rest_s = self._data.rest_s()
        mean_s = float(rest_s.sum()) / max(1, tasks)
        if mean_s > _WORTH_EVENING_OUT_S:
            uneven = max(_LEAST_UNEVEN, _WORTH_EVENING_OUT_S / mean_s)
            self.arrange(now, 1.0 + uneven, loads=rest_s)
