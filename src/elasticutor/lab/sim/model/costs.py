"""What a message costs the processes on a tuple's way, besides the operator's own work.

Measured live, by `elasticutor bench path`: 2 cores, 1 ms of CPU burnt per tuple, one executor with
two tasks, 1,200 tuples a second, so that nearly every message has one tuple.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from elasticutor.errors import BadValueError


@dataclass(frozen=True, slots=True)
class Cost:
    """What a message costs one kind of process."""

    message_s: float
    """CPU time of each message: to read it, to handle it, and to send what follows."""
    wake_s: float = 0.0
    """CPU time on top for a message that finds the process asleep: to wake up, and cold caches."""
    delay_s: float = 0.0
    """Until a process that was asleep runs: on the wire and in the kernel, without CPU time."""

    def __post_init__(self) -> None:
        for name in ("message_s", "wake_s", "delay_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadValueError(name, "be finite and at least 0", getattr(self, name))

    def times(self, factor: float) -> Cost:
        """The same on a machine that is slower by a factor."""
        return Cost(self.message_s * factor, self.wake_s * factor, self.delay_s * factor)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a message costs each kind of process.

    The measurement has CPU time per tuple by kind of process, and the time of each hop's parts. A
    process whose every message finds it asleep needs `delay_s + wake_s + message_s` for a hop, and
    `wake_s + message_s` of CPU time.
    """

    source: Cost = Cost(20e-6, 27e-6, 60e-6)
    """Of a packet that is sent. CPU 47 µs a tuple; 107 µs from when a tuple is due until it is sent
    (96 and 11), of which 50 are by how much the kernel's timers are late. What a packet costs
    beside others was not measured: as much as a main process's message."""
    main: Cost = Cost(20e-6, 18e-6, 16e-6)
    """CPU 76 µs a tuple, for its two messages; each takes 54 µs (wake-up 30 and 26, the rest 24 and
    28). At saturation, when it never sleeps, a message takes 20."""
    task: Cost = Cost(40e-6, 20e-6, 15e-6)
    """Of a chunk. CPU 47 µs a tuple beyond the operator; 45 µs for a chunk (python 3, work 26, send
    16), most of which find the task at work; wake-up 10, and 25 where all of them sleep."""
    sink: Cost = Cost(11e-6, 11e-6, 14e-6)
    """CPU 22 µs a tuple; 36 µs for a message (wake-up 25, python 4, work 7), of which 11 have
    nothing to do with waking up."""

    def times(self, factor: float) -> Costs:
        """The same on machines that are slower by a factor; 0: messages cost nothing."""
        if not 0 <= factor < math.inf:
            raise BadValueError("factor of the costs", "be finite and at least 0", factor)
        return Costs(*(getattr(self, field.name).times(factor) for field in fields(self)))
