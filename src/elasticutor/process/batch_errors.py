"""How a batch fails, on the driver and in the tasks that feed it."""

from __future__ import annotations

import pickle

from elasticutor.errors import ElasticutorError
from elasticutor.transport import messages as say

AGAIN = "start the query again from its checkpoint, or let elasticutor.supervise do so"
"""What helps where something was lost; `supervise` knows it by its name in here."""

RERUN = 'run the action again on a new DataFrame, as df.select("*"): Spark keeps failed plans'
"""What helps where there is no checkpoint."""


class BatchError(ElasticutorError, RuntimeError):
    """A batch that cannot go on: what has happened, and what to do about it."""

    def __str__(self) -> str:
        return f"{self.who}: {self.got}. Hint: {self.hint}" if self.hint else str(self.got)


def unpickled(message: say.Refused) -> Exception:
    """The error that a task was refused with, as the driver raised it."""
    try:
        error = pickle.loads(message.error)  # noqa: S301 - from the driver, authenticated
    except Exception:
        error = None
    if isinstance(error, ElasticutorError):
        return error
    return BatchError("elastic operators", "go on", message.text)
