"""Messages on the channels of tuples: before the first of them, and at the end of an epoch."""

from __future__ import annotations

from elasticutor.core.message import Message
from elasticutor.core.protocol.ids import Attempt, Epoch, Peer
from elasticutor.transport.channels import Endpoint


class Hello(Message):
    """The first message on a channel: the schema of all tuples that follow."""

    sender: Peer
    schema: bytes


class Marker(Message):
    """The sender has sent all of its tuples of the epoch."""

    sender: Peer
    attempt: Attempt
    epoch: Epoch


class Join(Message):
    """The first message of an upstream that lasts for an attempt, as a query's task does.

    Outputs go to its endpoint.
    """

    sender: Peer
    attempt: Attempt
    schema: bytes
    endpoint: Endpoint
