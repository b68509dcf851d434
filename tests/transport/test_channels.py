"""Channels between processes: order, who is let in, what a stranger can do, and what is left."""

from __future__ import annotations

import json
import logging
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from elasticutor.errors import BadValueError, ProtocolError
from elasticutor.transport.channels import (
    LARGE_BYTES,
    ClusterKeys,
    Endpoint,
    Inbox,
    Links,
    Outbox,
    advertised_host,
)
from elasticutor.transport.streams import PASSED_BYTES, packed

PATIENCE_S = 20.0
KEYS = ClusterKeys.generate()
LINKS: list[Links] = []
"""Those of the test that runs."""

SENDER = """
import json, sys
from contextlib import closing
from elasticutor.transport.channels import ClusterKeys, Endpoint, Links

told = json.loads(sys.stdin.readline())
keys = ClusterKeys(*(half.encode() for half in told["keys"]))
with closing(Links(told["node"], keys, ipc_dir=told["ipc_dir"])) as links:
    outbox = links.connect(Endpoint(**told["to"]))
    for number in range(told["messages"]):
        outbox.send([b"%d" % number, bytes([number % 251]) * (number % 7), b"x" * told["size"]])
    links.close(linger_s=20.0)
"""

FORKED = """
import os, sys, warnings
warnings.simplefilter("ignore")
from elasticutor.errors import ProtocolError
from elasticutor.transport.channels import ClusterKeys, Links

links = Links("n", ClusterKeys.generate(), ipc_dir=None)
inbox = links.inbox("a")
outbox = links.connect(inbox.endpoint)
uses = [
    lambda: links.inbox("b"), lambda: links.connect(inbox.endpoint),
    lambda: outbox.send([b"x"]), inbox.look,
]
child = os.fork()
if not child:
    refused = 0
    for use in uses:
        try:
            use()
        except ProtocolError:
            refused += 1
    outbox.close(); inbox.close(); links.close()
    os._exit(refused)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
outbox.send([b"from the parent"])
links.wait(20.0)
inbox.look()
print(bytes(inbox.next(0)[0]).decode())
links.close()
"""


@pytest.fixture
def ipc_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("s")
    made.chmod(0o700)
    return str(made)


BEFORE: set[threading.Thread] = set()
"""Doorkeepers of clusters that other tests share, and that outlive this one."""


@pytest.fixture(autouse=True)
def _remember_others() -> None:
    BEFORE.clear()
    BEFORE.update(doorkeepers())


def doorkeepers() -> list[threading.Thread]:
    threads = [t for t in threading.enumerate() if t.name == "doorkeeper"]
    return [thread for thread in threads if thread not in BEFORE]


@pytest.fixture
def make(ipc_dir: str) -> Iterator[Callable[..., Links]]:
    """Makes links on one node, and checks after the test that nothing of them is left."""
    made = LINKS
    made.clear()

    def links(node: str = "n1", keys: ClusterKeys = KEYS, host: str = "127.0.0.1") -> Links:
        made.append(Links(node, keys, ipc_dir=ipc_dir, host=host))
        return made[-1]

    yield links
    for one in made:
        one.close()
    made.clear()
    assert not files(ipc_dir)
    assert not doorkeepers()


def files(directory: str) -> list[Path]:
    return list(Path(directory).iterdir())


def plain(frame: bytes | memoryview) -> bytes:
    return bytes(frame)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def received(inbox: Inbox, limit: int = 256) -> list[list[Any]]:
    """What has arrived by now, from near and far in turn."""
    inbox.look()
    taken = (inbox.next(turn) for turn in range(limit))
    return [frames for frames in taken if frames is not None]


def take(inbox: Inbox, count: int) -> list[list[bytes]]:
    """The next `count` messages, as plain bytes."""
    taken: list[list[bytes]] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(taken) < count:
        assert time.monotonic() < deadline, f"nothing came after {len(taken)} messages"
        for links in LINKS:
            links.wait(0.0)  # senders and receivers are one thread here
        inbox._links.wait(0.01)
        taken += [[plain(frame) for frame in message] for message in received(inbox)]
    return taken


