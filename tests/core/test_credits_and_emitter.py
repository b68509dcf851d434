import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticutor.core.executor.credits import InputCredits
from elasticutor.core.executor.emitter import Emitter
from elasticutor.core.protocol.events import Output
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.core.protocol.instructions import Emit, EmitMarker, GrantCredit
from elasticutor.errors import CreditExceededError, OutOfOrderError, UnknownPeerError

U, V = Peer("u"), Peer("v")
NOW = Attempt(3)


def outputs_for(*peers: Peer, limit: int = 1000, returned: bool = False) -> Emitter:
    return Emitter(peers, first=100, limit=limit, returned=returned)


def output(destination: Peer, name: str, size: int = 40) -> Output:
    return Output(destination, name, size)


def sent(outputs: Emitter, destination: Peer) -> list[str | int]:
    """What is sent: the names of outputs, the numbers of epochs that end."""
    items: list[str | int] = []
    for message in outputs.send(destination, NOW):
        assert (message.destination, message.attempt) == (destination, NOW)
        items.append(message.epoch if isinstance(message, EmitMarker) else message.batch)
    return items


# What upstreams may send


def test_an_upstream_may_send_the_first_credit_unasked() -> None:
    intake = InputCredits([U], first=100)
    intake.require_credit(U)
    intake.spend(U, 99)
    intake.require_credit(U)
    intake.spend(U, 1)
    with pytest.raises(CreditExceededError, match="less than the 100 bytes granted"):
        intake.require_credit(U)


def test_one_message_may_overdraw_whatever_its_size() -> None:
    intake = InputCredits([U], first=100)
    intake.spend(U, 10**9)
    assert intake.inside(U) == 10**9
    with pytest.raises(CreditExceededError, match="got 1000000000"):
        intake.require_credit(U)


def test_credit_is_counted_from_the_start_of_the_attempt() -> None:
    intake = InputCredits([U], first=100)
    for round_ in range(1, 5):
        intake.spend(U, 100)
        grant = intake.finish(U, 100, NOW, limit=100)
        assert grant == GrantCredit(U, NOW, 100 * round_ + 100)


def test_a_grant_is_made_only_when_it_is_worth_a_message() -> None:
    intake = InputCredits([U], first=100)
    intake.spend(U, 100)
    assert intake.finish(U, 24, NOW, limit=100) is None
    assert intake.finish(U, 1, NOW, limit=100) == GrantCredit(U, NOW, 125)
    assert intake.finish(U, 0, NOW, limit=100) is None


def test_a_smaller_limit_takes_no_credit_back() -> None:
    intake = InputCredits([U], first=100)
    intake.spend(U, 100)
    assert intake.finish(U, 60, NOW, limit=10) is None
    assert intake.finish(U, 40, NOW, limit=10) == GrantCredit(U, NOW, 110)


def test_upstreams_have_credits_of_their_own() -> None:
    intake = InputCredits([U, V], first=100)
    intake.spend(U, 100)
    intake.require_credit(V)
    assert (intake.inside(U), intake.inside(V)) == (100, 0)
    with pytest.raises(CreditExceededError):
        intake.require_credit(U)


def test_strangers_have_no_credit() -> None:
    intake = InputCredits([U], first=100)
    for refuse in (intake.require, intake.require_credit):
        with pytest.raises(UnknownPeerError, match=r"be one of \['u'\]; got 'v'"):
            refuse(V)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300), st.integers(1, 200)), max_size=40)
)
def test_what_is_inside_is_bounded_by_the_credit_and_one_message(
    history: list[tuple[int, int, int]],
) -> None:
    """An upstream that sends whenever it may, and an executor that works in bites."""
    intake = InputCredits([U], first=100)
    granted, most_limit = 100, 100
    for size, bite, limit in history:
        try:
            intake.require_credit(U)
        except CreditExceededError:
            pass
        else:
            intake.spend(U, size)
        assert intake.inside(U) <= most_limit + 300
        most_limit = max(most_limit, limit)
        grant = intake.finish(U, min(bite, intake.inside(U)), NOW, limit)
        if grant is not None:
            assert grant.total > granted
            granted = grant.total


# What destinations take


def test_outputs_are_sent_in_order_as_far_as_the_credit_goes() -> None:
    outputs = outputs_for(U)
    for name in "abcd":
        outputs.add(output(U, name))
    assert outputs.send(U, NOW) == [Emit(U, NOW, name, 40) for name in "abc"]
    assert sent(outputs, U) == []  # c has overdrawn: 120 of 100
    outputs.credit(U, 120)
    assert sent(outputs, U) == []
    outputs.credit(U, 121)
    assert sent(outputs, U) == ["d"]
    assert outputs.empty


