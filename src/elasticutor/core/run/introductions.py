"""Which participants of a run have yet to learn where which others are.

A participant needs the addresses of its upstreams (for credits) and of its destinations, and of no
others. All processes of a source, an operator or a sink need the same ones, so that one message,
written once, does for all of them. One that was replaced has a new address: those that need it
learn that address alone, and the newcomer learns all that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from elasticutor.core.message import Message
from elasticutor.core.protocol.ids import Peer


class Introduction(Message):
    """Tell some participants where some others are."""

    receivers: tuple[Peer, ...]
    whom: tuple[Peer, ...]


class Introductions:
    """Remembers who has learnt of whom.

    Args:
        groups: The members of each group, and all participants whose addresses they need.
    """

    def __init__(self, groups: Iterable[tuple[Iterable[str], Iterable[str]]]) -> None:
        self._groups = tuple(
            (tuple(map(Peer, members)), tuple(map(Peer, needed))) for members, needed in groups
        )
        self._arrivals = 0
        self._came_at: dict[str, int] = {}
        """When each that is there came, counted in arrivals."""
        self._told_at: dict[str, int] = {}
        """Up to which arrival each that is there knows whom it needs."""

    def came(self, who: str) -> None:
        """A participant is there, at an address that no other participant knows."""
        self._arrivals += 1
        self._came_at[who] = self._arrivals
        self._told_at[who] = 0

    def left(self, who: str) -> None:
        """A participant is gone."""
        self._came_at.pop(who, None)
        self._told_at.pop(who, None)

    def due(self) -> list[Introduction]:
        """The introductions to make now, to those that are up; each is due once."""
        return list(self._due())

    def _due(self) -> Iterator[Introduction]:
        for members, needed in self._groups:
            by_time: dict[int, list[Peer]] = {}
            for member in members:
                told_at = self._told_at.get(member)
                if told_at is not None and told_at < self._arrivals:
                    by_time.setdefault(told_at, []).append(member)
                    self._told_at[member] = self._arrivals
            for told_at, receivers in by_time.items():
                whom = tuple(who for who in needed if self._came_at.get(who, 0) > told_at)
                if whom:
                    yield Introduction(tuple(receivers), whom)
