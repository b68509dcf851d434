"""Tracing: off unless it is asked for, and then what was sent is what was taken."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.transport.test_mailbox import KEYS, PATIENCE_S

from elasticutor.core.protocol.ids import Attempt, NodeId, Peer
from elasticutor.lab.bench import tracing
from elasticutor.lab.bench.tracing import TracedMailbox
from elasticutor.process.specs import Site
from elasticutor.transport.channels import Endpoint, Links
from elasticutor.transport.codec import Credit, Tuples
from elasticutor.transport.mailbox import FACTORY, Mailbox
from elasticutor.transport.packets import NO_HASHES, Packet, born


def site() -> Site:
    nowhere = Endpoint("", "", "tcp://127.0.0.1:1")
    return Site("run", NodeId("n"), "", "127.0.0.1", KEYS, nowhere)


def at_site(name: str) -> Mailbox:
    mail = Mailbox.at(site(), name)
    mail.close()
    return mail


@pytest.mark.parametrize("on", [False, True])
def test_a_mailbox_takes_notes_only_where_tracing_is_on_when_it_is_made(
    tmp_path: Path, on: bool
) -> None:
    assert type(at_site("a")) is Mailbox
    with tracing.traced(tmp_path):
        if on:
            (tmp_path / tracing.ON).touch()
        assert type(at_site("a")) is (TracedMailbox if on else Mailbox)
    assert type(at_site("a")) is Mailbox
    assert FACTORY not in os.environ


def test_a_sample_of_tuples_is_noted_where_it_is_sent_and_where_it_is_taken(tmp_path: Path) -> None:
    links = Links("n", KEYS, ipc_dir=None)
    mail = TracedMailbox(links, "me")
    mail.note_in(tmp_path / "notes")
    mail.know("me", mail.endpoint)
    in_sample, out_of_it = tracing.EVERY * 1_000_000, tracing.EVERY * 1_000_000 + 1
    for birth_us in (in_sample, out_of_it):
        packet = Packet(b"", 1, born(birth_us / 1e6, 1), NO_HASHES)
        mail.send("me", Tuples(Peer("source"), Attempt(1), 1, packet))
    mail.send("me", Credit(Peer("source"), Attempt(1), 5))
    until, taken = time.monotonic() + PATIENCE_S, 0
    while taken < 3 and time.monotonic() < until:
        mail.wait(0.1)
        taken += len(list(mail.receive()))
    assert taken == 3
    mail.close()
    sent, came = (line.split() for line in (tmp_path / "notes").read_text().splitlines())
    assert sent[:3] == ["sent", "Tuples", str(in_sample)]
    assert came[:3] == ["taken", "Tuples", str(in_sample)]
    idle, woken, got, done = map(float, came[3:])
    assert idle <= woken <= got <= done
    assert float(sent[3]) <= got
