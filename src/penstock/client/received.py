"""Messages in the hands of a consumer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import pyarrow as pa

from penstock.client.arguments import maybe_seconds, parse_text, seconds
from penstock.client.leases import HandedOut, HeldLease, settle_all, whole_leases
from penstock.client.link import Link
from penstock.client.payload import DeliveredPayload
from penstock.client.waiting import NOTHING_TO_WAIT_FOR, Steps, run, run_async
from penstock.durations import Duration
from penstock.errors import DeliveryError
from penstock.model.deliveries import Extend, Nack, Rejection, Settle, Verb
from penstock.model.names import TopicName
from penstock.model.receipts import Receipt
from penstock.record.batch import Batch, Message
from penstock.record.schema import READ_SCHEMA

_ACK = Settle()


def nack_of(delay: Duration | None, error: str, retries: int | None) -> Nack:
    return Nack(
        delay=maybe_seconds(delay, "delay"), error=parse_text("error", error), retries=retries
    )


def reject_of(reason: str) -> Rejection:
    return Rejection(reason=parse_text("reason", reason))


def extend_of(visibility: Duration) -> Extend:
    return Extend(visibility=seconds(visibility, "visibility"))


class Held(msgspec.Struct, DeliveredPayload, eq=False, weakref=True):
    """A message under a lease. Settle it by `ack`, `nack` or `reject`; until then it is yours."""

    _message: Message
    delivery_count: int
    """How often this message has been handed out to the group, this time included."""
    _lease: HeldLease
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
        steps = self._lease.link.ack(self._lease, self._message.offset)
        self._settled = True
        return steps

    def _settle(self, verb: Verb, how: Settle) -> Steps[None]:
        self._settled = True
        return self._lease.link.settle_one(verb, self._lease, self._message.offset, how)

    def _extend(self, visibility: Duration) -> Steps[None]:
        return self._lease.link.settle_one(
            "extend", self._lease, self._message.offset, extend_of(visibility)
        )

    def _finish(self, error: BaseException | None) -> Steps[None]:
        """What leaving a `with` block means."""
        if self._settled:
            return
        if error is None:
            yield from self._ack()
        else:
            with suppress(DeliveryError):  # the block's own error is the one to be heard of
                told = nack_of(None, f"{type(error).__name__}: {error}", None)
                yield from self._settle("nack", told)


class ReceivedMessage(Held):
    """A message under a lease. As a context manager it is acked, or nacked on an exception."""

    def ack(self) -> None:
        """The message is done."""
        steps = self._lease.link.ack(self._lease, self._message.offset)
        self._settled = True
        if steps is not NOTHING_TO_WAIT_FOR:
            run(steps)

    def nack(
        self, delay: Duration | None = None, error: str = "", *, retries: int | None = None
    ) -> None:
        """Try it again after a delay, by default the topic's backoff.

        `retries`: a dead letter after so many, if that is fewer than the topic allows.
        """
        run(self._settle("nack", nack_of(delay, error, retries)))

    def reject(self, reason: str = "") -> None:
        """Give it up: straight to the dead letters."""
        run(self._settle("reject", reject_of(reason)))

    def extend(self, visibility: Duration) -> None:
        """Hold it for this long from now on."""
        run(self._extend(visibility))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        run(self._finish(exc))


class AsyncReceivedMessage(Held):
    """The same for `await` and `async with`."""

    async def ack(self) -> None:
        """The message is done."""
        await run_async(self._ack())

    async def nack(
        self, delay: Duration | None = None, error: str = "", *, retries: int | None = None
    ) -> None:
        """Try it again after a delay, by default the topic's backoff.

        `retries`: a dead letter after so many, if that is fewer than the topic allows.
        """
        await run_async(self._settle("nack", nack_of(delay, error, retries)))

    async def reject(self, reason: str = "") -> None:
        """Give it up: straight to the dead letters."""
        await run_async(self._settle("reject", reject_of(reason)))

    async def extend(self, visibility: Duration) -> None:
        """Hold it for this long from now on."""
        await run_async(self._extend(visibility))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await run_async(self._finish(exc))


HeldType = TypeVar("HeldType", bound=Held)


def held(kind: type[HeldType], leases: HandedOut) -> list[HeldType]:
    """What a receive handed out, message by message."""
    return [
        kind(message, delivery_count, lease)
        for lease, pieces in leases
        for batch, delivery_count in pieces
        for message in batch.messages()
    ]


class HeldBatch:
    """Many messages as columns, settled together."""

    def __init__(self, leases: HandedOut) -> None:
        self._leases = leases
        self._acked = False
        """Whether it was acked while another one was received."""
        self._ack_was_sent = False
        """Whether that was tried, and may have been done."""

    def __len__(self) -> int:
        return sum(len(batch) for _, pieces in self._leases for batch, _ in pieces)

    def __bool__(self) -> bool:
        return bool(self._leases)

    def __repr__(self) -> str:
        if not self._leases:
            return f"<{type(self).__name__} of no messages>"
        first, _ = self._leases[0]
        return f"<{type(self).__name__} of {len(self)} messages of {first.topic}>"

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

    def _settle(self, verb: Verb, how: Settle) -> Steps[None]:
        if self._leases:
            repeated = self._ack_was_sent and verb == "ack"
            yield from settle_all(self._leases, verb, how, repeated=repeated)

    # Acked with the next receive.

    def _ack_with(self, link: Link, topic: TopicName, group: str) -> Steps[Settle | None]:
        """What the next receive may name to be acked; None: that is done, or there is nothing."""
        if self._acked or not self._leases:
            return None
        first, _ = self._leases[0]
        ours = (first.link, first.topic, first.group) == (link, topic, group)
        if not ours or self._ack_was_sent:  # another one's, or uncertain: by itself
            yield from self._ack_first()
            return None
        return Settle(leases=whole_leases(self._leases))

    def _ack_first(self) -> Steps[None]:
        """Before the next messages are received; once, however often that is tried."""
        if not self._acked:
            yield from self._settle("ack", _ACK)
            self._acked = True


class ReceivedBatch(HeldBatch):
    """Many messages as columns, settled together. It can be iterated over, message by message."""

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """The messages, each of which can be settled by itself; columns are much faster."""
        return iter(held(ReceivedMessage, self._leases))

    def ack(self) -> None:
        """All of them are done."""
        run(self._settle("ack", _ACK))

    def nack(
        self, delay: Duration | None = None, error: str = "", *, retries: int | None = None
    ) -> None:
        """Try all of them again after a delay, by default the topic's backoff.

        `retries`: dead letters after so many, if that is fewer than the topic allows.
        """
        run(self._settle("nack", nack_of(delay, error, retries)))

    def reject(self, reason: str = "") -> None:
        """Give all of them up: straight to the dead letters."""
        run(self._settle("reject", reject_of(reason)))

    def extend(self, visibility: Duration) -> None:
        """Hold all of them for this long from now on."""
        run(self._settle("extend", extend_of(visibility)))


class AsyncReceivedBatch(HeldBatch):
    """The same for `await`."""

    def __iter__(self) -> Iterator[AsyncReceivedMessage]:
        """The messages, each of which can be settled by itself; columns are much faster."""
        return iter(held(AsyncReceivedMessage, self._leases))

    async def ack(self) -> None:
        """All of them are done."""
        await run_async(self._settle("ack", _ACK))

    async def nack(
        self, delay: Duration | None = None, error: str = "", *, retries: int | None = None
    ) -> None:
        """Try all of them again after a delay, by default the topic's backoff.

        `retries`: dead letters after so many, if that is fewer than the topic allows.
        """
        await run_async(self._settle("nack", nack_of(delay, error, retries)))

    async def reject(self, reason: str = "") -> None:
        """Give all of them up: straight to the dead letters."""
        await run_async(self._settle("reject", reject_of(reason)))

    async def extend(self, visibility: Duration) -> None:
        """Hold all of them for this long from now on."""
        await run_async(self._settle("extend", extend_of(visibility)))


_TABLE_SCHEMA = READ_SCHEMA.append(pa.field("partition", pa.int32())).append(
    pa.field("delivery_count", pa.int32())
)


def _repeat(number: int, rows: int) -> Any:
    return pa.repeat(pa.scalar(number, pa.int32()), rows)
