"""Requests of administrators: topics, partitions, configs, and the start of logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.errors import InvalidInput, PenstockError
from penstock.model import calls
from penstock.model.settings import TopicSettings, parse_settings
from penstock.server.broker_config import broker_config_of
from penstock.server.kafka.call import KafkaCall
from penstock.server.kafka.codes import Code, Refused, refusal_of
from penstock.server.kafka.messages import NOW, Answer
from penstock.server.kafka.topic_configs import TopicConfig, configs_of, settings_of

_TOPIC, _BROKER = 2, 4  # what a config may belong to
_OF_TOPIC, _BY_DEFAULT = 1, 5  # where a config comes from
_STRING = 2
_DEFAULT_COUNT = -1
_LATEST = -1


async def create_topics(call: KafkaCall) -> Answer:
    def work() -> list[Answer]:
        return [
            Answer(name=topic.name, error_code=code, error_message=said)
            for topic in call.body.topics
            for code, said in [_told(partial(_create, call, topic))]
        ]

    return Answer(throttle_time=NOW, topics=await call.door.aside(work))


def _create(call: KafkaCall, topic: Any) -> None:
    call.check("manage")
    name = call.topic(topic.name)
    count = topic.num_partitions
    if topic.assignments:
        count = len(topic.assignments)
    if count != _DEFAULT_COUNT and count < 1:
        raise Refused(Code.INVALID_PARTITIONS, f"{count} partitions")
    given = settings_of({each.name: each.value for each in topic.configs})
    if count != _DEFAULT_COUNT:
        given["partitions"] = count
    parse_settings(given)
    if getattr(call.body, "validate_only", False):
        if name.topic in call.api.partition_counts(name.namespace):
            raise Refused(Code.TOPIC_ALREADY_EXISTS, f"topic {name} exists")
        return
    call.api.ask(calls.CreateTopic(topic=name.topic, namespace=name.namespace, settings=given))


async def delete_topics(call: KafkaCall) -> Answer:
    def delete(topic: str) -> None:
        call.check("manage")
        name = call.topic(topic)
        call.api.ask(calls.DeleteTopic(topic=name.topic, namespace=name.namespace))

    def work() -> list[Answer]:
        return [
            Answer(name=topic, error_code=code)
            for topic in call.body.topic_names
            for code, _ in [_told(partial(delete, topic))]
        ]

    return Answer(throttle_time=NOW, responses=await call.door.aside(work))


async def create_partitions(call: KafkaCall) -> Answer:
    def create(topic: Any) -> None:
        call.check("manage")
        name = call.topic(topic.name)
        described: Any = call.api.ask(
            calls.DescribeTopic(topic=name.topic, namespace=name.namespace)
        )
        if topic.count <= described.settings.partitions:
            raise Refused(
                Code.INVALID_PARTITIONS,
                f"topic {name} has {described.settings.partitions} partitions already",
            )
        given = {"partitions": topic.count}
        parse_settings(given, described.settings)
        if not call.body.validate_only:
            call.api.ask(
                calls.AlterTopic(topic=name.topic, namespace=name.namespace, settings=given)
            )

    def work() -> list[Answer]:
        return [
            Answer(name=topic.name, error_code=code, error_message=said)
            for topic in call.body.topics
            for code, said in [_told(partial(create, topic))]
        ]

    return Answer(throttle_time=NOW, results=await call.door.aside(work))


async def delete_records(call: KafkaCall) -> Answer:
    """The log begins later: what is before is gone for every reader."""

    def trim(topic: str, part: Any) -> int:
        call.check("manage")
        name = call.topic(topic)
        before = "latest" if part.offset == _LATEST else part.offset
        bounds: Any = call.api.ask(
            calls.Trim(
                topic=name.topic,
                namespace=name.namespace,
                partition=part.partition_index,
                before=before,
            )
        )
        start: int = bounds.start
        return start

    def work() -> list[Answer]:
        return [
            Answer(
                name=topic.name,
                partitions=[_trimmed(part, topic.name, trim) for part in topic.partitions],
            )
            for topic in call.body.topics
        ]

    return Answer(throttle_time=NOW, topics=await call.door.aside(work))


def _trimmed(part: Any, topic: str, trim: Callable[[str, Any], int]) -> Answer:
    start = -1

    def do() -> None:
        nonlocal start
        start = trim(topic, part)

    code, _ = _told(do, invalid=Code.OFFSET_OUT_OF_RANGE)
    return Answer(partition_index=part.partition_index, low_watermark=start, error_code=code)


# Configs.


async def describe_configs(call: KafkaCall) -> Answer:
    def work() -> list[Answer]:
        return [_described(call, resource) for resource in call.body.resources]

    return Answer(throttle_time=NOW, results=await call.door.aside(work))


def _described(call: KafkaCall, resource: Any) -> Answer:
    found: list[TopicConfig] = []

    def look() -> None:
        nonlocal found
        call.check("describe")
        if resource.resource_type == _BROKER:
            found = _broker_configs(call)
        else:
            found = configs_of(_settings(call, resource))

    code, said = _told(look)
    wanted = resource.configuration_keys
    return Answer(
        error_code=code,
        error_message=said,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[
            Answer(
                name=config.name,
                value=config.value,
                read_only=resource.resource_type == _BROKER,
                is_default=config.is_default,
                config_source=_BY_DEFAULT if config.is_default else _OF_TOPIC,
                is_sensitive=False,
                synonyms=(),
                config_type=config.kind,
                documentation=None,
            )
            for config in found
            if wanted is None or config.name in wanted
        ],
    )


def _broker_configs(call: KafkaCall) -> list[TopicConfig]:
    config = call.door.config
    return [
        TopicConfig(name, value, True, _STRING)
        for name, value in (
            ("auto.create.topics.enable", str(config.auto_create).lower()),
            ("default.replication.factor", "1"),
            ("message.max.bytes", str(config.body_bytes_max)),
            ("num.partitions", str(broker_config_of(config).topic_defaults.partitions)),
        )
    ]


async def alter_configs(call: KafkaCall) -> Answer:
    """All configs that Kafka has are set: those that are not named, to their defaults."""

    def changes(resource: Any, settings: TopicSettings) -> Mapping[str, str | None]:
        named = {each.name: each.value for each in resource.configs}
        others = [c.name for c in configs_of(settings) if not c.name.startswith("penstock.")]
        return {**dict.fromkeys(others), **named}

    return await call.door.aside(_alter, call, changes)


async def incremental_alter_configs(call: KafkaCall) -> Answer:
    """Only those configs are changed that are named."""

    def changes(resource: Any, settings: TopicSettings) -> Mapping[str, str | None]:
        present = {config.name: config.value for config in configs_of(settings)}
        changed: dict[str, str | None] = {}
        for each in resource.configs:
            old = changed.get(each.name) or present.get(each.name, "")
            items = [item for item in old.split(",") if item]
            given = (each.value or "").split(",")
            match each.config_operation:
                case 0:
                    changed[each.name] = each.value
                case 1:
                    changed[each.name] = None
                case 2:
                    changed[each.name] = ",".join(dict.fromkeys(items + given))
                case 3:
                    changed[each.name] = ",".join(i for i in items if i not in given)
                case _:
                    raise Refused(Code.INVALID_REQUEST, "no such operation")
        return changed

    return await call.door.aside(_alter, call, changes)


def _alter(
    call: KafkaCall, changes: Callable[[Any, TopicSettings], Mapping[str, str | None]]
) -> Answer:
    def alter(resource: Any) -> None:
        call.check("manage")
        settings = _settings(call, resource)
        given = settings_of(changes(resource, settings))
        parse_settings(given, settings)
        if not call.body.validate_only:
            name = call.topic(resource.resource_name)
            call.api.ask(
                calls.AlterTopic(topic=name.topic, namespace=name.namespace, settings=given)
            )

    responses = []
    for resource in call.body.resources:
        code, said = _told(partial(alter, resource))
        responses.append(
            Answer(
                error_code=code,
                error_message=said,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return Answer(throttle_time=NOW, responses=responses)


def _settings(call: KafkaCall, resource: Any) -> TopicSettings:
    if resource.resource_type != _TOPIC:
        raise Refused(Code.INVALID_REQUEST, "only topics have configs that can be changed")
    name = call.topic(resource.resource_name)
    described: Any = call.api.ask(calls.DescribeTopic(topic=name.topic, namespace=name.namespace))
    settings: TopicSettings = described.settings
    return settings


def _told(
    work: Callable[[], None], *, invalid: Code = Code.INVALID_CONFIG
) -> tuple[Code, str | None]:
    """What is answered after something was done, or refused."""
    try:
        work()
    except Refused as exc:
        return exc.code, exc.message
    except InvalidInput as exc:
        refused = refusal_of(exc)
        code = invalid if refused.code is Code.INVALID_REQUEST else refused.code
        return code, str(exc)
    except PenstockError as exc:
        refused = refusal_of(exc)
        return refused.code, refused.message
    return Code.NONE, None
