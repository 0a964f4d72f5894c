"""The client of a Python program that may block."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from penstock.broker.dead_letters import DeadLetters
from penstock.client.messages import Leased, ReceivedBatch, ReceivedMessage, held, leased
from penstock.client.operations import Asked, Operations, Position, poll_ns
from penstock.client.producer import Acks, Producer, producer_config
from penstock.client.streams import Stream, stream_config, stream_topics
from penstock.client.waiting import blocking, run
from penstock.durations import Duration


class Client(Operations):
    """A connection to a broker. Any thread may use it."""

    create_topic = Operations._create_topic
    alter_topic = Operations._alter_topic
    delete_topic = Operations._delete_topic
    namespaces = Operations._namespaces
    topics = Operations._topics
    describe_topic = Operations._describe_topic
    stats = Operations._stats
    all_stats = Operations._all_stats
    cancel = Operations._cancel
    delayed = Operations._delayed
    delay_stats = Operations._delay_stats
    groups = Operations._groups
    delete_group = Operations._delete_group
    stream_groups = Operations._stream_groups
    describe_stream_group = Operations._describe_stream_group
    reset_stream_group = blocking(Operations._reset_stream_group)
    delete_stream_group = Operations._delete_stream_group
    seek = Operations._seek
    peek = Operations._peek
    read = Operations._read
    purge = Operations._purge
    publish = blocking(Operations._publish)
    publish_batch = blocking(Operations._publish_batch)
    schedule_batch = blocking(Operations._schedule_batch)
    ack = blocking(Operations._ack)
    nack = blocking(Operations._nack)
    reject = blocking(Operations._reject)
    extend = blocking(Operations._extend)

    def receive(
        self,
        topic: str,
        group: str,
        max_messages: int = 10,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
    ) -> list[ReceivedMessage]:
        """Up to `max_messages` that are ready; waits for the first if there are none."""
        asked = self._asked(topic, group, max_messages, visibility, consumer, partition)
        return held(ReceivedMessage, self._take(asked, wait))

    def receive_batch(
        self,
        topic: str,
        group: str,
        max_messages: int = 1000,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
    ) -> ReceivedBatch:
        """As `receive`, but as columns, which is much faster for many messages."""
        asked = self._asked(topic, group, max_messages, visibility, consumer, partition)
        return ReceivedBatch(self._take(asked, wait))

    def _take(self, asked: Asked, wait: Duration) -> Leased:
        wait_ns = poll_ns(wait)
        delivered = self._broker.receive(*asked)
        if wait_ns and not delivered:
            delivered = run(self._long_poll(asked, wait_ns))
        name, group, *_ = asked
        return leased(self._broker, name, group, delivered)

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
    ) -> Stream:
        """Read topics in order as a member of a group; `start` is for where it never committed."""
        config = stream_config(commit_every, session_timeout, assignor, member_id)
        names = stream_topics(topics, self._namespace)
        stream = Stream(self._broker, names, group, start, config)
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
    ) -> Producer:
        """For many single messages: gathers them into batches, and sends each batch once."""
        config = producer_config(messages_max, bytes_max, linger, acks, retries)
        return Producer(self._broker, self._name(topic), config)

    def dead_letters(self, topic: str) -> DeadLetters:
        """The dead letters of a topic: list, redrive, purge."""
        return self._broker.dead_letters(self._name(topic))

    def in_namespace(self, namespace: str) -> Client:
        """The same broker, with the topics of another namespace. Close one of the two."""
        return Client(self._broker, namespace)

    def close(self) -> None:
        """Leave a clean folder."""
        self._leave_streams()
        self._broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
