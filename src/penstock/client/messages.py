"""Messages in the hands of a consumer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from penstock.model.names import TopicName
from penstock.model.deliveries import SETTLED, Delivered
from penstock.client.arguments import nack_how
from penstock.client.carried import Carried
from penstock.client.waiting import NOTHING_TO_WAIT_FOR, Steps, Wait, awaiting, blocking, run
from penstock.delivery.offsets import Offsets
from penstock.model.receipts import Receipt
from penstock.durations import Duration, parse_ns
from penstock.errors import AlreadySettled, DeliveryError, InvalidInput, LogClosed
from penstock.log.base import DONE
from penstock.record.batch import Batch, Message
from penstock.record.schema import READ_SCHEMA

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.model.deliveries import Settled


class Lease(ABC):
    """What all messages of one receive from one partition share."""

    __slots__ = ("group", "nonce", "partition", "topic")

    def __init__(self, topic: TopicName, group: str, partition: int, nonce: int) -> None:
        self.topic = topic
        self.group = group
        self.partition = partition
        self.nonce = nonce

    def ack(self, offset: int) -> Steps[None]:
        """One message is done."""
        return self.settle("ack", Offsets(offset, 1))

    @abstractmethod
    def settle(self, verb: str, offsets: Offsets, **how: Any) -> Steps[None]:
        """Ack, nack, reject or extend some of its messages; raises what was refused."""

    @abstractmethod
    def settle_whole(self, leases: Leased, verb: str, **how: Any) -> Steps[None]:
        """All messages of one receive, this lease's and the others'."""


class EmbeddedLease(Lease):
    """A lease of a broker in this process."""

    __slots__ = ("_source", "broker")

    def __init__(self, broker: Broker, topic: TopicName, group: str, delivered: Delivered) -> None:
        assert delivered.source is not None
        self.broker = broker  # without super(): one is made for each receive, and that is slow
        self.topic = topic
        self.group = group
        self.partition = delivered.partition
        self.nonce = delivered.nonce
        self._source = delivered.source

    def ack(self, offset: int) -> Steps[None]:
        offsets = Offsets(offset, 1)
        try:
            settled: Settled | None = self._source.ack(self.group, self.nonce, offsets)
        except LogClosed:
            settled = None
        if settled is SETTLED:
            return NOTHING_TO_WAIT_FOR
        if settled is None or settled.refused:
            # The topic may be gone, or the broker, or another one of its name is there: it knows.
            settled = self.broker.ack(self.topic, self.partition, self.group, self.nonce, offsets)
        return _confirm(settled)

    def settle(self, verb: str, offsets: Offsets, **how: Any) -> Steps[None]:
        return _confirm(self._ask(verb, offsets, how))

    def settle_whole(self, leases: Leased, verb: str, **how: Any) -> Steps[None]:
        """On each partition, also if it is too late on another one; then the first error."""
        outcomes: list[Settled] = []
        lost: DeliveryError | None = None
        why: list[tuple[int, type[DeliveryError]]] = []
        for lease, pieces in leases:
            assert isinstance(lease, EmbeddedLease)
            try:
                outcomes.append(lease._ask(verb, None, how))
            except DeliveryError as exc:
                lost = lost or exc
                for batch, _ in pieces:  # asked by message it knows which of them are done
                    offsets = Offsets.of(batch.offset_numbers())
                    why += lease._ask(verb, offsets, how).refused.items()
        yield from _confirm(*outcomes)
        if lost is not None:
            if why and all(kind is AlreadySettled for _, kind in why):
                raise AlreadySettled(why[0][0])
            raise lost

    def _ask(self, verb: str, offsets: Offsets | None, how: dict[str, Any]) -> Settled:
        settle = getattr(self.broker, verb)
        settled: Settled = settle(
            self.topic, self.partition, self.group, self.nonce, offsets, **how
        )
        return settled


Leased: TypeAlias = list[tuple[Lease, list[tuple[Batch, int]]]]
"""What a receive handed out: each lease, and its messages with their delivery counts."""


def leased(broker: Broker, topic: TopicName, group: str, delivered: Sequence[Delivered]) -> Leased:
    return [(EmbeddedLease(broker, topic, group, each), each.pieces) for each in delivered]


class Held(msgspec.Struct, Carried, eq=False, weakref=True):
    """A message under a lease. Settle it by `ack`, `nack` or `reject`; until then it is yours."""

    _message: Message
    delivery_count: int
    """How often this message has been handed out to the group, this time included."""
    _lease: Lease
    _settled: bool = False

    @property
    def partition(self) -> int:
        return self._lease.partition

    @property
    def topic(self) -> str:
        return self._lease.topic.topic

    @property
    def group(self) -> str:
        return self._lease.group

    @property
    def receipt(self) -> str:
        """Names this delivery of the message, to settle it by from elsewhere."""
        lease = self._lease
        return str(
            Receipt(
                str(lease.topic), lease.partition, self.offset, self.delivery_count, lease.nonce
            )
        )

    def __repr__(self) -> str:
        value = self.value
        shown = value if value is None or len(value) <= 40 else value[:37] + b"..."
        where = f"{self.topic}/{self.partition}@{self.offset}"
        return f"<Message {where} {shown!r}, delivery {self.delivery_count}>"

    def _ack(self) -> Steps[None]:
        """The message is done."""
        steps = self._lease.ack(self._message.offset)
        self._settled = True
        return steps

    def _nack(
        self, delay: Duration | None = None, error: str = "", *, retries: int | None = None
    ) -> Steps[None]:
        """Try it again after a delay, by default the topic's backoff.

        `retries`: a dead letter after so many, if that is fewer than the topic allows."""
        return self._settle("nack", **nack_how(delay, error, retries))

    def _reject(self, reason: str = "") -> Steps[None]:
        """Give it up: straight to the dead letters."""
        return self._settle("reject", error=reason)

    def _extend(self, visibility: Duration) -> Steps[None]:
        """Hold it for this long from now on."""
        visibility_ns = parse_ns(visibility, "visibility")
        offsets = Offsets(self._message.offset, 1)
        return self._lease.settle("extend", offsets, visibility_ns=visibility_ns)

    def _settle(self, verb: str, **how: Any) -> Steps[None]:
        steps = self._lease.settle(verb, Offsets(self._message.offset, 1), **how)
        self._settled = True
        return steps

    def _finish(self, error: BaseException | None) -> Steps[None]:
        """What leaving a `with` block means."""
        if self._settled:
            return
        if error is None:
            yield from self._ack()
        else:
            with suppress(DeliveryError):  # the block's own error is the one to be heard of
                yield from self._nack(error=f"{type(error).__name__}: {error}")


class ReceivedMessage(Held):
    """A message under a lease. As a context manager it is acked, or nacked on an exception."""

    def ack(self) -> None:
        """The message is done."""
        steps = self._lease.ack(self._message.offset)
        self._settled = True
        if steps is not NOTHING_TO_WAIT_FOR:
            run(steps)

    nack = blocking(Held._nack)
    reject = blocking(Held._reject)
    extend = blocking(Held._extend)
    _leave = blocking(Held._finish)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(exc)


class AsyncReceivedMessage(Held):
    """The same for `await` and `async with`."""

    ack = awaiting(Held._ack)
    nack = awaiting(Held._nack)
    reject = awaiting(Held._reject)
    extend = awaiting(Held._extend)
    _leave = awaiting(Held._finish)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave(exc)


HeldType = TypeVar("HeldType", bound=Held)


def held(kind: type[HeldType], handed_out: Leased) -> list[HeldType]:
    """What a receive handed out, message by message."""
    return [
        kind(message, delivery_count, lease)
        for lease, pieces in handed_out
        for batch, delivery_count in pieces
        for message in batch.messages()
    ]


class HeldBatch:
    """Many messages as columns, settled together."""

    def __init__(self, handed_out: Leased) -> None:
        self._leases = handed_out
        self._acked = False
        """Whether it was acked while another one was received."""
        self._ack_was_sent = False
        """Whether that was tried, and may have been done."""

    @classmethod
    def checked(cls, batch: Any) -> Self:
        """A batch as `receive_batch` takes it to be acked first."""
        if not isinstance(batch, cls):
            raise InvalidInput(f"ack takes a batch that receive_batch gave, not {batch!r:.100}")
        return batch

    def __len__(self) -> int:
        return sum(len(batch) for _, pieces in self._leases for batch, _ in pieces)

    @property
    def batches(self) -> list[Batch]:
        return [batch for _, pieces in self._leases for batch, _ in pieces]

    def receipts(self) -> list[str]:
        """A receipt for each message, in the order of `table()`, to settle them one by one."""
        return [
            str(Receipt(str(lease.topic), lease.partition, offset, delivery_count, lease.nonce))
            for lease, pieces in self._leases
            for batch, delivery_count in pieces
            for offset in batch.offsets.to_pylist()
        ]

    def table(self) -> pa.Table:
        """The messages as an Arrow table, with the partition and the delivery count of each."""
        parts = []
        for lease, pieces in self._leases:
            for batch, delivery_count in pieces:
                columns = batch.record_batch()
                rows = len(batch)
                columns = columns.append_column("partition", _repeat(lease.partition, rows))
                parts.append(columns.append_column("delivery_count", _repeat(delivery_count, rows)))
        return pa.Table.from_batches(parts, schema=_TABLE_SCHEMA)

    def _ack(self) -> Steps[None]:
        """All of them are done."""
        return self._settle("ack")

    def _nack(
        self, delay: Duration | None = None, error: str = "", *, retries: int | None = None
    ) -> Steps[None]:
        """Try all of them again after a delay, by default the topic's backoff.

        `retries`: dead letters after so many, if that is fewer than the topic allows."""
        return self._settle("nack", **nack_how(delay, error, retries))

    def _reject(self, reason: str = "") -> Steps[None]:
        """Give all of them up: straight to the dead letters."""
        return self._settle("reject", error=reason)

    def _extend(self, visibility: Duration) -> Steps[None]:
        """Hold all of them for this long from now on."""
        return self._settle("extend", visibility_ns=parse_ns(visibility, "visibility"))

    def _settle(self, verb: str, **how: Any) -> Steps[None]:
        if self._leases:
            first, _ = self._leases[0]
            if self._ack_was_sent and verb == "ack":
                how["repeated"] = True
            yield from first.settle_whole(self._leases, verb, **how)

    def _ack_first(self) -> Steps[None]:
        """Before the next messages are received; once, however often that is tried."""
        if not self._acked:
            yield from self._ack()
            self._acked = True


class ReceivedBatch(HeldBatch):
    ack = blocking(HeldBatch._ack)
    nack = blocking(HeldBatch._nack)
    reject = blocking(HeldBatch._reject)
    extend = blocking(HeldBatch._extend)


class AsyncReceivedBatch(HeldBatch):
    ack = awaiting(HeldBatch._ack)
    nack = awaiting(HeldBatch._nack)
    reject = awaiting(HeldBatch._reject)
    extend = awaiting(HeldBatch._extend)


_TABLE_SCHEMA = READ_SCHEMA.append(pa.field("partition", pa.int32())).append(
    pa.field("delivery_count", pa.int32())
)


def _repeat(number: int, rows: int) -> Any:
    return pa.repeat(pa.scalar(number, pa.int32()), rows)


def _confirm(*outcomes: Settled) -> Steps[None]:
    """Wait until the outcomes are durable; raise what was refused."""
    for settled in outcomes:
        if settled.durable is not DONE:
            if not settled.durable.done():
                yield Wait(settled.durable)
            settled.durable.result()
    for settled in outcomes:
        for offset, refusal in settled.refused.items():
            raise refusal(offset)  # type: ignore[arg-type]
