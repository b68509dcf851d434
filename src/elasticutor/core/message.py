"""The base of everything that one part of the system says to another."""

from __future__ import annotations

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True)
class Message(msgspec.Struct, frozen=True):
    """An event, an instruction, or another message: a value that never changes.

    `transport.control` writes and reads it as it is, so no fact needs a second class to travel.
    """
