"""What the parts of the API share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.clock import Clock
from penstock.durations import parse_us
from penstock.model.calls import Call, TopicCall
from penstock.model.names import TopicName, topic_name
from penstock.model.values import Time, parse_time

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class ApiPart:
    """Some of the calls, answered from one broker."""

    def __init__(self, broker: Broker, *, answer_bytes_max: int | None = None) -> None:
        """`answer_bytes_max`: about as many bytes of messages are in one answer, or one message."""
        self._broker = broker
        self._answer_bytes_max = answer_bytes_max

    @property
    def clock(self) -> Clock:
        return self._broker.clock


def namespace_of(call: Call[Any]) -> str:
    return topic_name("any", call.namespace).namespace


def topic_of(call: TopicCall[Any]) -> TopicName:
    return topic_name(call.topic, call.namespace)


def moment_us(name: str, value: Time | None) -> int | None:
    return None if value is None else parse_us(parse_time(value, name), name)