def by_tcp(inbox: Inbox) -> Endpoint:
    return Endpoint("elsewhere", "", inbox.endpoint.tcp)


def address_of(inbox: Inbox) -> tuple[str, int]:
    host, _, port = inbox.endpoint.tcp.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(script: str, told: object = None) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(told) + "\n")
    process.stdin.flush()
    return process


@pytest.mark.parametrize("node", ["n1", "n2"], ids=["ipc", "tcp"])
def test_all_that_another_process_sends_arrives_whole_and_in_order(
    make: Callable[..., Links], ipc_dir: str, node: str
) -> None:
    inbox = make().inbox("here")
    process = run(
        SENDER,
        {
            "node": node,
            "ipc_dir": ipc_dir,
            "keys": [KEYS.public.decode(), KEYS.secret.decode()],
            "to": asdict(inbox.endpoint),
            "messages": 300,
            "size": 100_000,
        },
    )
    try:
        for number, frames in enumerate(take(inbox, 300)):
            head = b"%d" % number
            assert frames == [head, bytes([number % 251]) * (number % 7), b"x" * 100_000]
    finally:
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert received(inbox) == []
    assert inbox.torn == 0


def test_peers_of_one_node_meet_by_file_and_others_by_tcp(
    make: Callable[..., Links], ipc_dir: str
) -> None:
    inbox = make().inbox("here")
    assert inbox.endpoint.ipc.startswith(f"ipc://{ipc_dir}/")
    only_file = Endpoint("n1", inbox.endpoint.ipc, "")
    make().connect(only_file).send([b"by file"])
    assert take(inbox, 1) == [[b"by file"]]
    make("n2").connect(inbox.endpoint).send([b"by tcp"])
    assert take(inbox, 1) == [[b"by tcp"]]
    with (
        closing(Links("n1", KEYS, ipc_dir=None)) as driver,
        pytest.raises(BadValueError, match="TCP"),
    ):
        driver.connect(only_file)


@pytest.mark.parametrize("way", ["ipc", "tcp"])
def test_messages_sent_before_the_peer_has_bound_arrive_in_order_once_it_binds(
    make: Callable[..., Links], way: str
) -> None:
    port = free_port()
    receiver = make()
    early = receiver.inbox("late", tcp=False)
    file = early.endpoint.ipc
    early.close()
    to = Endpoint("n1", file, "") if way == "ipc" else Endpoint("n2", "", f"tcp://127.0.0.1:{port}")
    outbox = make().connect(to)
    for number in range(50):
        outbox.send([b"%d" % number])
    inbox = receiver.inbox("late", port=port)
    assert take(inbox, 50) == [[b"%d" % number] for number in range(50)]


@pytest.mark.parametrize("size", [LARGE_BYTES, PASSED_BYTES, 3 * PASSED_BYTES + 5])
@pytest.mark.parametrize("way", ["ipc", "tcp"])
def test_large_frames_arrive_as_they_were_sent(
    make: Callable[..., Links], way: str, size: int
) -> None:
    inbox = make().inbox("here")
    large = os.urandom(size)
    outbox = make().connect(inbox.endpoint if way == "ipc" else by_tcp(inbox))
    outbox.send_all([[b"before"], [b"head", bytearray(b"small"), memoryview(large)], [b"after"]])
    assert take(inbox, 3) == [[b"before"], [b"head", b"small", large], [b"after"]]


def test_a_receiver_that_does_not_read_holds_up_no_sender_and_loses_nothing(
    make: Callable[..., Links],
) -> None:
    inbox = make().inbox("here")
    sender = make()
    outbox = sender.connect(inbox.endpoint)
    sent = [
        [b"%d" % number, os.urandom(50_000 if number % 5 else 300_000)] for number in range(200)
    ]
    for message in sent:  # far more than the system's buffers hold
        outbox.send(message)
    assert take(inbox, 200) == sent


