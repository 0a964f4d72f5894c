"""`Queue.Lease`: messages pushed within credit, and settled over the same stream.

The machine is that of WebSockets (`server/push/subscriptions.py`); here is how it speaks gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from typing import Any

from penstock.durations import parse_ns
from penstock.errors import InvalidInput, PenstockError
from penstock.model import calls
from penstock.model.deliveries import Delivered, Extend, LeasePart, Settling
from penstock.model.names import TopicName
from penstock.model.receipts import Receipt
from penstock.server.durable import durable
from penstock.server.grpc.calls import GrpcCall, begin_settling
from penstock.server.grpc.descriptors import message
from penstock.server.grpc.forms import hand_out, optional, refusal_of, seconds_of
from penstock.server.grpc.problems import problem_message, told
from penstock.server.keys import Key, Right
from penstock.server.push.subscriptions import QueueSubscription
from penstock.wire import push

_SETTLING_MAX = 64
"""Settles of a stream that are under way; more are read when one is done."""
_SEND_S = 30.0

_Response = message("LeaseResponse")
_Settled = message("LeaseSettled")
_Lost = message("Lost")


async def lease(call: GrpcCall, requests: AsyncIterator[Any]) -> None:
    """Until the client ends the stream, or the server stops."""
    first = await anext(requests, None)
    if first is None or first.WhichOneof("asked") != "subscribe":
        raise InvalidInput("the first message of the stream has to be subscribe")
    stream = LeaseStream(call, first.subscribe)
    await stream.subscription.begin()
    await stream.serve(requests)


class LeaseStream:
    """One stream, as its subscription sees it: a connection that it says things to."""

    arrow = False  # what is delivered is made here

    def __init__(self, call: GrpcCall, asked: Any) -> None:
        self.door = call.door
        self._call = call
        self._sending = asyncio.Lock()
        self._room = asyncio.Semaphore(_SETTLING_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: list[Any] = []
        self._is_answered = asyncio.Event()
        self.held: HeldLeases | None = HeldLeases() if asked.auto_extend else None
        self._visibility_s = seconds_of(asked, "visibility")
        self.subscription = GrpcSubscription(self, asked)

    @property
    def key(self) -> Key | None:
        return self._call.key

    def allow(self, right: Right, namespace: str | None) -> None:
        self._call.allow(right, namespace)

    async def say(self, said: push.Said, body: bytes | None = None) -> None:
        raise AssertionError(f"a queue says nothing but messages, not {said}")

    async def send(self, said: Any = None) -> None:
        """Until the client's end has taken it, nearly; with it goes what became of settles."""
        async with asyncio.timeout(_SEND_S), self._sending:
            if said is None and not self._answers:
                return
            said = said or _Response()
            if self._answers:
                said.settled.extend(self._answers)
                self._answers.clear()
            await self._call.write(said)

    async def serve(self, requests: AsyncIterator[Any]) -> None:
        pushing = self._run(self.subscription.push())
        reading = self._run(self._read(requests))
        self._run(self._send_answers())
        if self.held is not None:
            self._run(self._extend(self.held))
        try:
            while not (pushing.done() or reading.done()):
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in [each for each in self._tasks if each.done()]:
                    self._tasks.discard(task)
                    task.result()
            if pushing.done():
                pushing.result()
                await self.send(_Response(draining={}))
            else:
                reading.result()
                await asyncio.gather(*(self._settles()))
                await self.send()
        finally:
            for task in [pushing, reading, *self._tasks]:
                task.cancel()
            await asyncio.gather(pushing, reading, *self._tasks, return_exceptions=True)

    def _run(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    def _settles(self) -> Iterator[asyncio.Task[None]]:
        """Those that are under way."""
        return (task for task in self._tasks if task.get_name().startswith("settle"))

    async def _read(self, requests: AsyncIterator[Any]) -> None:
        async for asked in requests:
            match asked.WhichOneof("asked"):
                case "credit":
                    self._add(asked.credit)
                case "settle":
                    if asked.settle.HasField("credit"):
                        self._add(asked.settle.credit)
                    await self._settle(asked.settle)
                    if len(self._answers) >= _SETTLING_MAX:
                        await self.send()  # who settles has to read, too
                case _:
                    raise InvalidInput("after subscribe come credit and settle")

    def _add(self, credit: Any) -> None:
        if credit.messages < 0 or credit.bytes < 0:
            raise InvalidInput("credit is added, never taken away")
        self.subscription.add_credit(credit.messages, credit.bytes)

    async def _settle(self, asked: Any) -> None:
        """At once, or beside the stream if it takes long."""
        name, group = self.subscription.queue()
        await self._room.acquire()
        try:
            settling = begin_settling(self._call, name, group, asked)
        except (PenstockError, OSError) as exc:
            self._refuse(asked, exc)
            self._room.release()
            return
        if isinstance(settling, Settling) and all(each.done() for each in settling.durable):
            await self._finish(asked, settling)  # without a task, as it waits for nothing
        else:
            self._run(self._finish(asked, settling)).set_name("settle")

    async def _finish(self, asked: Any, begun: Settling | Coroutine[Any, Any, Settling]) -> None:
        try:
            settling = begun if isinstance(begun, Settling) else await begun
            for future in settling.durable:
                await durable(future)
            if self.held is not None and asked.verb != _EXTEND:
                self.held.let_go(asked)
            if asked.ref or settling.refused:
                refused = [refusal_of(each) for each in settling.refused]
                self._answer(_Settled(ref=asked.ref, refused=refused))
        except (PenstockError, OSError) as exc:
            self._refuse(asked, exc)
        finally:
            self._room.release()

    def _refuse(self, asked: Any, exc: Exception) -> None:
        self._answer(_Settled(ref=asked.ref, problem=problem_message(told(exc))))

    def _answer(self, settled: Any) -> None:
        """It goes with the messages that are pushed next, if that is now, and else alone."""
        self._answers.append(settled)
        self._is_answered.set()

    async def _send_answers(self) -> None:
        while True:
            await self._is_answered.wait()
            self._is_answered.clear()
            async with self._sending:
                pass
            await asyncio.sleep(0)  # messages that waited behind what was sent take them along
            if not self._sending.locked():
                await self.send()

    async def _extend(self, held: HeldLeases) -> None:
        """Keep what was delivered leased until it is settled."""
        name, group = self.subscription.queue()
        visibility_s = self._visibility_s
        if visibility_s is None:
            asked = calls.DescribeTopic(namespace=name.namespace, topic=name.topic)
            found: Any = await self.door.aside(self.door.api.ask, asked)
            visibility_s = found.settings.visibility_ms / 1000
        while True:
            await asyncio.sleep(max(visibility_s / 3, 0.05))
            parts = held.parts()
            if not parts:
                continue
            named = Extend(leases=parts, visibility=visibility_s)
            settling = await self.door.long_calls.run(
                name, self.door.api.settle, "extend", name, group, named
            )
            if settling.refused:
                for each in settling.refused:
                    held.lost(each.partition, each.lease, each.offset)
                lost = _Lost(refused=[refusal_of(each) for each in settling.refused])
                await self.send(_Response(lost=lost))


class GrpcSubscription(QueueSubscription):
    def __init__(self, stream: LeaseStream, asked: Any) -> None:
        super().__init__(stream, _subscribe(asked))
        self._stream = stream
        self._form = asked

    async def _deliver(self, delivered: list[Delivered]) -> None:
        batches = [batch for each in delivered for batch, _ in each.pieces]
        self._spend(sum(map(len, batches)), sum(batch.payload_bytes for batch in batches))
        if self._stream.held is not None:
            self._stream.held.take(delivered)
        name: TopicName = self._name
        answer = _Response()
        answer.delivered.seq = self._next_seq()
        hand_out(answer.delivered, name, delivered, self._form)
        await self._stream.send(answer)


class HeldLeases:
    """Messages that were delivered and are not settled yet, by their leases."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[int, int], set[int]] = {}

    def take(self, delivered: list[Delivered]) -> None:
        for each in delivered:
            offsets = self._offsets.setdefault((each.partition, each.nonce), set())
            for batch, _ in each.pieces:
                offsets.update(batch.offset_numbers().tolist())

    def parts(self) -> list[LeasePart]:
        return [
            LeasePart(partition=partition, lease=nonce, offsets=sorted(offsets))
            for (partition, nonce), offsets in self._offsets.items()
        ]

    def let_go(self, asked: Any) -> None:
        """What a settle named, whether or not it was refused."""
        for text in asked.receipts:
            with suppress(PenstockError):
                receipt = Receipt.parse(text)
                self.lost(receipt.partition, receipt.nonce, receipt.offset)
        for part in asked.leases:
            for offset in part.offsets or (None,):
                self.lost(part.partition, part.lease, offset)

    def lost(self, partition: int, nonce: int, offset: int | None) -> None:
        offsets = self._offsets.get((partition, nonce))
        if offsets is None:
            return
        if offset is not None:
            offsets.discard(offset)
        if offset is None or not offsets:
            del self._offsets[partition, nonce]


_EXTEND = 4


def _subscribe(asked: Any) -> push.Subscribe:
    max_batch = asked.max_batch or 100
    if not 0 < max_batch <= push.BATCH_MAX:
        raise InvalidInput(f"max_batch is {max_batch}; it is from 1 to {push.BATCH_MAX}")
    if asked.credit < 0 or (optional(asked, "credit_bytes") or 0) < 0:
        raise InvalidInput("credit is not negative")
    visibility = seconds_of(asked, "visibility")
    if visibility is not None:
        parse_ns(visibility, "visibility")
    return push.Subscribe(
        id="lease",
        topic=asked.topic,
        group=asked.group,
        namespace=asked.namespace or "default",
        credit=asked.credit,
        credit_bytes=optional(asked, "credit_bytes"),
        max_batch=max_batch,
        visibility=visibility,
        consumer=asked.consumer,
        partition=optional(asked, "partition"),
    )
