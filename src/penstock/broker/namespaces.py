"""Namespaces, in the words of the API: made, described with what they use, deleted."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import GroupNotFound, NamespaceNotEmpty, TopicNotFound
from penstock.model.names import TopicName, stream_group
from penstock.model.namespaces import NamespaceDescription, NamespaceUsage

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


_ROUNDS_MAX = 100  # of a deletion, while others make topics


def usage_of(broker: Broker, namespace: str) -> NamespaceUsage:
    """What a namespace uses now."""
    stats = []
    for name in broker.topics(namespace):
        with suppress(TopicNotFound):  # deleted just now
            stats.append(broker.stats(name))
    topics, partitions = broker.tenants.made_in(namespace)
    return NamespaceUsage(
        publish_messages=sum(each.publish_rate for each in stats),
        receive_messages=sum(each.deliver_rate for each in stats),
        storage_bytes=sum(each.size_bytes for each in stats),
        topics=topics,
        partitions=partitions,
        groups=sum(len(each.groups) for each in stats),
        delayed=sum(each.delayed for each in stats),
        schedules=len(broker.schedules.page(namespace, None, 1 << 30)),
        webhooks=len(broker.webhooks.all(namespace)),
        connections=broker.tenants.connections(namespace),
    )


def described(broker: Broker, namespace: str) -> NamespaceDescription:
    record = broker.tenants.record(namespace)
    delayed, refused = broker.tenants.counted(namespace)
    return NamespaceDescription(
        namespace=namespace,
        quotas=broker.tenants.quotas(namespace),
        usage=usage_of(broker, namespace),
        delayed_answers=delayed,
        refused=refused,
        created_us=None if record is None else record.created_us,
    )


def delete_namespace(broker: Broker, namespace: str, *, force: bool) -> bool:
    """With `force` all that is in it goes first, so that a crash leaves a namespace with less. What
    others make meanwhile goes too, unless they do not stop: then NamespaceNotEmpty."""
    had_more = False
    for _ in range(_ROUNDS_MAX):
        names = broker.topics(namespace)
        if names and not force:
            raise NamespaceNotEmpty(namespace, len(names))
        had_more |= _empty(broker, namespace, names, force=force)
        was_made = broker.forget_namespace(namespace)
        if was_made is not None:
            return was_made or had_more
    raise NamespaceNotEmpty(namespace, len(broker.topics(namespace)))


def _empty(broker: Broker, namespace: str, names: list[TopicName], *, force: bool) -> bool:
    """Delete what is in a namespace; whether there was anything."""
    webhooks = broker.webhooks.all(namespace)
    schedules = broker.schedules.page(namespace, None, 1 << 30)
    for webhook in webhooks:
        broker.webhooks.delete(namespace, webhook.name)
    for schedule in schedules:
        broker.schedules.delete(schedule.name)
    for name in names:
        with suppress(TopicNotFound):
            broker.delete_topic(name)
    had_more = _forget_what_no_topic_has(broker, namespace) if force else False
    return had_more or bool(names or webhooks or schedules)


def _forget_what_no_topic_has(broker: Broker, namespace: str) -> bool:
    """Whoever gets the name next is to find nothing: schemas, and groups of streams."""
    groups = broker.streams.groups(namespace)
    for group in groups:
        with suppress(GroupNotFound):  # deleted just now
            broker.streams.delete(stream_group(group, namespace), force=True)
    return broker.schemas.forget(namespace) or bool(groups)
