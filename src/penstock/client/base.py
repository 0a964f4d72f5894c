"""What every client has, wherever its broker is: a namespace, streams, producers, and receipts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Self, TypeVar
from weakref import WeakSet

from penstock.model.names import TopicName, topic_name
from penstock.client.arguments import Position, nack_how
from penstock.client.producer import Acks, ProducerConfig
from penstock.client.streams import StreamConfig
from penstock.client.waiting import Steps
from penstock.durations import Duration, parse_ms, parse_ns
from penstock.errors import DeliveryError, InvalidInput

S = TypeVar("S")  # its streams
P = TypeVar("P")  # its producers


class BaseClient(ABC, Generic[S, P]):
    def __init__(self, namespace: str) -> None:
        topic_name("x", namespace)
        self._namespace = namespace
        self._streams: WeakSet[S] = WeakSet()
        self._producers: WeakSet[Any] = WeakSet()
        """Those that are open. One that holds messages stays alive until it has sent them."""

    def _closes_with(self, other: BaseClient[S, P]) -> Self:
        """What this client opens is closed together with what the other one does."""
        self._streams, self._producers = other._streams, other._producers
        return self

    def _name(self, topic: str) -> TopicName:
        return topic_name(topic, self._namespace)

    def stream(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        start: Position = "earliest",
        commit_every: Duration | None = "5s",
        session_timeout: Duration = "30s",
        assignor: str = "sticky",
        member_id: str | None = None,
    ) -> S:
        """Read topics in order as a member of a group; `start` is for where it never committed."""
        named = "" if member_id is None else member_id
        for name, given in (("assignor", assignor), ("member_id", named)):
            if not isinstance(given, str):
                raise InvalidInput(f"{name} is {given!r:.100}; it must be text")
        every_ns = None if commit_every is None else parse_ns(commit_every, "commit_every")
        config = StreamConfig(
            commit_every_ns=every_ns,
            session_timeout_ms=parse_ms(session_timeout, "session_timeout"),
            assignor=assignor,
            member_id=member_id,
        )
        several = [topics] if isinstance(topics, str) else topics
        if not isinstance(several, Iterable):
            raise InvalidInput(f"topics is {topics!r:.100}; give the name of a topic, or a list")
        stream = self._new_stream([self._name(topic) for topic in several], group, start, config)
        self._streams.add(stream)
        return stream

    def producer(
        self,
        topic: str,
        *,
        messages_max: int = 100,
        bytes_max: int = 64 << 10,
        linger: Duration = "5ms",
        acks: Acks = "leader",
        retries: int = 3,
    ) -> P:
        """For many single messages: gathers them into batches, and sends each batch once."""
        config = ProducerConfig(
            messages_max=messages_max,
            bytes_max=bytes_max,
            linger_ms=parse_ms(linger, "linger"),
            acks=acks,
            retries=retries,
        )
        return self._new_producer(self._name(topic), config)

    def ask_ack(self, group: str, receipts: str | Sequence[str]) -> Steps[dict[str, DeliveryError]]:
        """Ack messages by their receipts. Returns what could not be acked, by receipt."""
        return (yield from self._settle_receipts("ack", group, receipts))

    def ask_nack(
        self,
        group: str,
        receipts: str | Sequence[str],
        *,
        delay: Duration | None = None,
        error: str = "",
        retries: int | None = None,
    ) -> Steps[dict[str, DeliveryError]]:
        """Give messages back by their receipts, to be tried again after a delay.

        `retries`: dead letters after so many, if that is fewer than the topic allows."""
        how = nack_how(delay, error, retries)
        return (yield from self._settle_receipts("nack", group, receipts, **how))

    def ask_reject(
        self, group: str, receipts: str | Sequence[str], *, reason: str = ""
    ) -> Steps[dict[str, DeliveryError]]:
        """Give messages up by their receipts: straight to the dead letters."""
        return (yield from self._settle_receipts("reject", group, receipts, error=reason))

    def ask_extend(
        self, group: str, receipts: str | Sequence[str], *, visibility: Duration
    ) -> Steps[dict[str, DeliveryError]]:
        """Hold messages for longer, by their receipts."""
        visibility_ns = parse_ns(visibility, "visibility")
        steps = self._settle_receipts("extend", group, receipts, visibility_ns=visibility_ns)
        return (yield from steps)

    # Where the broker is: here, or far away.

    @abstractmethod
    def _new_stream(
        self, topics: Sequence[TopicName], group: str, start: Position, config: StreamConfig
    ) -> S: ...

    @abstractmethod
    def _new_producer(self, name: TopicName, config: ProducerConfig) -> P: ...

    @abstractmethod
    def _settle_receipts(
        self, verb: str, group: str, receipts: str | Sequence[str], **how: Any
    ) -> Steps[dict[str, DeliveryError]]:
        """Settle messages by their receipts; by receipt, the errors of those that could not be."""
