"""A doomed process dies just before the message that was named, and at no other."""

from __future__ import annotations

import os
import pkgutil
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.transport.test_mailbox import KEYS, PATIENCE_S

from elasticutor.core.protocol import events as ev
from elasticutor.core.protocol.ids import MoveId, Peer, TaskId
from elasticutor.lab.chaos.doom import MAILBOX, DieAt, DoomedMailbox
from elasticutor.transport import messages as say
from elasticutor.transport.channels import Links


class Died(BaseException):
    """Instead of a signal."""


@pytest.fixture
def mail(monkeypatch: pytest.MonkeyPatch) -> Iterator[DoomedMailbox]:
    """A doomed mailbox that knows itself, in a process that only says when it dies."""

    def kill(pid: int, number: int) -> None:
        assert (pid, number) == (os.getpid(), signal.SIGKILL)
        raise Died

    monkeypatch.setattr(os, "kill", kill)
    made = pkgutil.resolve_name(MAILBOX)(Links("n", KEYS, ipc_dir=None), "me")
    made.know("me", made.endpoint)
    yield made
    made.close()


def take(mail: DoomedMailbox, count: int) -> list[Any]:
    taken: list[Any] = []
    until = time.monotonic() + PATIENCE_S
    while len(taken) < count and time.monotonic() < until:
        mail.wait(0.1)
        taken += mail.receive()
    return taken


def doom(mail: DoomedMailbox, *dooms: DieAt) -> None:
    for one in dooms:
        mail.send("me", one)
    mail.send("me", say.Beat())
    assert take(mail, 1) == [say.Beat()]  # the doom itself is not handed out


OPENED = ev.ShardOpened(MoveId(1))


@pytest.mark.parametrize(
    "send",
    [
        lambda mail: mail.send("me", OPENED),
        lambda mail: mail.send_all(["me"], OPENED),
        lambda mail: mail.send("me", say.Said("run", Peer("a"), OPENED)),
    ],
    ids=["plain", "to all", "carried"],
)
def test_a_doomed_process_dies_before_it_sends(
    mail: DoomedMailbox, send: Callable[[DoomedMailbox], None]
) -> None:
    doom(mail, DieAt(True, "ShardOpened"))
    mail.send("me", say.Finish())
    assert take(mail, 1) == [say.Finish()]
    with pytest.raises(Died):
        send(mail)


def test_a_doomed_process_dies_before_it_takes_in(mail: DoomedMailbox) -> None:
    doom(mail, DieAt(False, "ShardOpened"))
    for message in (say.Finish(), OPENED):
        mail.send("me", message)
    with pytest.raises(Died):
        take(mail, 2)


def test_the_last_doom_counts(mail: DoomedMailbox) -> None:
    doom(mail, DieAt(True, "ShardOpened"), DieAt(True, "Finish"))
    mail.send("me", OPENED)
    assert take(mail, 1) == [OPENED]
    with pytest.raises(Died):
        mail.send("me", say.Finish())


def test_a_doom_for_a_task_goes_on_to_it_and_an_unknown_task_has_none(mail: DoomedMailbox) -> None:
    mail.know("task 3", mail.endpoint)
    mail.send("me", DieAt(True, "ShardOpened", TaskId(4)))
    doom(mail)
    mail.send("me", OPENED)
    assert take(mail, 1) == [OPENED]
    doom(mail, DieAt(True, "ShardOpened", TaskId(3)))
    mail.send("me", say.Finish())
    assert take(mail, 1) == [say.Finish()]  # behind the doom, which has come back by now
    with pytest.raises(Died):
        mail.send("me", OPENED)