def test_what_waits_when_an_outbox_is_closed_still_leaves_in_the_background(
    make: Callable[..., Links],
) -> None:
    inbox = make().inbox("here")
    sender = make()
    outbox = sender.connect(inbox.endpoint)
    sent = [[b"%d" % number, os.urandom(50_000)] for number in range(100)]
    for message in sent:
        outbox.send(message)
    outbox.close(linger_s=PATIENCE_S)
    assert take(inbox, 100) == sent


def test_frames_of_one_machine_begin_at_multiples_of_eight(make: Callable[..., Links]) -> None:
    inbox = make().inbox("here")
    outbox = make().connect(inbox.endpoint)
    outbox.send([b"abc", b"12345678", b"x", bytes(PASSED_BYTES)])
    outbox.send([b"abc", b"12345678", b"x"])
    wait_for(lambda: inbox._links.wait(0.01) and inbox.holds_messages)
    for message in received(inbox):
        assert [np.frombuffer(f, np.uint8).ctypes.data % 8 for f in message] == [0] * len(message)


@pytest.mark.parametrize(
    "noise",
    [
        b"\xff" * 64,
        struct.pack("<II", 8, 0) + bytes(8),
        struct.pack("<IIII", 8, 1, 100, 0),
        struct.pack("<II", 16, 1 | 1 << 31),
    ],
    ids=["bytes", "no-frames", "lengths", "no-file"],
)
def test_noise_at_the_socket_file_cuts_its_sender_off_while_others_go_on(
    make: Callable[..., Links], noise: bytes
) -> None:
    inbox = make().inbox("here")
    outbox = make().connect(inbox.endpoint)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(inbox.endpoint.ipc.removeprefix("ipc://"))
        stranger.sendall(noise)
        wait_for(lambda: inbox._links.wait(0.01) and inbox.torn == 1)
        assert stranger.recv(1) == b""
    outbox.send([b"unharmed"])
    assert take(inbox, 1) == [[b"unharmed"]]


def test_half_a_message_of_a_dead_sender_is_not_received(make: Callable[..., Links]) -> None:
    inbox = make().inbox("here")
    with socket.socket(socket.AF_UNIX) as dying:
        dying.connect(inbox.endpoint.ipc.removeprefix("ipc://"))
        whole = b"".join(packed([b"whole"])[0])
        dying.sendall(whole + whole[:-3])
        assert take(inbox, 1) == [[b"whole"]]
    inbox._links.wait(0.1)
    assert received(inbox) == []
    assert inbox.torn == 0


def test_a_process_on_no_node_meets_all_of_its_machine_at_their_files(
    make: Callable[..., Links],
) -> None:
    on_node, on_none = make("n1"), make("")
    here, there = on_node.inbox("here", tcp=False), on_none.inbox("there", tcp=False)
    on_none.connect(here.endpoint).send([b"to a node"])
    on_node.connect(there.endpoint).send([b"to none"])
    assert take(here, 1) == [[b"to a node"]]
    assert take(there, 1) == [[b"to none"]]


def test_a_process_on_no_node_meets_those_of_other_machines_by_tcp(
    make: Callable[..., Links],
) -> None:
    inbox = make("n1").inbox("here")
    elsewhere = Endpoint("n1", "ipc:///no/such/directory/socket", inbox.endpoint.tcp)
    make("").connect(elsewhere).send([b"by tcp"])
    assert take(inbox, 1) == [[b"by tcp"]]


def test_channels_of_one_machine_need_no_thread_and_no_context(
    make: Callable[..., Links],
) -> None:
    threads = threading.active_count()
    one, other = make(), make()
    inbox = one.inbox("here", tcp=False)
    other.connect(inbox.endpoint).send([b"x"])
    assert take(inbox, 1) == [[b"x"]]
    assert threading.active_count() == threads
    assert one._made_context is None
    assert other._made_context is None


