"""The client of a Python program that may block."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from penstock.model.names import TopicName
from penstock.client.arguments import Position, poll_ns
from penstock.client.faces import Closing
from penstock.client.messages import Leased, ReceivedBatch, ReceivedMessage, held, leased
from penstock.client.operations import Asked, Operations
from penstock.client.producer import Producer, ProducerConfig
from penstock.client.streams import Stream, StreamConfig
from penstock.client.waiting import blocking, run
from penstock.durations import Duration

if TYPE_CHECKING:
    from penstock.broker.dead_letters import DeadLetters


class Client(Operations[Stream, Producer], Closing):
    """A connection to a broker. Any thread may use it."""

    create_topic = Operations._create_topic
    alter_topic = Operations._alter_topic
    delete_topic = Operations._delete_topic
    namespaces = Operations._namespaces
    topics = Operations._topics
    describe_topic = Operations._describe_topic
    stats = Operations._stats
    all_stats = Operations._all_stats
    latencies = Operations._latencies
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
    ack = blocking(Operations.ask_ack)
    nack = blocking(Operations.ask_nack)
    reject = blocking(Operations.ask_reject)
    extend = blocking(Operations.ask_extend)

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
        ack: ReceivedBatch | None = None,
    ) -> ReceivedBatch:
        """As `receive`, but as columns, which is much faster for many messages.

        `ack` is a batch that is done: as if its `ack()` had been called first.
        """
        asked = self._asked(topic, group, max_messages, visibility, consumer, partition)
        if ack is not None:
            poll_ns(wait)
            run(ReceivedBatch.checked(ack)._ack_first())
        return ReceivedBatch(self._take(asked, wait))

    def _take(self, asked: Asked, wait: Duration) -> Leased:
        wait_ns = poll_ns(wait)
        delivered = self._broker.receive(*asked)
        if wait_ns and not delivered:
            delivered = run(self._long_poll(asked, wait_ns))
        name, group, *_ = asked
        return leased(self._broker, name, group, delivered)

    def dead_letters(self, topic: str) -> DeadLetters:
        """The dead letters of a topic: list, redrive, purge."""
        return self._broker.dead_letters(self._name(topic))

    def in_namespace(self, namespace: str) -> Client:
        """The same broker, with the topics of another namespace. Close one of the two."""
        return Client(self._broker, namespace)._closes_with(self)

    def close(self) -> None:
        """Send what producers still hold, and leave a clean folder.

        Raises the error of what could not be sent, when all the rest is done.
        """
        with ExitStack() as closing:  # the last comes first, and all of it, whatever fails
            closing.callback(self._broker.close)
            for stream in list(self._streams):
                closing.callback(stream.leave, failed=True)  # the last message may be half done
            for producer in list(self._producers):
                closing.callback(producer.close)

    def _new_stream(
        self, topics: Sequence[TopicName], group: str, start: Position, config: StreamConfig
    ) -> Stream:
        return Stream(self._broker, topics, group, start, config)

    def _new_producer(self, name: TopicName, config: ProducerConfig) -> Producer:
        producer = Producer(self._broker, name, config)
        self._producers.add(producer)
        return producer
