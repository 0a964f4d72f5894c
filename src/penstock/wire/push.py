"""What a client and a server say to each other over a WebSocket.

Every message is a JSON object with a `type`, in a text frame. In the subprotocol
`penstock.v1.arrow` messages of topics come as Arrow instead, in binary frames: four bytes with the
length of the head, big endian, the head as JSON, then an Arrow stream.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from penstock.errors import ProtocolError
from penstock.model.deliveries import (
    Extend,
    GroupStart,
    LeasePart,
    Nack,
    Refusal,
    Rejection,
    Settle,
)
from penstock.model.groups import PartitionOffset, PartitionRef
from penstock.model.messages import NewMessage, PublishedMessage
from penstock.model.problem import Problem
from penstock.model.stats import Summary, TopicRow
from penstock.model.values import Seconds, Short, Small, StreamPosition, Whole
from penstock.wire.json_forms import MessageView, ReceivedView

PATH = "/v1/ws"
JSON_SUBPROTOCOL = "penstock.v1.json"
ARROW_SUBPROTOCOL = "penstock.v1.arrow"
SUBPROTOCOLS = (JSON_SUBPROTOCOL, ARROW_SUBPROTOCOL)

FRAME_BYTES_MAX = 1 << 20
"""Of what a client says."""
BATCH_MAX = 1000
"""Messages in one `deliver`."""

Mode: TypeAlias = Literal["queue", "stream", "peek", "watch"]
Ref: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)] | int
"""Chosen by the client; the answer has the same."""
Credit: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
CreditBytes: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]

_LENGTH = struct.Struct(">I")


class Said(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=str.lower):
    """Something that goes over the socket; its `type` is the name in lower case."""


class Asked(Said, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that the client wants, answered by `ok` or `problem` if it has a `ref`."""

    ref: Ref | None = None


# What clients say.


class Auth(Asked, frozen=True, kw_only=True):
    """The API key, where no header could carry it. The first thing that is said."""

    key: Annotated[str, msgspec.Meta(max_length=256)]


class Subscribe(Asked, frozen=True, kw_only=True):
    """Begin to push. Nothing comes before there is credit for it."""

    id: Short
    """Chosen by the client; all else about the subscription names it."""
    mode: Mode = "queue"
    topic: str | None = None
    """`topic`, or `namespace/topic`. To watch: only this one, by default all."""
    group: str | None = None
    """For a queue, and for a stream whose group shares the partitions and commits."""
    namespace: str = "default"
    credit: Credit = 0
    """Messages that may be pushed."""
    credit_bytes: CreditBytes | None = None
    """And bytes; by default as many as it takes."""
    max_batch: Annotated[int, msgspec.Meta(ge=1, le=BATCH_MAX)] = 100
    visibility: Seconds | None = None
    consumer: Short = ""
    partition: Small | None = None
    start: GroupStart = "earliest"
    """Where a queue group begins that is not there yet."""
    position: StreamPosition = "latest"
    """Where to peek from; and a stream, where its group has committed nothing."""
    path: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    """To watch: the answer to a GET of this path, with its query, instead of all topics."""
    every: Seconds = "1s"
    """How often to look at it, from 1s to 60s."""


class AddCredit(Asked, frozen=True, kw_only=True, tag="credit"):
    """Let more be pushed."""

    id: Short
    add: Credit = 0
    add_bytes: CreditBytes = 0


class Unsubscribe(Asked, frozen=True, kw_only=True):
    """Push no more. What was delivered can still be settled."""

    id: Short


class SettleAsked(Asked, frozen=True, kw_only=True):
    """Messages of a subscription, by receipts or leases; the answer comes when it is durable."""

    id: Short
    receipts: list[str] = []
    leases: list[LeasePart] = []
    even_if_lost: bool = False
    """Also messages that another consumer holds by now, or whose lease ran out."""

    def settle(self) -> Settle:
        return Settle(**self._named())

    def _named(self) -> dict[str, Any]:
        """What they have in common."""
        return {name: getattr(self, name) for name in Settle.__struct_fields__}


class AckAsked(SettleAsked, frozen=True, kw_only=True, tag="ack"):
    """The messages are done."""


class NackAsked(SettleAsked, frozen=True, kw_only=True, tag="nack"):
    """Try the messages again, after `delay` or the topic's backoff."""

    delay: Seconds | None = None
    error: str = ""
    retries: Whole | None = None

    def settle(self) -> Nack:
        return Nack(**self._named(), delay=self.delay, error=self.error, retries=self.retries)


