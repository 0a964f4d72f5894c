"""What is pushed: messages of a queue, of a stream or of a log as it grows, or how things stand.

Each has credit in messages and, if the client wants, in bytes. It is spent when messages are sent,
and nothing is taken from the broker beyond it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from penstock.durations import parse_ns
from penstock.errors import InvalidInput, PenstockError
from penstock.model import calls
from penstock.model.deliveries import Delivered
from penstock.model.groups import Fetched, MemberStanding, PartitionOffset, PartitionRef
from penstock.model.names import TopicName, group_name, parse_topic, topic_name
from penstock.model.receipts import Receipt
from penstock.model.settings import check_visibility
from penstock.model.stats import TopicRow
from penstock.wire import push
from penstock.wire.columns import encode_delivered, encode_read
from penstock.wire.json_forms import received_view, view

if TYPE_CHECKING:
    from penstock.server.door import Door
    from penstock.server.keys import Key, Right

_POLL_S = 30.0
_FETCH_BYTES = 1 << 20
_WATCH_S = 1.0
_WATCHED_MAX = 1000


def begin(socket: PushConnection, asked: push.Subscribe) -> PushSubscription:
    """The subscription that was asked for, if the client may have it."""
    kind = {
        "queue": QueueSubscription,
        "stream": StreamSubscription,
        "peek": PeekSubscription,
        "watch": WatchSubscription,
    }[asked.mode]
    return kind(socket, asked)


class PushConnection(Protocol):
    """What a subscription needs of the connection that it belongs to, whatever it speaks."""

    @property
    def door(self) -> Door: ...
    @property
    def key(self) -> Key | None: ...
    @property
    def arrow(self) -> bool: ...

    def allow(self, right: Right, namespace: str | None) -> None: ...
    async def say(self, said: push.Said, body: bytes | None = None) -> None: ...


class PushSubscription:
    def __init__(self, socket: PushConnection, asked: push.Subscribe) -> None:
        self.socket = socket
        self.asked = asked
        self.id = asked.id
        self.task: asyncio.Task[None] | None = None
        self._seq = 0
        self._credit = asked.credit
        self._credit_bytes = asked.credit_bytes
        self._more = asyncio.Event()

    async def begin(self) -> None:
        """What has to succeed for the subscription to be there."""

    async def push(self) -> None:
        """Until it is cancelled."""
        raise NotImplementedError

    def queue(self) -> tuple[TopicName, str]:
        """Whose messages can be settled."""
        raise InvalidInput(f"messages of a subscription in mode {self.asked.mode} have no lease")

    async def commit(self, offsets: list[PartitionOffset]) -> None:
        raise InvalidInput(f"a subscription in mode {self.asked.mode} commits no offsets")

    def add_credit(self, messages: int, size: int) -> None:
        self._credit = min(self._credit + messages, 1_000_000)
        if self._credit_bytes is not None:
            self._credit_bytes = min(self._credit_bytes + size, 1 << 40)
        self._more.set()

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    async def _for_credit(self) -> int:
        """How many messages may be sent now, once there may be any."""
        while self._credit <= 0 or (self._credit_bytes is not None and self._credit_bytes <= 0):
            self._more.clear()
            await self._more.wait()
        return min(self._credit, self.asked.max_batch)

    def _spend(self, messages: int, size: int) -> None:
        self._credit -= messages
        if self._credit_bytes is not None:
            self._credit_bytes -= size

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _topic(self) -> TopicName:
        if self.asked.topic is None:
            raise InvalidInput(f"mode {self.asked.mode} needs a topic")
        if "/" in self.asked.topic:
            return parse_topic(self.asked.topic)
        return topic_name(self.asked.topic, self.asked.namespace)


class QueueSubscription(PushSubscription):
    """Messages under leases, settled over the same connection or any other way."""

    def __init__(self, socket: PushConnection, asked: push.Subscribe) -> None:
        super().__init__(socket, asked)
        self._name = self._topic()
        if asked.group is None:
            raise InvalidInput("mode queue needs a group")
        self._group = group_name(asked.group)
        if asked.visibility is not None:
            check_visibility(parse_ns(asked.visibility, "visibility"))
        socket.allow("consume", self._name.namespace)

    def queue(self) -> tuple[TopicName, str]:
        return self._name, self._group

    async def begin(self) -> None:
        api = self.socket.door.api
        await self.socket.door.aside(api.partitions, self._name)
        if self.asked.start == "latest":
            await self.socket.door.aside(api.begin_at_end, self._name, self._group)

    async def push(self) -> None:
        door = self.socket.door
        while not door.stopping:
            wanted = await self._for_credit()
            delivered = self._take(wanted)
            if delivered is None:
                delivered = await door.polls.wait(
                    [self._name],
                    (self._group, self.asked.partition),
                    lambda wanted=wanted: self._take(wanted),  # type: ignore[misc]
                    lambda found: found,
                    _POLL_S,
                ).future
            if delivered is not None:
                await self._deliver(delivered)
            else:
                await asyncio.sleep(0)  # a server that stops answers polls at once

    def _take(self, wanted: int) -> list[Delivered] | None:
        door, asked = self.socket.door, self.asked
        if door.stopping or door.long_calls.is_busy(self._name):
            return None
        if not door.gate.may_go_on(self.socket.key):
            return None
        found = door.api.receive(
            self._name, self._group, wanted, asked.visibility, asked.consumer, asked.partition
        )
        return found or None

    async def _deliver(self, delivered: list[Delivered]) -> None:
        batches = [batch for each in delivered for batch, _ in each.pieces]
        self._spend(sum(map(len, batches)), sum(batch.payload_bytes for batch in batches))
        if self.socket.arrow:
            head = push.Deliver(id=self.id, seq=self._next_seq())
            await self.socket.say(head, encode_delivered(delivered))
            return
        topic = str(self._name)
        messages: list[Any] = [
            received_view(
                message,
                each.partition,
                count,
                str(Receipt(topic, each.partition, message.offset, count, each.nonce)),
            )
            for each in delivered
            for batch, count in each.pieces
            for message in batch.messages()
        ]
        await self.socket.say(push.Deliver(id=self.id, seq=self._next_seq(), messages=messages))


class PeekSubscription(PushSubscription):
    """Messages as they lie in the log and come to it, without a lease or a commit."""

    def __init__(self, socket: PushConnection, asked: push.Subscribe) -> None:
        super().__init__(socket, asked)
        self._name = self._topic()
        socket.allow("look", self._name.namespace)
        self._positions: dict[PartitionRef, int] = {}
        self._moved = asyncio.Event()  # the partitions to read are others now

    async def begin(self) -> None:
        door = self.socket.door
        await door.aside(door.api.ask, calls.DescribeTopic(**self._named()))
        count = await door.aside(door.api.partitions, self._name)
        only = self.asked.partition
        await self._assign(
            [
                PartitionRef(str(self._name), number)
                for number in range(count)
                if only in (None, number)
            ],
            {},
        )

    async def push(self) -> None:
        while not self.socket.door.stopping:
            wanted = await self._for_credit()
            for part in (await self._fetched()).parts:
                place = PartitionRef(part.topic, part.partition)
                if place not in self._positions:
                    continue  # it went to another member while it was read
                if part.out_of_range:
                    self._positions[place] = min(max(self._positions[place], part.start), part.end)
                    continue
                for batch in part.batches:
                    wanted = await self._deliver(place, batch, wanted)
                    if wanted <= 0:
                        break
                else:
                    self._positions[place] = part.next_offset
                if wanted <= 0:
                    break

    async def _deliver(self, place: PartitionRef, batch: Any, wanted: int) -> int:
        """Send as many of a batch as may be; how many more may."""
        some = batch if len(batch) <= wanted else batch.slice(0, wanted)
        rows = len(some)
        self._spend(rows, some.payload_bytes)
        messages = some.messages()
        next_offset = messages[-1].offset + 1
        self._positions[place] = next_offset
        head = push.Deliver(
            id=self.id,
            seq=self._next_seq(),
            messages=[] if self.socket.arrow else [view(message) for message in messages],
            topic=place.topic,
            partition=place.partition,
            next_offset=next_offset,
        )
        await self.socket.say(head, encode_read([some], b"") if self.socket.arrow else None)
        return wanted - rows

    async def _fetched(self) -> Fetched:
        """What there is to read, once there is something, or a while has passed."""
        door = self.socket.door
        wanted = [PartitionOffset(at.topic, at.partition, n) for at, n in self._positions.items()]

        def news() -> bool | None:
            if not door.gate.may_go_on(self.socket.key):
                return None
            return (self._moved.is_set() or door.api.fetch(wanted, 0).is_elsewhere(wanted)) or None

        names = list(dict.fromkeys(parse_topic(each.topic) for each in wanted)) or [self._name]
        await door.polls.wait(names, object(), news, lambda found: found, _POLL_S).future
        self._moved.clear()
        wanted = [
            each for each in wanted if PartitionRef(each.topic, each.partition) in self._positions
        ]
        return await door.read_aside(lambda: door.api.fetch(wanted, _FETCH_BYTES))

    async def _assign(self, places: list[PartitionRef], committed: dict[PartitionRef, int]) -> None:
        """Read these partitions from now on: where they were read, were committed, or begin."""
        positions: dict[PartitionRef, int] = {}
        for place in places:
            if place in self._positions:
                positions[place] = self._positions[place]
            elif place in committed:
                positions[place] = committed[place]
            else:
                positions[place] = await self._first(place)
        self._positions = positions
        self._moved.set()
        self.socket.door.polls.look(self._name)
        await self.socket.say(push.Assigned(id=self.id, partitions=places))

    async def _first(self, place: PartitionRef) -> int:
        name, door = parse_topic(place.topic), self.socket.door
        asked = calls.DescribePartition(
            namespace=name.namespace,
            topic=name.topic,
            partition=place.partition,
            at=self.asked.position,
        )
        bounds: Any = await door.aside(door.api.ask, asked)
        return int(bounds.at)

    def _named(self) -> dict[str, str]:
        return {"namespace": self._name.namespace, "topic": self._name.topic}


class StreamSubscription(PeekSubscription):
    """As a member of a stream group: its partitions, and offsets that it commits.

    The server heartbeats as long as the socket is open. A partition that another member is to have
    is given up at once: what was not committed is read again there.
    """

    def __init__(self, socket: PushConnection, asked: push.Subscribe) -> None:
        super().__init__(socket, asked)
        if asked.group is None:
            raise InvalidInput("mode stream needs a group; peek reads without one")
        if asked.partition is not None:
            raise InvalidInput("the group decides which partitions a stream reads")
        socket.allow("consume", self._name.namespace)
        self._member: dict[str, Any] = {
            "namespace": self._name.namespace,
            "group": group_name(asked.group),
        }
        self._generation = 0
        self._interval_s = 3.0

    async def begin(self) -> None:
        join = calls.JoinGroup(**self._member, topics=[self._name.topic])
        standing = await self._ask(join)
        self._member["member_id"] = standing.member_id
        self._interval_s = standing.heartbeat_interval_ms / 1000
        await self._take_standing(standing)

    async def push(self) -> None:
        reading, beating = asyncio.create_task(super().push()), asyncio.create_task(self._beat())
        try:
            done, _ = await asyncio.wait((reading, beating), return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        finally:
            reading.cancel()
            beating.cancel()
            await asyncio.gather(reading, beating, return_exceptions=True)
            leave = calls.LeaveGroup(**self._member, generation=self._generation)
            # Nobody waits for it: who left the socket may be gone, too.
            asyncio.get_running_loop().run_in_executor(None, self._leave, leave)

    async def commit(self, offsets: list[PartitionOffset]) -> None:
        self.socket.allow("consume", self._name.namespace)
        asked = calls.CommitOffsets(**self._member, generation=self._generation, offsets=offsets)
        await self.socket.door.member_aside(self._settled, asked)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            beat = calls.Heartbeat(**self._member, generation=self._generation)
            await self._take_standing(await self._ask(beat))

    async def _take_standing(self, standing: MemberStanding) -> None:
        self._generation = standing.generation
        if standing.revoke:
            revoked = set(standing.revoke)
            self._positions = {at: n for at, n in self._positions.items() if at not in revoked}
            sync = calls.SyncGroup(
                **self._member, generation=self._generation, revoked=list(standing.revoke)
            )
            standing = await self._ask(sync)
            self._generation = standing.generation
        if set(standing.assigned) != set(self._positions):
            committed = {PartitionRef(c.topic, c.partition): c.offset for c in standing.committed}
            await self._assign(list(standing.assigned), committed)

    async def _ask(self, call: Any) -> MemberStanding:
        ask: Any = self.socket.door.api.ask
        standing: MemberStanding = await self.socket.door.member_aside(ask, call)
        return standing

    def _settled(self, call: Any) -> None:
        future = self.socket.door.api.ask(call)
        if future is not None:
            future.result()

    def _leave(self, call: Any) -> None:
        with suppress(PenstockError):  # or its session ends by itself
            self._settled(call)


class WatchSubscription(PushSubscription):
    """How things stand: all at first, then once a second what has changed."""

    def __init__(self, socket: PushConnection, asked: push.Subscribe) -> None:
        super().__init__(socket, asked)
        self._namespace: str | None = None
        key = socket.key
        if asked.namespace != "default" or (key is not None and key.namespace is not None):
            self._namespace = asked.namespace
        socket.allow("describe", self._namespace)

    async def push(self) -> None:
        door = self.socket.door
        shown: dict[tuple[str, str], TopicRow] = {}
        while True:
            if not door.gate.may_go_on(self.socket.key):
                await asyncio.sleep(_WATCH_S)
                continue
            summary: Any = await door.aside(
                door.api.ask, calls.Summarize(namespace=self._namespace)
            )
            table: Any = await door.aside(
                door.api.ask,
                calls.TabulateTopics(
                    namespace=self._namespace, search=self.asked.topic or "", limit=_WATCHED_MAX
                ),
            )
            rows = {(row.namespace, row.topic): row for row in table.topics}
            changed = [row for name, row in rows.items() if shown.get(name) != row]
            await self.socket.say(push.Watched(id=self.id, summary=summary, topics=changed))
            shown = rows
            await asyncio.sleep(_WATCH_S)
