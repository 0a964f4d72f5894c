"""Actions on queues: making, listing, describing, changing, tagging, purging, deleting them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from penstock.errors import TopicExists, TopicNotFound
from penstock.model import calls
from penstock.model.names import TopicName, topic_name
from penstock.model.settings import TopicSettings
from penstock.model.stats import TopicStats
from penstock.server.sqs.attributes import (
    COUNTED,
    FIFO_SUFFIX,
    GROUP,
    READABLE,
    Redrive,
    attributes_of,
    check_allows,
    new_queue,
    parse_redrive,
    same,
    settings_of,
    tags_of,
    with_tags,
)
from penstock.server.sqs.call import Result, SqsCall
from penstock.server.sqs.problems import SqsProblem, invalid, no_queue

_NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_NAME_LENGTH_MAX = 80
_PAGE_MAX = 1000


async def create_queue(call: SqsCall) -> Result:
    return await call.door.aside(_create, call)


def _create(call: SqsCall) -> Result:
    asked = call.parameters
    name = topic_name(_checked_name(asked.queue_name), call.namespace)
    given: dict[str, str] = asked.attributes
    is_fifo = name.topic.endswith(FIFO_SUFFIX)
    if is_fifo != (given.get("FifoQueue") == "true"):
        raise invalid(
            "QueueName", name.topic, "The name of a FIFO queue, and of no other, ends with .fifo."
        )
    changes = settings_of(name, given, {}, lambda policy: _redrive(call, name, policy))
    settings = {**new_queue(is_fifo), **changes}
    if asked.tags:
        settings["attributes"] = with_tags(settings.get("attributes", {}), asked.tags)
    call.addresses.accounts.account(name.namespace)
    try:
        call.api.ask(calls.CreateTopic(**_topic(name), settings=settings))
    except TopicExists:
        _check_same(call, name, given)
    return {"QueueUrl": call.addresses.url(name)}


def _check_same(call: SqsCall, name: TopicName, given: dict[str, str]) -> None:
    """A queue that is there already is what was asked for, if what is given of it is so."""
    known = attributes_of(name, _settings(call, name), call.addresses)
    for attribute, value in given.items():
        if not same(attribute, known.get(attribute), value):
            raise SqsProblem(
                "QueueNameExists",
                "A queue already exists with the same name and a different value for attribute "
                f"{attribute}",
            )


def get_queue_url(call: SqsCall) -> Result:
    asked = call.parameters
    namespace = call.namespace
    if asked.owner is not None:
        namespace = call.addresses.accounts.namespace(asked.owner)
        call.check("describe", namespace)
    try:
        name = topic_name(asked.queue_name, namespace)
    except ValueError:
        raise no_queue() from None
    call.state.view(name)
    return {"QueueUrl": call.addresses.url(name)}


async def list_queues(call: SqsCall) -> Result:
    asked = call.parameters
    found: Any = await call.door.aside(call.api.ask, calls.ListTopics(namespace=call.namespace))
    names = [name for name in found.topics if name.startswith(asked.queue_name_prefix)]
    return _page(call, "QueueUrls", names, asked.max_results, asked.next_token)


async def list_dead_letter_source_queues(call: SqsCall) -> Result:
    call.view()
    return await call.door.aside(_sources, call)


def _sources(call: SqsCall) -> Result:
    found: Any = call.api.ask(calls.ListTopics(namespace=call.namespace))
    target = call.queue.topic
    names = [
        topic
        for topic in found.topics
        if _settings(call, TopicName(call.namespace, topic)).dead_letter_topic == target
    ]
    asked = call.parameters
    return _page(call, "queueUrls", names, asked.max_results, asked.next_token, always=True)


def _page(
    call: SqsCall,
    field: str,
    names: Sequence[str],
    results_max: int | None,
    token: str,
    *,
    always: bool = False,
) -> Result:
    """`names` are sorted; the token is the last one of the page before."""
    if results_max is not None and not 1 <= results_max <= _PAGE_MAX:
        raise invalid("MaxResults", results_max, f"Must be between 1 and {_PAGE_MAX}.")
    if token:
        try:
            after = base64.urlsafe_b64decode(token.encode()).decode()
        except (binascii.Error, UnicodeError):
            raise invalid("NextToken", token, "It is none that was given out.") from None
        names = [name for name in names if name > after]
    shown = names[: results_max or _PAGE_MAX]
    result: dict[str, Any] = {}
    if shown or always:
        result[field] = [call.addresses.url(TopicName(call.namespace, each)) for each in shown]
    if results_max is not None and len(shown) < len(names):
        result["NextToken"] = base64.urlsafe_b64encode(shown[-1].encode()).decode()
    return result


async def delete_queue(call: SqsCall) -> Result:
    call.view()
    await call.door.aside(call.api.ask, calls.DeleteTopic(**_topic(call.queue)))
    return None


async def purge_queue(call: SqsCall) -> Result:
    call.view()
    purges, now_s = call.state.purges, call.api.clock.monotonic_ns() / 1e9
    if purges.get(call.queue, now_s):
        raise SqsProblem(
            "PurgeQueueInProgress",
            f"Only one PurgeQueue operation on {call.queue.topic} is allowed every 60 seconds.",
        )
    purges.put(call.queue, True, now_s)
    try:
        purge = calls.Purge(**_topic(call.queue))
        await call.door.long_calls.run(call.queue, call.api.ask, purge)
    except BaseException:
        purges.forget(call.queue)
        raise
    return None


async def get_queue_attributes(call: SqsCall) -> Result:
    names: list[str] = call.parameters.attribute_names
    for name in names:
        if name not in READABLE and name != "All":
            raise SqsProblem("InvalidAttributeName", f"Unknown Attribute {name:.100}.")
    view = call.view()
    wanted = READABLE if "All" in names else set(names)
    found = attributes_of(call.queue, view.settings, call.addresses)
    found["QueueArn"] = call.addresses.arn(call.queue)
    times: Any = call.api.ask(calls.DescribeTopic(**_topic(call.queue)))
    found["CreatedTimestamp"] = str((times.created_us or 0) // 1_000_000)
    found["LastModifiedTimestamp"] = str((times.updated_us or 0) // 1_000_000)
    if wanted.intersection(COUNTED):
        stats: Any = await call.door.aside(call.api.ask, calls.DescribeStats(**_topic(call.queue)))
        found |= _counts(stats)
    shown = {name: value for name, value in found.items() if name in wanted}
    return {"Attributes": shown} if shown else {}


def _counts(stats: TopicStats) -> dict[str, str]:
    visible, in_flight = stats.depth, 0
    for group in stats.groups:
        if group.group == GROUP:
            visible, in_flight = group.ready + group.retrying, group.in_flight
    return dict(zip(COUNTED, map(str, (visible, in_flight, stats.delayed)), strict=True))


async def set_queue_attributes(call: SqsCall) -> Result:
    return await call.door.aside(_set_attributes, call)


def _set_attributes(call: SqsCall) -> Result:
    given = call.parameters.attributes
    if "FifoQueue" in given:
        raise SqsProblem("InvalidAttributeName", "Unknown Attribute FifoQueue.")
    with call.state.changing:
        kept = _settings(call, call.queue).attributes
        changes = settings_of(
            call.queue, given, kept, lambda policy: _redrive(call, call.queue, policy)
        )
        _alter(call, changes)
    return None


def list_queue_tags(call: SqsCall) -> Result:
    tags = tags_of(call.view().settings)
    return {"Tags": tags} if tags else {}


async def tag_queue(call: SqsCall) -> Result:
    return await call.door.aside(_tag, call, call.parameters.tags, ())


async def untag_queue(call: SqsCall) -> Result:
    return await call.door.aside(_tag, call, {}, call.parameters.tag_keys)


def _tag(call: SqsCall, tags: dict[str, str], without: Iterable[str]) -> Result:
    with call.state.changing:
        settings = _settings(call, call.queue)
        kept = {key: value for key, value in tags_of(settings).items() if key not in without}
        _alter(call, {"attributes": with_tags(settings.attributes, {**kept, **tags})})
    return None


async def add_permission(call: SqsCall) -> Result:
    asked = call.parameters
    arn = call.addresses.arn(call.queue)
    statement = {
        "Sid": asked.label,
        "Effect": "Allow",
        "Principal": {"AWS": [f"arn:aws:iam::{account}:root" for account in asked.accounts]},
        "Action": [f"SQS:{action}" for action in asked.actions],
        "Resource": arn,
    }
    return await call.door.aside(_change_policy, call, asked.label, statement)


async def remove_permission(call: SqsCall) -> Result:
    return await call.door.aside(_change_policy, call, call.parameters.label, None)


def _change_policy(call: SqsCall, label: str, statement: dict[str, Any] | None) -> Result:
    """It is kept and shown; rights are a matter of keys."""
    with call.state.changing:
        _alter(call, {"attributes": _with_statement(call, label, statement)})
    return None


def _with_statement(call: SqsCall, label: str, statement: dict[str, Any] | None) -> dict[str, str]:
    kept = _settings(call, call.queue).attributes
    text = kept.get("sqs.Policy", "")
    policy = {"Version": "2012-10-17", "Id": f"{call.addresses.arn(call.queue)}/SQSDefaultPolicy"}
    known: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any]) if text else policy
    statements = [each for each in known.get("Statement", []) if each.get("Sid") != label]
    is_there = len(statements) < len(known.get("Statement", []))
    if is_there == (statement is not None):
        reason = "Already exists." if is_there else "can't find label on existing policy."
        raise invalid("Label", label, reason)
    rest = {name: value for name, value in kept.items() if name != "sqs.Policy"}
    if statement is not None:
        statements.append(statement)
    if not statements:
        return rest
    return {**rest, "sqs.Policy": msgspec.json.encode({**known, "Statement": statements}).decode()}


def _redrive(call: SqsCall, source: TopicName, policy: str) -> Redrive:
    redrive = parse_redrive(policy, call.addresses)
    call.check("manage", redrive.target.namespace)
    try:
        settings = call.api.settings(redrive.target)
    except TopicNotFound:
        raise invalid("RedrivePolicy", policy, "Dead letter target does not exist.") from None
    check_allows(redrive.target, settings, source, call.addresses)
    return redrive


def _settings(call: SqsCall, name: TopicName) -> TopicSettings:
    try:
        return call.api.settings(name)
    except TopicNotFound:
        raise no_queue() from None


def _alter(call: SqsCall, changes: dict[str, Any]) -> None:
    if changes:
        call.api.ask(calls.AlterTopic(**_topic(call.queue), settings=changes))


def _topic(name: TopicName) -> dict[str, Any]:
    return {"namespace": name.namespace, "topic": name.topic}


def _checked_name(name: str) -> str:
    base = name.removesuffix(FIFO_SUFFIX)
    if base and len(name) <= _NAME_LENGTH_MAX and _NAME_LETTERS.issuperset(base):
        return name
    raise SqsProblem(
        "InvalidParameterValue",
        "The name of a queue can only include alphanumeric characters, hyphens, or underscores. "
        f"1 to {_NAME_LENGTH_MAX} in length.",
    )
