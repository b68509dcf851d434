"""Failures: how a process reports its own before it ends, and how a batch fails."""

from __future__ import annotations

import contextlib
import pickle
import signal
import traceback
from collections.abc import Iterator

from elasticutor.errors import ElasticutorError
from elasticutor.transport import messages as say
from elasticutor.transport.mailbox import DRIVER, Mailbox

LAST_WORDS_S = 2.0
"""How long a process tries to get its last messages out."""

AGAIN = "start the query again from its checkpoint, or let elasticutor.supervise do so"
"""What helps where something was lost; `supervise` knows it by its name in here."""

RERUN = 'run the action again on a new DataFrame, as df.select("*"): Spark keeps failed plans'
"""What helps where there is no checkpoint."""


def described(error: BaseException) -> tuple[bytes, str]:
    """An error as bytes that can be raised again elsewhere, if it can be, and in words."""
    try:
        blob = pickle.dumps(error)
        pickle.loads(blob)  # noqa: S301 - our own bytes, to see whether they come back
    except Exception:
        blob = b""
    if isinstance(error, ElasticutorError):
        return blob, str(error)
    return blob, "".join(traceback.format_exception(error)).rstrip()


def described_end(code: int) -> str:
    """How a process ended, in words.

    Example:
        >>> described_end(-9), described_end(1)
        ('SIGKILL', 'exit code 1')
    """
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def lost_on(node: str, code: int, said: str) -> str:
    """How a process was lost that has ended with this code and these last words, in words."""
    last = f"\nIts last words:\n{said.rstrip()}" if said.strip() else ""
    return f"was lost: its process on node {node!r} ended ({described_end(code)}){last}"


class SilentDriverError(ElasticutorError, RuntimeError):
    """No heartbeat of the driver for too long."""

    def __str__(self) -> str:
        return f"No heartbeat from the driver for {self.got}; {self.who} gives up."

    @classmethod
    def after(cls, seconds: float, who: str) -> SilentDriverError:
        """The error of a process that gives up after this time.

        Example:
            >>> print(SilentDriverError.after(30.0, "node 'n0'"))
            No heartbeat from the driver for 30 s; node 'n0' gives up.
        """
        return cls(who, "hear from the driver", f"{seconds:g} s")


@contextlib.contextmanager
def reporting(mail: Mailbox, run: str, who: str) -> Iterator[None]:
    """Report an error that ends the process to the driver, and leave time for that to arrive."""
    try:
        yield
    except Exception as error:
        blob, text = described(error)
        mail.send(DRIVER, say.Failed(run, who, blob, text))
        raise
    finally:
        mail.close(linger_s=LAST_WORDS_S)


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