class RejectAsked(SettleAsked, frozen=True, kw_only=True, tag="reject"):
    """Give the messages up: to the dead letters."""

    reason: str = ""

    def settle(self) -> Rejection:
        return Rejection(**self._named(), reason=self.reason)


class ExtendAsked(SettleAsked, frozen=True, kw_only=True, tag="extend"):
    """Hold the messages for `visibility` from now on."""

    visibility: Seconds

    def settle(self) -> Extend:
        return Extend(**self._named(), visibility=self.visibility)


class PublishAsked(Asked, frozen=True, kw_only=True, tag="publish"):
    """Store messages; the answer comes when they are durable."""

    topic: str
    messages: list[NewMessage]


class CommitAsked(Asked, frozen=True, kw_only=True, tag="commit"):
    """Where the group of a stream goes on, on partitions that it was given."""

    id: Short
    offsets: list[PartitionOffset]


class Ping(Asked, frozen=True, kw_only=True):
    """Is anybody there? Answered by `ok`."""


ClientSaid: TypeAlias = (
    Auth
    | Subscribe
    | AddCredit
    | Unsubscribe
    | AckAsked
    | NackAsked
    | RejectAsked
    | ExtendAsked
    | PublishAsked
    | CommitAsked
    | Ping
)


# What servers say.


class SocketHello(Said, frozen=True, kw_only=True, tag="hello"):
    """The client is let in."""

    version: str
    frame_bytes_max: int = FRAME_BYTES_MAX
    batch_max: int = BATCH_MAX
    subscriptions_max: int


class Ok(Said, frozen=True, kw_only=True, omit_defaults=True):
    """It is done."""

    ref: Ref
    refused: list[Refusal] = []
    """Messages that could not be settled, and why."""
    published: list[PublishedMessage] = []


class ProblemSaid(Said, frozen=True, kw_only=True, omit_defaults=True, tag="problem"):
    """It is not done; or, without a `ref`, something came to an end by itself."""

    problem: Problem
    ref: Ref | None = None
    id: str | None = None
    """The subscription that has ended."""


class Deliver(Said, frozen=True, kw_only=True, omit_defaults=True):
    """Messages of a subscription. `seq` counts these frames, from 1."""

    id: str
    seq: int
    messages: list[ReceivedView | MessageView] = []
    """In JSON; as Arrow they follow the head."""
    topic: str = ""
    """Of a stream or a peek, which reads partition by partition."""
    partition: int | None = None
    next_offset: int | None = None
    """To go on from, and to commit."""


class Assigned(Said, frozen=True, kw_only=True):
    """The partitions that a stream reads from now on; others of its group read the rest."""

    id: str
    partitions: list[PartitionRef]


class Watched(Said, frozen=True, kw_only=True):
    """How things stand: everything first, then once a second what has changed."""

    id: str
    summary: Summary
    topics: list[TopicRow]


class Changed(Said, frozen=True, kw_only=True, omit_defaults=True):
    """The answer that is watched: all its fields first, then those that have changed."""

    id: str
    fields: dict[str, msgspec.Raw]
    gone: list[str] = []


class Draining(Said, frozen=True, kw_only=True):
    """The server stops: nothing more is pushed, and the connection is closed."""


class DeliverHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a client looks at before it decodes messages."""

    type: str
    id: str
    seq: int
    topic: str = ""
    partition: int | None = None
    next_offset: int | None = None


_client = msgspec.json.Decoder(ClientSaid)
_heads = msgspec.json.Decoder(DeliverHead)


def decode_asked(text: str | bytes) -> ClientSaid:
    """Raises msgspec.MsgspecError."""
    asked: ClientSaid = _client.decode(text)
    return asked


def encode_frame(head: Said, body: bytes) -> bytes:
    encoded = msgspec.json.encode(head)
    return b"".join((_LENGTH.pack(len(encoded)), encoded, body))


def decode_frame(frame: bytes) -> tuple[DeliverHead, bytes]:
    """What `encode_frame` made; ProtocolError for anything else."""
    try:
        (length,) = _LENGTH.unpack_from(frame)
        return _heads.decode(frame[4 : 4 + length]), frame[4 + length :]
    except (struct.error, msgspec.MsgspecError) as exc:
        raise ProtocolError(f"a frame cannot be read: {exc}") from None
