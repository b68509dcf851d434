"""A process's mail: what arrives, what is dropped, and where things are sent."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from elasticutor.core.protocol.ids import Attempt, NodeId, Peer
from elasticutor.errors import UnknownPeerError
from elasticutor.process.specs import Site
from elasticutor.transport import mailbox as module
from elasticutor.transport import messages as say
from elasticutor.transport.channels import ClusterKeys, Endpoint, Links
from elasticutor.transport.codec import Credit, Tuples, WireError, encode
from elasticutor.transport.mailbox import DRIVER, Mailbox
from elasticutor.transport.packets import NO_HASHES, Packet, born

PATIENCE_S = 20.0
KEYS = ClusterKeys.generate()


class Office:
    """Mailrooms of one test, and raw ways into them."""

    def __init__(self) -> None:
        self._links: list[Links] = []

    def links(self) -> Links:
        made = Links("n", KEYS, ipc_dir=None)
        self._links.append(made)
        return made

    def room(self) -> Mailbox:
        return Mailbox(self.links(), "room")

    def close(self) -> None:
        for links in self._links:
            links.close()


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office()
    yield made
    made.close()


def take(room: Mailbox, count: int) -> list[Any]:
    """The next so many messages."""
    until = time.monotonic() + PATIENCE_S
    got: list[Any] = []
    while len(got) < count:
        assert time.monotonic() < until, f"only {got} arrived"
        room.wait(0.1)
        got += room.receive()
    assert len(got) == count
    return got


def settle(room: Mailbox, dropped: int) -> None:
    """Receive until so many messages were dropped."""
    until = time.monotonic() + PATIENCE_S
    while room.dropped < dropped:
        assert time.monotonic() < until, f"only {room.dropped} were dropped"
        room.wait(0.1)
        assert not list(room.receive())


def test_messages_arrive_in_the_order_in_which_they_were_sent(office: Office) -> None:
    one, other = office.room(), office.room()
    one.know("other", other.endpoint)
    packet = Packet(b"x" * 100_000, 2, born(1.0, 2), NO_HASHES)
    one.send("other", Tuples(Peer("one"), Attempt(1), 7, packet))
    for total in range(20):
        one.send("other", Credit(Peer("one"), Attempt(1), total))
    one.send("other", say.Marker(Peer("one"), *(1, 1)))  # type: ignore[arg-type]
    first, *credits_, last = take(other, 22)
    assert bytes(first.packet.data) == b"x" * 100_000
    assert [credit.total for credit in credits_] == list(range(20))
    assert last == say.Marker(Peer("one"), *(1, 1))  # type: ignore[arg-type]
    assert other.dropped == 0


def test_what_is_for_many_is_written_once_and_keeps_its_place_among_the_others(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, takers = office.room(), [office.room() for _ in range(3)]
    written = []

    def noting(message: Any) -> Any:
        written.append(message)
        return encode(message)

    monkeypatch.setattr(module, "encode", noting)
    for number, taker in enumerate(takers):
        sender.know(str(number), taker.endpoint)
        sender.send(str(number), say.Beat())
    written.clear()
    sender.send_all(["0", "2"], say.Finish())
    assert written == [say.Finish()]
    for number in range(3):
        sender.send(str(number), say.EndNode())
    assert take(takers[0], 3) == take(takers[2], 3) == [say.Beat(), say.Finish(), say.EndNode()]
    assert take(takers[1], 2) == [say.Beat(), say.EndNode()]


def test_malformed_messages_are_counted_and_dropped_and_the_others_arrive(office: Office) -> None:
    room = office.room()
    raw = office.links().connect(room.endpoint)
    raw.send([b"garbage"])
    raw.send([bytes([0xE1, 1, 2]) + bytes(16) + b"peer"])
    raw.send([bytes([0xE1, 1, 0]), b"cos\nsystem\n."])
    raw.send([b"", b"", b""])
    raw.send([bytes([0xE1, 1, 2]) + bytes(16) + b"peer"])
    assert take(room, 2) == [Credit(Peer("peer"), Attempt(0), 0)] * 2
    assert room.dropped == 3


def test_what_is_dropped_is_logged_every_ten_seconds_at_most(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = office.room()
    raw = office.links().connect(room.endpoint)
    clock = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with caplog.at_level(logging.WARNING, logger=module.__name__):
        for seconds, logged in ((0.0, 1), (5.0, 1), (9.9, 1), (10.0, 2), (19.9, 2), (30.0, 3)):
            clock[0] = seconds
            raw.send([b"garbage"])
            settle(room, room.dropped + 1)
            assert len(caplog.records) == logged
    assert "dropped a message (6 so far)" in caplog.records[-1].getMessage()


def test_whoever_finds_a_message_out_of_place_drops_it_the_same_way(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    room = office.room()
    room.drop("Beat is not for a sink")
    room.drop("neither is this")
    assert room.dropped == 2
    assert [record.getMessage() for record in caplog.records] == [
        "dropped a message (1 so far): Beat is not for a sink"
    ]


def test_what_is_gathered_leaves_at_the_end_in_its_order(office: Office) -> None:
    here, there = office.room(), office.room()
    here.know("there", there.endpoint)
    with here.gathering():
        for total in range(200):  # more than are ever gathered
            here.send("there", Credit(Peer("a"), Attempt(1), total))
    here.send("there", Credit(Peer("a"), Attempt(1), 200))
    assert [message.total for message in take(there, 201)] == list(range(201))


def test_what_was_gathered_for_somebody_forgotten_still_leaves(office: Office) -> None:
    here, there = office.room(), office.room()
    here.know("there", there.endpoint)
    with here.gathering():
        here.send("there", Credit(Peer("a"), Attempt(1), 7))
        here.forget("there")
    assert [message.total for message in take(there, 1)] == [7]


def test_what_was_gathered_leaves_even_if_the_block_raises(office: Office) -> None:
    here, there = office.room(), office.room()
    here.know("there", there.endpoint)

    def fail() -> None:
        with here.gathering():
            here.send("there", Credit(Peer("a"), Attempt(1), 7))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [message.total for message in take(there, 1)] == [7]


def test_sending_to_somebody_unknown_is_refused_by_name(office: Office) -> None:
    room = office.room()
    room.know("a", room.endpoint)
    with pytest.raises(UnknownPeerError, match=r"be one of \['a'\]; got 'b'"):
        room.send("b", say.Beat())
    room.forget("a")
    with pytest.raises(UnknownPeerError):
        room.send("a", say.Beat())
    room.forget("a")  # nobody minds


def test_what_cannot_be_sent_is_refused_and_what_follows_arrives(office: Office) -> None:
    one, other = office.room(), office.room()
    one.know("other", other.endpoint)
    with pytest.raises(WireError):
        one.send("other", say.Said("r", Peer("a"), object()))
    one.send("other", say.Beat())
    assert take(other, 1) == [say.Beat()]


def test_a_new_address_replaces_the_old_one(office: Office) -> None:
    room, old, new = office.room(), office.room(), office.room()
    room.know("peer", old.endpoint)
    room.send("peer", say.Beat())
    room.know("peer", old.endpoint)  # nothing new: the same channel goes on
    room.send("peer", say.Finish())
    room.know_all({"peer": new.endpoint})
    room.send("peer", say.Close())
    assert take(old, 2) == [say.Beat(), say.Finish()]
    assert take(new, 1) == [say.Close()]


def test_to_forget_one_of_two_names_of_a_peer_leaves_the_other(office: Office) -> None:
    room, peer = office.room(), office.room()
    room.know_all({"reply": peer.endpoint, "node": peer.endpoint})
    room.send("reply", say.Beat())
    room.send("node", say.Finish())
    room.forget("reply")
    room.send("node", say.Close())
    assert take(peer, 3) == [say.Beat(), say.Finish(), say.Close()]


def connections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses to which connections are made from now on."""
    made: list[str] = []
    connect = Links._connected

    def noted(links: Links, address: str) -> Any:
        made.append(address)
        return connect(links, address)

    monkeypatch.setattr(Links, "_connected", noted)
    return made


