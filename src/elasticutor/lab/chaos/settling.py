"""When the next one may be killed."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticutor.lab.chaos.child import DriverStory
from elasticutor.lab.chaos.processes import age_s

_SHORT_LIFE_S, _SHORT_LIVES = 6.0, 2
"""A host gives a node up that dies so young once more than this in a row, so that is spared."""


def settled(story: DriverStory, since: float) -> bool:
    """Whether all is well again after a kill.

    Two epochs that were committed since prove it: the second began after the kill. If a process was
    lost, then also one that was committed after the recovery. A loss that nothing had to be done
    about is not recovered from: then several epochs must have been committed after it.
    """
    commits = story.times("epoch committed", since)
    if len(commits) < 2:
        return False
    lost, back = story.times("lost", since), story.times("recovered", since)
    if not lost:
        return True
    if back and back[-1] >= lost[-1]:
        return commits[-1] >= back[-1]
    return sum(moment > lost[-1] for moment in commits) >= 3


@dataclass
class Lives:
    """How long the nodes of one place have lived: too many short lives, and it gets no more."""

    short: dict[str, int] = field(default_factory=dict)

    def may_die(self, node: str, pid: int) -> bool:
        """Whether its host will start another one."""
        return self.short.get(_place(node), 0) < _SHORT_LIVES or age_s(pid) >= _SHORT_LIFE_S

    def died(self, node: str, age: float) -> None:
        """Take note of an end, at some age in seconds."""
        place = _place(node)
        self.short[place] = self.short.get(place, 0) + 1 if age < _SHORT_LIFE_S else 0


def _place(node: str) -> str:
    return node.partition(".")[0]
