"""Topics: making, describing, changing and deleting them."""

from __future__ import annotations

from penstock.model.calls.base import Call, TopicCall, route
from penstock.model.settings import SettingsGiven
from penstock.model.topics import PartitionBounds, TopicDescription, TopicNames
from penstock.model.values import Small, StreamPosition


@route("GET", "/topics", "describe", TopicNames, tag="topics")
class ListTopics(Call[TopicNames], frozen=True, kw_only=True):
    """The topics of a namespace, those of dead letters too."""


@route(
    "PUT", "/topics/{topic}", "manage", TopicDescription, tag="topics", status=201, body="settings"
)
class CreateTopic(TopicCall[TopicDescription], frozen=True, kw_only=True):
    """Make a topic."""

    settings: SettingsGiven = {}
    exist_ok: bool = False
    """A topic that is there already is left as it is."""


@route("GET", "/topics/{topic}", "describe", TopicDescription, tag="topics")
class DescribeTopic(TopicCall[TopicDescription], frozen=True, kw_only=True):
    """The settings of a topic."""


@route("PATCH", "/topics/{topic}", "manage", TopicDescription, tag="topics", body="settings")
class AlterTopic(TopicCall[TopicDescription], frozen=True, kw_only=True):
    """Change settings, or add partitions, while the topic is in use."""

    settings: SettingsGiven


@route("DELETE", "/topics/{topic}", "manage", tag="topics")
class DeleteTopic(TopicCall[None], frozen=True, kw_only=True):
    """With all its messages, delays and groups; its dead letters stay."""


@route("GET", "/topics/{topic}/partitions/{partition}", "describe", PartitionBounds, tag="topics")
class DescribePartition(TopicCall[PartitionBounds], frozen=True, kw_only=True):
    """Which offsets a partition holds, and which is at a position or time."""

    partition: Small
    at: StreamPosition | None = None
    """Also tell the offset at this position."""


@route("POST", "/sync", "publish", tag="topics", repeatable=True)
class Sync(Call[None], frozen=True, kw_only=True):
    """Make durable, whatever the fsync policies say, all that was done in a namespace before."""