def test_a_connection_that_rests_serves_the_next_name_of_its_address(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, peer = office.room(), office.room()
    made = connections(monkeypatch)
    for number in range(3):
        room.know(f"task {number}", peer.endpoint)
        room.send(f"task {number}", Credit(Peer("room"), Attempt(1), number))
        room.rest(f"task {number}")
        with pytest.raises(UnknownPeerError):
            room.send(f"task {number}", say.Beat())
    assert [message.total for message in take(peer, 3)] == [0, 1, 2]
    assert len(made) == 1


def test_a_name_that_rests_leaves_another_one_of_its_address(office: Office) -> None:
    room, peer = office.room(), office.room()
    room.know_all({"one": peer.endpoint, "other": peer.endpoint})
    room.send("one", say.Beat())
    room.send("other", say.Finish())
    room.rest("one")
    room.send("other", say.Close())
    room.forget("other")
    assert take(peer, 3) == [say.Beat(), say.Finish(), say.Close()]
    room.know("one", peer.endpoint)
    room.send("one", say.Beat())
    assert take(peer, 1) == [say.Beat()]


def test_connections_rest_for_a_while_and_not_too_many_of_them(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, one, other = office.room(), office.room(), office.room()
    made = connections(monkeypatch)
    monkeypatch.setattr(module, "_MOST_RESTING", 1)
    for peer in (one, other, one):
        room.know("task", peer.endpoint)
        room.send("task", say.Beat())
        room.rest("task")
    assert len(made) == 3  # the first one was closed for the second one
    monkeypatch.setattr(module, "_REST_S", 0.0)
    room.know("task", one.endpoint)
    room.send("task", say.Beat())
    room.rest("task")
    room.know("task", one.endpoint)
    room.send("task", say.Beat())
    assert len(made) == 4
    assert take(one, 4) == [say.Beat()] * 4
    assert take(other, 1) == [say.Beat()]


def test_a_watched_file_wakes_whoever_waits(office: Office) -> None:
    room = office.room()
    reading, writing = os.pipe()
    try:
        room.watch(reading)
        assert not room.wait(0.0)
        os.write(writing, b"!")
        assert room.wait(PATIENCE_S)
        assert not list(room.receive())
        room.unwatch(reading)
        assert not room.wait(0.0)
    finally:
        os.close(reading)
        os.close(writing)


def test_nobody_waits_for_less_than_no_time(office: Office) -> None:
    assert not office.room().wait(-1.0)


def test_no_more_than_the_limit_is_received_at_once_and_the_rest_is_kept(office: Office) -> None:
    room = office.room()
    room.know("self", room.endpoint)
    for total in range(10):
        room.send("self", Credit(Peer("self"), Attempt(1), total))
    assert room.wait(PATIENCE_S)
    until = time.monotonic() + PATIENCE_S
    totals: list[int] = []
    while len(totals) < 10:
        assert time.monotonic() < until
        some = list(room.receive(limit=3))
        assert len(some) <= 3
        totals += [credit.total for credit in some]
        room.wait(0.05)
    assert totals == list(range(10))


def test_a_process_at_a_site_knows_the_driver(office: Office) -> None:
    driver = office.room()
    site = Site("run", NodeId("n0"), "", "127.0.0.1", KEYS, driver.endpoint)
    room = Mailbox.at(site, "counts.0")
    try:
        assert isinstance(room.endpoint, Endpoint)
        room.send(DRIVER, say.Alive(NodeId("n0")))
        assert take(driver, 1) == [say.Alive(NodeId("n0"))]
    finally:
        room.close()


def test_two_runs_of_one_topology_have_inboxes_of_their_own_on_a_node(office: Office) -> None:
    driver = office.room()
    with tempfile.TemporaryDirectory() as sockets:  # not tmp_path: paths of sockets are short
        sites = [
            Site(run, NodeId("n0"), sockets, "127.0.0.1", KEYS, driver.endpoint)
            for run in ("first", "second")
        ]
        rooms = [Mailbox.at(site, "counts.0") for site in sites]
        try:
            rooms[0].know("twin", rooms[1].endpoint)
            rooms[0].send("twin", say.Beat())
            assert take(rooms[1], 1) == [say.Beat()]
        finally:
            for room in rooms:
                room.close()


def test_last_words_leave_within_the_time_given(office: Office) -> None:
    one, other = office.room(), office.room()
    one.know("other", other.endpoint)
    one.send("other", say.Failed("r", "a", b"", "x" * 200_000))
    one.close(linger_s=PATIENCE_S)
    assert len(take(other, 1)[0].text) == 200_000