def test_one_output_may_overdraw_whatever_its_size() -> None:
    outputs = outputs_for(U)
    outputs.add(output(U, "huge", 10**9))
    outputs.add(output(U, "next", 0))
    assert sent(outputs, U) == ["huge"]
    outputs.credit(U, 10**9)
    assert sent(outputs, U) == []
    outputs.credit(U, 10**9 + 1)
    assert sent(outputs, U) == ["next"]


def test_a_marker_goes_behind_the_outputs_of_its_epoch_to_everybody() -> None:
    outputs = outputs_for(U, V)
    outputs.add(output(U, "a", 100))
    outputs.add(output(U, "b"))
    outputs.end_epoch(Epoch(1))
    outputs.add(output(U, "c"))
    assert sent(outputs, V) == [1]
    assert sent(outputs, U) == ["a"]
    assert not outputs.empty
    outputs.credit(U, 1000)
    assert sent(outputs, U) == ["b", 1, "c"]


def test_a_marker_needs_no_credit() -> None:
    outputs = outputs_for(U)
    outputs.add(output(U, "a", 500))
    outputs.end_epoch(Epoch(7))
    assert sent(outputs, U) == ["a", 7]
    outputs.end_epoch(Epoch(8))
    assert sent(outputs, U) == [8]
    assert outputs.empty


@given(
    st.lists(
        st.tuples(st.sampled_from([U, V]), st.integers(0, 80))
        | st.tuples(st.none(), st.integers(1, 200)),
        max_size=40,
    )
)
def test_every_output_is_sent_once_in_order_and_within_credit(
    history: list[tuple[Peer | None, int]],
) -> None:
    outputs = outputs_for(U, V)
    added: dict[Peer, list[int]] = {U: [], V: []}
    got: dict[Peer, list[int]] = {U: [], V: []}
    total = dict.fromkeys((U, V), 0)
    waiting = dict.fromkeys((U, V), 0)
    granted = 100

    def take(peer: Peer) -> None:
        for message in outputs.send(peer, NOW):
            assert isinstance(message, Emit)
            assert total[peer] < granted
            total[peer] += message.size
            waiting[peer] -= message.size
            got[peer].append(message.batch)

    for number, (destination, amount) in enumerate(history):
        if destination is None:
            granted += amount
            for peer in (U, V):
                outputs.credit(peer, granted)
                take(peer)
        else:
            outputs.add(Output(destination, number, amount))
            added[destination].append(number)
            waiting[destination] += amount
            take(destination)
        assert outputs.buffered(U) == sum(waiting.values())
    granted = 10**9
    for peer in (U, V):
        outputs.credit(peer, granted)
        take(peer)
    assert got == added
    assert outputs.empty


def test_forwarded_outputs_share_one_limit() -> None:
    outputs = outputs_for(U, V, limit=100)
    outputs.add(output(U, "a", 60))
    outputs.add(output(V, "b", 40))
    assert not outputs.blocked(U)
    outputs.add(output(V, "c", 1))
    assert all(outputs.blocked(peer) and outputs.buffered(peer) == 101 for peer in (U, V))


def test_returned_outputs_wait_on_the_account_of_their_own_upstream() -> None:
    outputs = outputs_for(U, V, limit=100, returned=True)
    outputs.add(output(U, "a", 101))
    outputs.add(output(V, "b", 100))
    assert (outputs.blocked(U), outputs.blocked(V)) == (True, False)
    assert (outputs.buffered(U), outputs.buffered(V)) == (101, 100)


@pytest.mark.parametrize("returned", [False, True])
def test_who_was_blocked_is_relieved_only_well_below_the_limit(returned: bool) -> None:
    outputs = outputs_for(U, limit=100, returned=returned)
    outputs.credit(U, 100)
    outputs.add(output(U, "sent", 100))
    assert sent(outputs, U) == ["sent"]
    for name, size in (("a", 30), ("b", 25), ("c", 50)):
        outputs.add(output(U, name, size))
    assert (outputs.blocked(U), outputs.relieved(U)) == (True, False)
    outputs.credit(U, 101)
    assert sent(outputs, U) == ["a"]
    assert (outputs.blocked(U), outputs.relieved(U)) == (False, False)
    outputs.credit(U, 131)
    assert sent(outputs, U) == ["b"]
    assert (outputs.blocked(U), outputs.relieved(U)) == (False, True)


def test_credit_does_not_fall() -> None:
    outputs = outputs_for(U)
    outputs.require_rising(U, 100)
    outputs.credit(U, 200)
    with pytest.raises(OutOfOrderError, match="credit of 'u' must be at least 200; got 199"):
        outputs.require_rising(U, 199)


def test_outputs_for_strangers_are_refused() -> None:
    outputs = outputs_for(U)
    outputs.require(U)
    with pytest.raises(UnknownPeerError, match=r"be one of \['u'\]; got 'v'"):
        outputs.require(V)
    assert outputs.destinations == [U]
