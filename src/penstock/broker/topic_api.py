"""The calls of the API that are about topics and their partitions."""

from __future__ import annotations

from penstock.broker.api_part import ApiPart, topic_of
from penstock.broker.peek import offsets_at
from penstock.broker.retention import trim
from penstock.model import calls
from penstock.model.names import TopicName, topic_name
from penstock.model.settings import TopicSettings
from penstock.model.topics import Compacted, PartitionBounds, TopicDescription, TopicNames


class TopicApi(ApiPart):
    """Topics: made, changed, described and deleted, and how much they keep."""

    def list_topics(self, call: calls.ListTopics) -> TopicNames:
        topic_name("any", call.namespace)
        return TopicNames(topics=[name.topic for name in self._broker.topics(call.namespace)])

    def create_topic(self, call: calls.CreateTopic) -> TopicDescription:
        settings = self._broker.create_topic(topic_of(call), call.settings, call.exist_ok)
        return self._description(call, settings)

    def describe_topic(self, call: calls.DescribeTopic) -> TopicDescription:
        return self._description(call, self._broker.settings(topic_of(call)))

    def settings(self, name: TopicName) -> TopicSettings:
        """Of a topic that is there; the same object as long as nobody changes them."""
        return self._broker.settings(name)

    def alter_topic(self, call: calls.AlterTopic) -> TopicDescription:
        settings = self._broker.alter_topic(topic_of(call), call.settings)
        return self._description(call, settings)

    def delete_topic(self, call: calls.DeleteTopic) -> None:
        self._broker.delete_topic(topic_of(call))

    def describe_partition(self, call: calls.DescribePartition) -> PartitionBounds:
        topic = self._broker.topic(topic_of(call), create=False)
        log = topic.partition(call.partition).log
        at = None
        if call.at is not None:
            at = offsets_at(topic, call.at, call.partition)[call.partition]
        return PartitionBounds(
            partition=call.partition,
            start=log.start,
            end=log.end,
            durable_end=log.durable_end,
            at=at,
        )

    def sync(self, call: calls.Sync) -> None:
        topic_name("any", call.namespace)
        self._broker.sync(call.namespace)

    def trim(self, call: calls.Trim) -> PartitionBounds:
        topic = self._broker.topic(topic_of(call), create=False)
        before = offsets_at(topic, call.before, call.partition)[call.partition]
        trim(topic, call.partition, before)
        return self.describe_partition(
            calls.DescribePartition(
                namespace=call.namespace, topic=call.topic, partition=call.partition
            )
        )

    def compact(self, call: calls.Compact) -> Compacted:
        return self._broker.compact(topic_of(call))

    def _description(
        self, call: calls.TopicCall[TopicDescription], settings: TopicSettings
    ) -> TopicDescription:
        times = self._broker.topic_times(topic_of(call))
        return TopicDescription(
            topic=call.topic,
            settings=settings,
            created_us=times.created_us,
            updated_us=times.updated_us,
            incarnation=self._broker.incarnation(topic_of(call)),
        )
