"""Topics of a Kafka cluster, live: messages, and the offsets that groups have committed.

It reads without a group of its own, so that nothing changes there. What a topic holds when the
import begins is imported; again, what has come since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from penstock.errors import InvalidInput, MissingExtra, Unavailable
from penstock.transfer.foreign import ForeignDamage, ForeignMessage, ForeignTopic, GroupPosition

_CONNECT_MS_MAX = 10_000
_POLL_MS = 1000
_POLLS_EMPTY_MAX = 10


class KafkaTopics:
    """The topics that are named, or all but the cluster's own."""

    def __init__(
        self, servers: str, topics: Sequence[str] = (), groups: Sequence[str] = (), **options: Any
    ) -> None:
        """`groups`: whose offsets come along. `options` are those of kafka-python's clients, for
        TLS and SASL."""
        try:
            import kafka  # noqa: PLC0415 - not everybody has it
        except ImportError as exc:
            raise MissingExtra("kafka", "an import from Kafka") from exc
        self.damage: list[ForeignDamage] = []
        self._kafka = kafka
        self._servers = servers
        self._options = options
        self._wanted = list(topics)
        self._groups = list(groups)
        self.source_id = f"kafka-{blake2b(servers.encode(), digest_size=8).hexdigest()}"
        self._consumer = self._connected()

    def _connected(self) -> Any:
        consumer, clients = self._kafka.KafkaConsumer, []

        def client(**settings: Any) -> Any:
            clients.append(consumer.DEFAULT_CONFIG["kafka_client"](**settings))
            return clients[-1]

        try:
            return consumer(
                bootstrap_servers=self._servers,
                group_id=None,
                enable_auto_commit=False,
                kafka_client=client,
                **({"bootstrap_timeout_ms": _CONNECT_MS_MAX} | self._options),
            )
        except self._kafka.errors.KafkaConfigurationError as exc:
            raise InvalidInput(f"kafka-python refuses its options: {exc}") from exc
        except self._kafka.errors.KafkaError as exc:
            for each in clients:  # a consumer that could not connect leaves its thread running
                each.close()
            raise Unavailable(f"no Kafka answers at {self._servers}: {exc}") from exc

    def topics(self) -> list[ForeignTopic]:
        known = self._consumer.topics()
        names = self._wanted or sorted(name for name in known if not name.startswith("__"))
        missing = [name for name in names if name not in known]
        if missing:
            raise InvalidInput(f"Kafka at {self._servers} has no topic {missing[0]!r}")
        return [
            ForeignTopic(name, len(self._consumer.partitions_for_topic(name) or ()), 0)
            for name in names
        ]

    def positions(self) -> list[GroupPosition]:
        if not self._groups:
            return []
        admin = self._kafka.KafkaAdminClient(bootstrap_servers=self._servers, **self._options)
        try:
            found = []
            for group in self._groups:
                offsets = admin.list_group_offsets({group: None})[group]
                for place, at in offsets.items():
                    if at.offset >= 0:
                        found.append(GroupPosition(group, place.topic, place.partition, at.offset))
            return found
        finally:
            admin.close()

    def read(self, topic: ForeignTopic, partition: int, after: int) -> Iterator[ForeignMessage]:
        """Up to where the partition ends now."""
        consumer, place = self._consumer, self._kafka.TopicPartition(topic.name, partition)
        start = max(consumer.beginning_offsets([place])[place], after + 1)
        end = consumer.end_offsets([place])[place]
        consumer.assign([place])
        consumer.seek(place, start)
        empty = 0
        while consumer.position(place) < end:
            records = consumer.poll(_POLL_MS).get(place, ())
            empty = 0 if records else empty + 1
            if empty > _POLLS_EMPTY_MAX:
                raise Unavailable(f"Kafka at {self._servers} sends nothing more of {topic.name}")
            for record in records:
                if record.offset < end:
                    yield ForeignMessage(
                        record.offset,
                        record.value,
                        record.key,
                        dict(record.headers),
                        2,
                        record.timestamp * 1000,
                    )

    def close(self) -> None:
        self._consumer.close()
