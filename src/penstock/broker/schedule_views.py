"""Schedules as they are asked for and shown, and as the broker keeps them."""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec

from penstock import durations
from penstock.broker.check_text import check_text
from penstock.durations import Duration, parse_ns, parse_us
from penstock.errors import InvalidInput
from penstock.model.calls import PutSchedule
from penstock.model.names import group_name, topic_name
from penstock.model.schedules import (
    NEXT_SHOWN,
    SCHEDULE_BYTES_MAX,
    SCHEDULE_HEADER,
    SCHEDULED_FOR_HEADER,
    ScheduleDescription,
    ScheduleFire,
)
from penstock.model.settings import parse_ttl_us
from penstock.model.values import (
    Time,
    as_duration,
    headers_to_bytes,
    headers_to_text,
    parse_time,
    to_bytes,
    to_text,
)
from penstock.record.json_values import with_content_type
from penstock.record.schema import Priority, parse_priority, ulid_text
from penstock.schedule.calendar import check_timing
from penstock.schedule.definition import CATCH_UP_US_MAX, ScheduleDefinition, ScheduleTiming
from penstock.schedule.state import FIRES_KEPT, Fire, ScheduleState


def definition_of(call: PutSchedule) -> ScheduleDefinition:
    """What a call asks for, checked, or InvalidInput."""
    topic_name(call.topic, call.namespace)
    for name, text in (("cron", call.cron), ("timezone", call.timezone)):
        if text is not None:
            check_text(name, text)
    timing = ScheduleTiming(
        cron=None if call.cron is None else " ".join(call.cron.split()),
        every_us=_us("every", call.every),
        at_us=_moment_us("at", call.at),
        timezone=call.timezone,
        start_us=_moment_us("start", call.start),
        end_us=_moment_us("end", call.end),
        jitter_us=_us("jitter", call.jitter) or 0,
    )
    check_timing(timing)
    if call.overlap != "allow" and call.group is None:
        raise InvalidInput(
            f"overlap={call.overlap!r} asks whether the last message is settled: name the group "
            "by which"
        )
    catch_up_us = _us("catch_up", call.catch_up) or 0
    if catch_up_us > CATCH_UP_US_MAX:
        raise InvalidInput("catch_up must be at most 366 days")
    value, headers = _payload(call)
    definition = ScheduleDefinition(
        topic=call.topic,
        timing=timing,
        value=value,
        key=to_bytes("key", call.key, call.key_base64),
        headers=headers,
        priority=int(parse_priority(call.priority)),
        ttl_us=None if call.ttl is None else parse_ttl_us(as_duration(call.ttl)),
        overlap=call.overlap,
        group=None if call.group is None else group_name(call.group),
        catch_up_us=catch_up_us,
        catch_up_policy=call.catch_up_policy,
    )
    if definition.payload_bytes > SCHEDULE_BYTES_MAX:
        raise InvalidInput(
            f"the message of a schedule has {definition.payload_bytes:,} bytes; at most "
            f"{SCHEDULE_BYTES_MAX:,}. Publish where the data is instead"
        )
    return definition


def described(state: ScheduleState, *, in_full: bool) -> ScheduleDescription:
    """How a schedule stands: `in_full` with its next 10 and last 20 fires, else with one each."""
    definition, timing = state.definition, state.definition.timing
    value, value_base64 = to_text(definition.value)
    key, key_base64 = to_text(definition.key)
    last = state.fires[: -FIRES_KEPT - 1 : -1] if in_full else state.fires[:-2:-1]
    return ScheduleDescription(
        name=state.name.name,
        topic=definition.topic,
        value=value,
        value_base64=value_base64,
        key=key,
        key_base64=key_base64,
        headers=headers_to_text(definition.headers),
        priority=Priority(definition.priority).name.lower(),
        ttl=_text(definition.ttl_us),
        cron=timing.cron,
        every=_text(timing.every_us),
        at_us=timing.at_us,
        timezone=timing.timezone,
        start_us=timing.start_us,
        end_us=timing.end_us,
        jitter=_text(timing.jitter_us or None),
        overlap=definition.overlap,
        group=definition.group,
        catch_up=durations.text(definition.catch_up_us * 1000),
        catch_up_policy=definition.catch_up_policy,
        paused=state.paused,
        created_us=state.created_us,
        fired=state.fired,
        skipped=state.skipped,
        buffered_us=state.buffered_us,
        error=state.trouble or (state.fires[-1].error if state.fires else ""),
        next_us=_next_us(state, NEXT_SHOWN if in_full else 1),
        last=[fire_view(fire) for fire in last],
    )


def fire_view(fire: Fire) -> ScheduleFire:
    is_known = fire.offset >= 0
    return ScheduleFire(
        number=fire.number,
        scheduled_for_us=fire.scheduled_us,
        fired_at_us=fire.made_us,
        kind=fire.kind,
        id=ulid_text(int.from_bytes(fire.ulid, "big")) if fire.ulid else "",
        partition=fire.partition if is_known else None,
        offset=fire.offset if is_known else None,
        error=fire.error,
    )


def _next_us(state: ScheduleState, count: int) -> list[int]:
    if state.paused:
        return []
    try:
        return list(islice(state.calendar.after(state.cursor_us), count))
    except InvalidInput:  # its time zone is gone, which its error says
        return []


def _payload(call: PutSchedule) -> tuple[bytes | None, dict[str, bytes | None]]:
    headers = headers_to_bytes(call.headers)
    for name in (SCHEDULE_HEADER, SCHEDULED_FOR_HEADER):
        if name in headers:
            raise InvalidInput(f"the header {name} is set by the fire itself")
    value: Any = call.value
    if value is None or isinstance(value, str):
        return to_bytes("value", value, call.value_base64), headers
    if call.value_base64 is not None:
        raise InvalidInput("give value or value_base64, not both")
    return msgspec.json.encode(value), with_content_type(headers)


def _us(name: str, duration: Duration | None) -> int | None:
    return None if duration is None else parse_ns(as_duration(duration), name) // 1000


def _moment_us(name: str, moment: Time | None) -> int | None:
    return None if moment is None else parse_us(parse_time(moment, name), name)


def _text(duration_us: int | None) -> str | None:
    return None if duration_us is None else durations.text(duration_us * 1000)
