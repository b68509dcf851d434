"""Errors that `elasticutor` raises on purpose, all of them in one tree.

```
ElasticutorError
├── BadValueError (ValueError)          an impossible value: negative, NaN, zero cores
│   ├── UnsupportedKeyError             a column whose type cannot be a key
│   └── WireError                       transport.codec: frames that are not a message
├── OperatorError (RuntimeError)        operator: an operator raised, or its output is wrong
├── SinkError (RuntimeError)            sinks.base: a sink did not take what it was given
├── DataSourceError (RuntimeError)      spark.datasource.given: a data source broke its interface
├── ClusterError (RuntimeError)         driver.loop: a cluster did not start, or is gone
├── RunError (RuntimeError)             core.run.phases: a run failed: which process, and why
├── BatchError (RuntimeError)           process.batch_errors: a batch of a query cannot go on
├── CheckpointError (RuntimeError)      state.checkpoint.errors: a checkpoint cannot be used
│   ├── DamagedError                    state.checkpoint.errors: a file is torn, changed or gone
│   ├── LayoutError                     state.checkpoint.errors: a layout of another version
│   ├── MismatchError                   state.checkpoint.errors: it does not fit the topology
│   ├── InUseError                      state.checkpoint.errors: another run holds it
│   ├── UncertainError                  state.checkpoint.errors: the last commit may have failed
│   └── StorageError                    state.checkpoint.errors: full, read-only or not allowed
│       └── AbsentError                 state.checkpoint.errors: there is no such file
├── StateFullError (RuntimeError)       no room for more state: the map or the disk is full
├── DirectoryError (RuntimeError)       process.hosting.directories: no room, in use, not ours
├── ZygoteError (RuntimeError)          process.hosting.zygote: processes cannot be forked
├── BenchError (RuntimeError)           lab.bench.live: a benchmark measured something else
└── ProtocolError (RuntimeError)        a message that the protocol does not allow here
    ├── UnknownShardError               a shard outside the executor's table
    ├── UnknownTaskError                a task that the executor does not have
    ├── UnknownNodeError                a node that takes no part in the executor
    ├── UnknownPeerError                an upstream or destination that the attempt does not name
    ├── OutOfOrderError                 label, marker, result or epoch that is not the next one
    ├── StaleAttemptError               belongs to an attempt that was given up
    ├── CreditExceededError             an upstream sent more than it was granted
    └── LastCoreError                   an executor keeps at least one core
```

A module before the colon says where a class is defined; classes without one are defined here.
`tests/test_errors.py` compares this drawing with the code.

Every error carries four facts and builds its sentence from them: *who* must be *what*, what it
*got*, and a *hint* what to do. Errors cross processes, so each can be pickled.

An object that raises one of these errors is unchanged by the call.
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
    """An impossible value: a negative size, NaN, zero cores."""


class UnsupportedKeyError(BadValueError):
    """A column whose type cannot be hashed as a key."""


class StateFullError(ElasticutorError, RuntimeError):
    """No room for more state: the store's map or the disk beneath it is full."""


class ProtocolError(ElasticutorError, RuntimeError):
    """A message that the protocol does not allow at this point."""


class UnknownShardError(ProtocolError):
    """A shard number outside this executor's table."""


class UnknownTaskError(ProtocolError):
    """A task that this executor does not have, or no longer has."""


class UnknownNodeError(ProtocolError):
    """A node that takes no part in this executor."""


class UnknownPeerError(ProtocolError):
    """An upstream or a destination that the current attempt does not name."""


class OutOfOrderError(ProtocolError):
    """A label, marker, result or epoch that is not the next one expected."""


class StaleAttemptError(ProtocolError):
    """A message of an attempt that was given up; the receiver drops it."""


class CreditExceededError(ProtocolError):
    """An upstream sent more than it was granted."""


class LastCoreError(ProtocolError):
    """The last core of an executor cannot be taken away."""


class Words(str):
    """Text that stands in an error's sentence as it is, without quotes.

    Example:
        >>> print(BadValueError("a.json", "be whole", Words("12 of 30 bytes")))
        a.json must be whole; got 12 of 30 bytes
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


LATE = (StaleAttemptError, UnknownTaskError, UnknownNodeError)
"""Refusals of a message that comes too late: no process waits for an answer, so hosts drop it.

After any other refusal a process waits in vain, so the attempt fails.
"""
