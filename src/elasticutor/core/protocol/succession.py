"""What one run of a query's operators leaves to the next one: the rest of the fencing.

`core.protocol.batches` tells the tasks of one run apart. When a run is over before its query is,
another one takes its place, and two things must not be forgotten with the first:

- Of a stage that has fed the first run, some tasks may have left. Those that come now are not all
  of its rows, so no stage goes on with another run.
- A batch that had begun and is not in the state must come again before any later one.
"""

from __future__ import annotations

from elasticutor.core.protocol.batch_protocol import Ingress
from elasticutor.core.protocol.batches import Batches
from elasticutor.core.protocol.ids import Epoch


class Succession:
    """The runs of one query's operators, one after the other.

    Example:
        >>> succession, task = Succession(), Ingress(Epoch(5), 7, stage=2, partition=0, task=31)
        >>> succession.may_begin(task)
        True
        >>> succession.saw(task)
        >>> succession.owes(task.epoch)

        Its run is over, and another one is to begin:

        >>> succession.may_begin(Ingress(Epoch(5), 7, stage=2, partition=1, task=32))
        False
        >>> heir = Batches(["count.0"], committed=Epoch(4))
        >>> succession.bequeath(heir)
        >>> heir.owed
        5
    """

    def __init__(self) -> None:
        self._stage = -1
        self._owed = Epoch(0)

    @property
    def owed(self) -> Epoch:
        """What the last run had begun and not brought to its end; 0 for nothing."""
        return self._owed

    def saw(self, task: Ingress) -> None:
        """A task has come to whichever run there is."""
        self._stage = max(self._stage, task.stage)

    def may_begin(self, task: Ingress) -> bool:
        """Whether another run may begin with this task."""
        return task.stage > self._stage

    def owes(self, epoch: Epoch) -> None:
        """A run is over, and this is what it had begun and not brought to its end."""
        self._owed = epoch

    def bequeath(self, heir: Batches) -> None:
        """Another run begins: let it know."""
        heir.owe(self._owed)
