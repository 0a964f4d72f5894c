"""Topics, namespaces with their quotas, and schedules."""

from __future__ import annotations

from penstock.errors.base import PenstockError


class TopicError(PenstockError):
    """A topic cannot do what was asked."""

    code = "topic_error"


class TopicNotFound(TopicError):
    """There is no such topic."""

    code = "topic_not_found"

    def __init__(self, topic: str, nearest: str | None = None) -> None:
        """`nearest` is a topic that there is, and that may have been meant."""
        self.topic, self.nearest = topic, nearest
        what_to_do = (
            f"did you mean {nearest!r}?" if nearest else "create it first with create_topic()"
        )
        super().__init__(f"there is no topic {topic!r}; {what_to_do}")


class TopicExists(TopicError):
    """There is such a topic already."""

    code = "topic_exists"

    def __init__(self, topic: str, how: str = "already") -> None:
        self.topic = topic
        super().__init__(f"topic {topic!r} exists {how}; alter_topic() changes its settings")


class TopicRecreated(PenstockError):
    """The topic was deleted and made again since: offsets of the former one mean nothing in it."""

    code = "topic_recreated"

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(
            f"topic {topic} was deleted and made again: these offsets are of the former one"
        )


class PartitionNotFound(TopicError):
    """The topic does not have so many partitions."""

    code = "partition_not_found"

    def __init__(self, topic: str, partition: object, count: int) -> None:
        super().__init__(f"topic {topic!r} has partitions 0 to {count - 1}, not {partition!r}")


class NamespaceNotEmpty(PenstockError):
    """The namespace has topics."""

    code = "namespace_not_empty"

    def __init__(self, namespace: str, topics: int) -> None:
        self.namespace, self.topics = namespace, topics
        super().__init__(
            f"namespace {namespace} has {topics} topics; delete them first, or delete it by force"
        )


class TooManyRequests(PenstockError):
    """The client makes more requests than it may."""

    code = "too_many_requests"
    retriable = True

    def __init__(self, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(f"too many requests; try again in {retry_after_s:.3g} s")


class RateQuotaExceeded(TooManyRequests):
    """The namespace is above its quota for rates."""

    code = "rate_quota_exceeded"

    def __init__(
        self, namespace: str, quota: str, limit: float, used: float, retry_after_s: float
    ) -> None:
        self.namespace, self.quota, self.limit, self.used = namespace, quota, limit, used
        self.retry_after_s = retry_after_s
        PenstockError.__init__(
            self,
            f"namespace {namespace} has a quota of {limit:g} {quota} a second and is above it; "
            f"try again in {retry_after_s:.3g} s",
        )


class QuotaExceeded(PenstockError):
    """The namespace has as many of something as its quota allows."""

    code = "quota_exceeded"

    def __init__(self, namespace: str, quota: str, limit: float, used: float) -> None:
        self.namespace, self.quota, self.limit, self.used = namespace, quota, limit, used
        super().__init__(
            f"namespace {namespace} has a quota of {limit:.15g} {quota} and would have "
            f"{used:.15g}; "
            "use fewer, or have the quota raised"
        )


class StorageQuotaExceeded(PenstockError):
    """The messages of the namespace take as much room as they may."""

    code = "storage_quota_exceeded"
    retriable = True

    def __init__(self, namespace: str, limit: int, used: int) -> None:
        self.namespace, self.quota, self.limit, self.used = namespace, "storage_bytes", limit, used
        super().__init__(
            f"the messages of namespace {namespace} take {used} bytes, and its quota is {limit}; "
            "purge topics, or let them keep less"
        )


class ScheduleNotFound(PenstockError):
    """There is no such schedule."""

    code = "schedule_not_found"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no schedule {name!r}; schedules() lists those that there are")
