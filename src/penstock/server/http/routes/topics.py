"""Topics: create, alter, describe, delete; their partitions, namespaces."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.broker.names import TopicName, topic_name
from penstock.durations import parse_us
from penstock.errors import InvalidInput
from penstock.server.http.endpoints import Call, Table
from penstock.wire.topics import Namespaces, PartitionView, Settings, TopicNames, TopicView
from penstock.wire.values import Place, parse_place

table = Table("topics")


class CreateOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    exist_ok: bool = False
    """A topic that is there already is left as it is."""


class PartitionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    at: Place | None = None
    """Also tell the offset at this position."""


@table.add("GET", "/v1/namespaces", right="describe", result=Namespaces, in_namespaces=False)
def list_namespaces(call: Call) -> Namespaces:
    """Every namespace that has a topic, and "default"."""
    return Namespaces(namespaces=call.broker.namespaces())


@table.add("GET", "/topics", right="describe", result=TopicNames)
def list_topics(call: Call) -> TopicNames:
    """The topics of a namespace, those of dead letters too."""
    topic_name("any", call.namespace)
    return TopicNames(topics=[name.topic for name in call.broker.topics(call.namespace)])


@table.add(
    "PUT",
    "/topics/{topic}",
    right="manage",
    options=CreateOptions,
    body=dict[str, Any],
    body_schema=Settings,
    body_optional=True,
    result=TopicView,
    status=201,
)
async def create_topic(call: Call) -> TopicView:
    """Make a topic."""
    exist_ok = call.options.exist_ok
    settings = await call.door.aside(
        call.broker.create_topic, call.topic, _settings(call.body), exist_ok
    )
    return TopicView(topic=call.topic.topic, settings=settings)


@table.add("GET", "/topics/{topic}", right="describe", result=TopicView)
def describe_topic(call: Call) -> TopicView:
    """The settings of a topic."""
    settings = call.broker.topic(call.topic, create=False).settings
    return TopicView(topic=call.topic.topic, settings=settings)


@table.add(
    "PATCH",
    "/topics/{topic}",
    right="manage",
    body=dict[str, Any],
    body_schema=Settings,
    result=TopicView,
)
async def alter_topic(call: Call) -> TopicView:
    """Change settings, or add partitions, while the topic is in use."""
    settings = await call.door.aside(call.broker.alter_topic, call.topic, _settings(call.body))
    return TopicView(topic=call.topic.topic, settings=settings)


@table.add("DELETE", "/topics/{topic}", right="manage")
async def delete_topic(call: Call) -> None:
    """With all its messages, delays and groups; its dead letters stay."""
    await call.door.aside(call.broker.delete_topic, call.topic)


@table.add(
    "GET",
    "/topics/{topic}/partitions/{partition}",
    right="describe",
    options=PartitionOptions,
    result=PartitionView,
)
def describe_partition(call: Call) -> PartitionView:
    """Which offsets a partition holds, and which is at a position or time."""
    partition = call.broker.topic(call.topic, create=False).partition(number(call))
    log = partition.log
    at = call.options.at
    return PartitionView(
        partition=partition.number,
        start=log.start,
        end=log.end,
        durable_end=log.durable_end,
        at=None if at is None else positions(call, call.topic, at, partition.number)[0][1],
    )


def number(call: Call) -> int:
    """The partition in the path."""
    text = call.parameters["partition"]
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidInput(f"partition {text!r:.100} is not a whole number from 0 up")
    return int(text)


def positions(
    call: Call, name: TopicName, at: str | int, partition: int | None
) -> list[tuple[int, int]]:
    """The offset at a position, in one partition or in all."""
    topic = call.broker.topic(name, create=False)
    partitions = topic.partitions if partition is None else [topic.partition(partition)]
    place = parse_place(at, "position")
    if place == "earliest":
        return [(p.number, p.log.start) for p in partitions]
    if place == "latest":
        return [(p.number, p.log.end) for p in partitions]
    if isinstance(place, int):
        if not 0 <= place < 1 << 63:
            raise InvalidInput(f"offset {place} is not a whole number from 0 up")
        return [(p.number, place) for p in partitions]
    assert not isinstance(place, str)
    stamp_us = parse_us(place)
    return [(p.number, p.log.find(stamp_us)) for p in partitions]


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    if "backoff" in given and isinstance(given["backoff"], list):
        given["backoff"] = tuple(given["backoff"])
    return given
