"""Everything that `elasticutor` refuses, by name.

```
ElasticutorError
├── BadValueError (ValueError)        a value that cannot be: negative, NaN, zero cores
│   └── UnsupportedKeyError           a column that cannot be a key
├── StateFullError (RuntimeError)     no room for more state: the map or the disk is full
└── ProtocolError (RuntimeError)      a message that the protocol does not allow here
    ├── UnknownShardError
    ├── UnknownTaskError
    ├── UnknownNodeError
    ├── UnknownPeerError
    ├── OutOfOrderError               label, marker, result or epoch that is not the next one
    ├── StaleAttemptError             belongs to an attempt that was given up
    ├── CreditExceededError           more was sent than was granted
    └── LastCoreError                 an executor keeps at least one core
```

Every error carries four facts and makes its sentence from them: *who* must be *what*, what was
*got*, and a *hint* what to do about it. They survive pickling, because they cross processes.

A refusal changes nothing: the object that raised is as it was before the call.
"""

from __future__ import annotations


class ElasticutorError(Exception):
    """Base of all errors raised on purpose by this package.

    Example:
        >>> print(ElasticutorError("shards", "be at least 1", 0, "leave it at 256"))
        shards must be at least 1; got 0. Hint: leave it at 256
    """

    def __init__(self, who: str, must: str, got: object, hint: str = "") -> None:
        super().__init__(who, must, got, hint)
        self.who = who
        self.must = must
        self.got = got
        self.hint = hint

    def __str__(self) -> str:
        sentence = f"{self.who} must {self.must}; got {self.got!r}"
        return f"{sentence}. Hint: {self.hint}" if self.hint else sentence


class BadValueError(ElasticutorError, ValueError):
    """A value that cannot be: a negative size, NaN, zero cores."""


class UnsupportedKeyError(BadValueError):
    """A column whose type cannot be hashed as a key."""


class StateFullError(ElasticutorError, RuntimeError):
    """No room for more state: the store's map or the disk beneath it is full."""


class ProtocolError(ElasticutorError, RuntimeError):
    """A message that the protocol does not allow at this point."""


class UnknownShardError(ProtocolError):
    """A shard number outside this executor's table."""


class UnknownTaskError(ProtocolError):
    """A task that this executor does not have, or has no more."""


class UnknownNodeError(ProtocolError):
    """A node that takes no part in this executor."""


class UnknownPeerError(ProtocolError):
    """An upstream or a destination that the current attempt does not name."""


class OutOfOrderError(ProtocolError):
    """A label, marker, result or epoch that is not the next one expected."""


class StaleAttemptError(ProtocolError):
    """A message of an attempt that was given up; the receiver drops it."""


class CreditExceededError(ProtocolError):
    """An upstream sent more than it had been granted."""


class LastCoreError(ProtocolError):
    """The last core of an executor cannot be taken away."""


LATE = (StaleAttemptError, UnknownTaskError, UnknownNodeError)
"""What is refused because it comes too late: nobody waits for an answer to it, so hosts drop it.

Any other refusal means that somebody waits in vain, and the attempt has failed.
"""