def test_one_call_takes_from_file_and_tcp_in_turn_and_no_more_than_its_limit(
    make: Callable[..., Links],
) -> None:
    inbox = make().inbox("here")
    near, far = make().connect(inbox.endpoint), make("n2").connect(inbox.endpoint)
    for _ in range(20):
        near.send([b"near"])
        far.send([b"far"])
    wait_for(lambda: inbox._links.wait(0.01) and bool(inbox._near and inbox._pull_ready))
    first = [plain(frames[0]) for frames in received(inbox, limit=2)]
    assert sorted(first) == [b"far", b"near"]
    rest = take(inbox, 38)
    assert [rest.count([whence]) for whence in (b"near", b"far")] == [19, 19]


def without_keys(_: zmq.Socket[bytes]) -> None:
    pass


def with_other_keys(outbox: zmq.Socket[bytes]) -> None:
    ClusterKeys.generate().visit(outbox)


def with_the_public_key_only(outbox: zmq.Socket[bytes]) -> None:
    ClusterKeys.generate().visit(outbox)
    outbox.curve_serverkey = KEYS.public


@pytest.mark.parametrize("dress", [without_keys, with_other_keys, with_the_public_key_only])
def test_a_stranger_gets_nothing_through_and_is_counted(
    make: Callable[..., Links],
    dress: Callable[[zmq.Socket[bytes]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    links = make()
    inbox = links.inbox("here")
    with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
        stranger.linger = 0
        stranger.setsockopt(zmq.RECONNECT_IVL, 10)
        dress(stranger)
        stranger.connect(inbox.endpoint.tcp)
        stranger.send_multipart([struct.pack("<8sQII", b"12345678", 1, 1, 2), b"let me in"])
        wait_for(lambda: links.refused >= 1)
        make("n2").connect(inbox.endpoint).send([b"a friend"])
        assert take(inbox, 1) == [[b"a friend"]]
    assert received(inbox) == []
    wait_for(lambda: bool(caplog.records))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    if dress is with_the_public_key_only:  # the others may be gone before anybody can look
        assert "127.0.0.1" in caplog.text


def test_a_stranger_who_tries_again_and_again_is_counted_each_time_and_logged_once(
    make: Callable[..., Links], caplog: pytest.LogCaptureFixture
) -> None:
    links = make()
    inbox = links.inbox("here")
    make("n2", ClusterKeys.generate()).connect(inbox.endpoint).send([b"hello?"])
    wait_for(lambda: links.refused >= 3 and bool(caplog.records))
    assert len(caplog.records) == 1


CURVE_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)


@pytest.mark.parametrize(
    "noise",
    [
        bytes(range(256)) * 40,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" + bytes(8) + b"\x7f",
        CURVE_GREETING + b"\x06" + (1 << 62).to_bytes(8, "big"),
        CURVE_GREETING + b"\x06" + (255 << 20).to_bytes(8, "big") + b"x" * 1000,
        CURVE_GREETING + b"\x04\x05\x05HELL",
        b"\xff" + bytes(7) + b"\x01\x7f\x01\x08" + b"\x00\x05hello",
        b"\x01\x00\x06\x00hello",
    ],
    ids=[
        "bytes", "http", "half-greeting", "absurd-length", "large-length", "bad-hello", "zmtp2",
        "zmtp1",
    ],
)  # fmt: skip
def test_noise_on_the_port_does_no_harm(make: Callable[..., Links], noise: bytes) -> None:
    inbox = make().inbox("here")
    outbox = make("n2").connect(inbox.endpoint)
    outbox.send([b"before"])
    assert take(inbox, 1) == [[b"before"]]
    with socket.create_connection(address_of(inbox)) as stranger:
        stranger.sendall(noise)
        outbox.send([b"during"])
        assert take(inbox, 1) == [[b"during"]]
    outbox.send([b"after"])
    make("n3").connect(inbox.endpoint).send([b"after"])
    assert take(inbox, 2) == [[b"after"], [b"after"]]
    assert inbox.torn == 0


@pytest.mark.parametrize("way", ["ipc", "tcp"])
def test_an_oversized_frame_cuts_its_sender_off_while_others_go_on(
    make: Callable[..., Links], way: str
) -> None:
    inbox = make().inbox("here", max_bytes=10_000)
    to = inbox.endpoint if way == "ipc" else by_tcp(inbox)
    greedy, modest = make().connect(to), make().connect(to)
    greedy.send([b"fits"])
    assert take(inbox, 1) == [[b"fits"]]
    greedy.send([b"x" * 20_000])
    modest.send([b"modest"])
    assert take(inbox, 1) == [[b"modest"]]

    def cut_off() -> bool:
        greedy.send([b"what follows"])
        assert received(inbox) == []
        return inbox.torn == 1

    wait_for(cut_off)  # by TCP it reconnects, but what follows is not taken after a gap
    modest.send([b"still here"])
    assert take(inbox, 1) == [[b"still here"]]


def test_a_new_inbox_takes_nothing_that_was_meant_for_its_predecessor(
    make: Callable[..., Links],
) -> None:
    owner, peer = make(), make()
    inbox = owner.inbox("here")
    to = Endpoint("n1", inbox.endpoint.ipc, "")
    outbox = peer.connect(to)
    outbox.send([b"1"])
    assert take(inbox, 1) == [[b"1"]]
    inbox.close()
    successor = owner.inbox("here")

    for _ in range(3):
        outbox.send([b"late"])
        successor._links.wait(0.01)
        assert received(successor) == []
    outbox.close()
    peer.connect(to).send([b"afresh"])
    assert take(successor, 1) == [[b"afresh"]]


def test_a_message_that_cannot_be_sent_whole_is_not_sent_in_part(
    make: Callable[..., Links],
) -> None:
    inbox = make().inbox("here")
    outbox = make().connect(inbox.endpoint)
    for bad in ([b"head", "text"], [b"head", memoryview(b"abcdef")[::2]], []):
        with pytest.raises(BadValueError):
            outbox.send(bad)
    outbox.send([b"good"])
    assert take(inbox, 1) == [[b"good"]]


def test_an_outbox_that_found_something_else_than_a_peer_says_so(
    make: Callable[..., Links],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        outbox = make().connect(Endpoint("n2", "", f"tcp://127.0.0.1:{port}"))
        outbox.send([b"x"])
        connection, _ = other.accept()
        with connection:
            connection.sendall(CURVE_GREETING.replace(b"CURVE", b"PLAIN") + b"\x04\x05\x05HELL")

            def refused() -> bool:
                try:
                    outbox.send([b"x"])
                except ProtocolError as error:
                    return "let in by its peer" in str(error)
                return False

            wait_for(refused)


def test_one_peer_has_one_outbox_until_it_is_closed(make: Callable[..., Links]) -> None:
    links = make()
    to = links.inbox("here").endpoint
    first = links.connect(to)
    assert links.connect(to) is first
    first.close()
    first.close()
    assert links.connect(to) is not first
    with pytest.raises(ProtocolError, match="closed"):
        first.send([b"x"])


def test_a_name_belongs_to_one_live_inbox_and_a_dead_ones_file_is_no_obstacle(
    make: Callable[..., Links], ipc_dir: str
) -> None:
    links = make()
    inbox = links.inbox("here")
    for other in (links, make()):
        with pytest.raises(BadValueError, match="'here'"):
            other.inbox("here")
    make().connect(inbox.endpoint).send([b"unharmed"])
    assert take(inbox, 1) == [[b"unharmed"]]
    path = inbox.endpoint.ipc.removeprefix("ipc://")
    inbox.close()
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(path)
    again = links.inbox("here")
    make().connect(again.endpoint).send([b"anew"])
    assert take(again, 1) == [[b"anew"]]


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701, 0o500])
def test_a_directory_that_is_not_private_is_refused(ipc_dir: str, mode: int) -> None:
    Path(ipc_dir).chmod(mode)
    with pytest.raises(BadValueError, match="0700"):
        Links("n1", KEYS, ipc_dir=ipc_dir)


def test_no_directory_and_a_link_to_one_are_refused(ipc_dir: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ipc_dir)
    (tmp_path / "file").touch(mode=0o700)
    for name in ("link", "file", "missing"):
        with pytest.raises(BadValueError, match="0700"):
            Links("n1", KEYS, ipc_dir=str(tmp_path / name))


def test_nothing_is_sent_through_a_directory_of_others(
    make: Callable[..., Links], tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(BadValueError, match="0700"):
        make().connect(Endpoint("n1", f"ipc://{tmp_path}/trap", ""))


def test_a_path_too_long_for_a_socket_is_refused_by_name(ipc_dir: str) -> None:
    deep = Path(ipc_dir) / ("d" * 100)
    deep.mkdir(mode=0o700)
    with (
        closing(Links("n1", KEYS, ipc_dir=str(deep))) as links,
        pytest.raises(BadValueError, match=r"at most 10\d bytes"),
    ):
        links.inbox("here")


def test_closing_twice_is_once_and_leaves_no_file_and_no_thread(ipc_dir: str) -> None:
    links = Links("n1", KEYS, ipc_dir=ipc_dir)
    inbox = links.inbox("here")
    links.connect(inbox.endpoint).send([b"x"])
    assert len(files(ipc_dir)) == 1
    assert doorkeepers()
    inbox.close()
    assert not files(ipc_dir)
    links.close()
    links.close()
    inbox.close()
    assert not doorkeepers()
    for use in (lambda: links.inbox("b"), inbox.look):
        with pytest.raises(ProtocolError):
            use()


def test_the_doorkeeper_comes_with_the_first_tcp_port_only(make: Callable[..., Links]) -> None:
    links = make()
    links.inbox("near", tcp=False)
    assert not doorkeepers()
    links.inbox("far")
    links.inbox("farther")
    assert len(doorkeepers()) == 1


def test_a_port_that_is_taken_is_an_error_that_leaves_nothing_behind(
    make: Callable[..., Links], ipc_dir: str
) -> None:
    links = make()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BadValueError, match=str(port)):
            links.inbox("here", port=port)
    assert not files(ipc_dir)
    assert links.inbox("here").endpoint.tcp


def test_idle_channels_use_next_to_no_processor_time(make: Callable[..., Links]) -> None:
    inbox = make().inbox("here")
    outboxes: list[Outbox] = [make().connect(to) for to in (inbox.endpoint, by_tcp(inbox))]
    for outbox in outboxes:
        outbox.send([b"x"])
    take(inbox, 2)
    used = time.process_time()
    threading.Event().wait(1.0)  # the idle time itself: nothing is waited for
    assert time.process_time() - used < 0.2


def test_links_are_refused_in_a_forked_process_and_go_on_in_the_parent() -> None:
    process = run(FORKED)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert said.split("\n")[:2] == ["4", "from the parent"]


def test_a_host_that_is_not_this_machines_is_advertised_all_the_same(
    make: Callable[..., Links],
) -> None:
    inbox = make(host="192.0.2.1").inbox("here")
    host, port = address_of(inbox)
    assert host == "192.0.2.1"
    make().connect(Endpoint("n2", "", f"tcp://127.0.0.1:{port}")).send([b"by translation"])
    assert take(inbox, 1) == [[b"by translation"]]


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_ipv6_addresses_are_in_brackets(make: Callable[..., Links]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    inbox = make(host="::1").inbox("here")
    assert inbox.endpoint.tcp.startswith("tcp://[::1]:")
    make("n2").connect(inbox.endpoint).send([b"six"])
    assert take(inbox, 1) == [[b"six"]]


def test_keys_must_be_a_pair_survive_pickling_and_do_not_show_their_secret() -> None:
    assert pickle.loads(pickle.dumps(KEYS)) == KEYS  # noqa: S301
    assert KEYS.secret.decode() not in f"{KEYS!r} {KEYS}"
    for public, secret in (
        (ClusterKeys.generate().public, KEYS.secret),
        (KEYS.public, b"short"),
    ):
        with pytest.raises(BadValueError) as refused:
            ClusterKeys(public, secret)
        assert KEYS.secret.decode() not in str(refused.value)


def test_the_way_to_a_loopback_address_is_loopback() -> None:
    assert advertised_host(("127.0.0.1", 7077)) == "127.0.0.1"
    assert advertised_host(("localhost", 0)) == "127.0.0.1"
