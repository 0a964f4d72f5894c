"""The API of a broker that another process may have: what a dashboard needs of it.

Every call goes over the link. Receiving, fetching and what else only the owner of the folder can do
is Unavailable. Webhooks are the business of servers: here nothing is posted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn, TypeVar

from penstock.broker.api import Api
from penstock.client.client import Client
from penstock.client.link import Link
from penstock.client.waiting import run
from penstock.errors import Unavailable
from penstock.model.calls import Call
from penstock.model.deliveries import Settle, Settling, Verb
from penstock.model.messages import NewMessage, PublishedMessage
from penstock.model.names import TopicName
from penstock.model.published import Delayed
from penstock.model.values import Seconds, as_duration, parse_time
from penstock.model.webhooks import WebhookRecord

T = TypeVar("T")


class LinkApi(Api):
    def __init__(self, link: Link) -> None:
        self._link = link
        self.is_open = _is_open_elsewhere

    @property
    def _broker(self) -> NoReturn:  # type: ignore[override]
        raise Unavailable("another process has the data folder, and this can only be asked of it")

    @property
    def clock(self) -> Any:
        return self._link.clock

    @property
    def closed(self) -> bool:
        return self._link.closed

    def close(self) -> None:
        self._link.close()

    def ask(self, call: Call[T]) -> T | Future[None]:
        return run(self._link.ask(call))

    def publish_each(
        self, name: TopicName, messages: Sequence[NewMessage]
    ) -> tuple[list[PublishedMessage], list[Future[None]]]:
        return [self._publish(name, each) for each in messages], []

    def settle(self, verb: Verb, name: TopicName | None, group: str, named: Settle) -> Settling:
        if name is None:
            raise Unavailable("name the topic: another process has the data folder")
        refused, _ = run(self._link.settle(verb, name, group, named))
        return Settling(refused, ())

    def on_webhooks(self, callback: Callable[[], None]) -> None:
        pass

    def count_connections_by(self, count: Callable[[str], int]) -> None:
        pass

    def check_quota(self, namespace: str, quota: str, more: int) -> None:
        pass  # connections are counted by servers

    def webhook_records(self) -> list[WebhookRecord]:
        return []

    def webhook_tests(self) -> list[tuple[str, str]]:
        return []

    def failed_logs(self) -> list[str]:
        return []

    def is_lost(self) -> bool:
        return False

    def has_room(self) -> bool:
        return True

    def _publish(self, name: TopicName, message: NewMessage) -> PublishedMessage:
        client = Client(self._link, name.namespace)
        deliver_at = message.deliver_at
        how: dict[str, Any] = {
            "ttl": _duration(message.ttl),
            "delay": _duration(message.delay),
            "deliver_at": None if deliver_at is None else parse_time(deliver_at, "deliver_at"),
            "dedup_window": _duration(message.dedup_window),
        }
        placed = client.publish(
            name.topic,
            message.value_bytes(),
            key=message.key_bytes(),
            headers=message.header_bytes(),
            priority=message.priority,
            partition=message.partition,
            dedup_id=message.dedup_id,
            **how,
        )
        if isinstance(placed, Delayed):
            return PublishedMessage(
                id=placed.id, duplicate=placed.duplicate, deliver_at_us=placed.deliver_at_us
            )
        return PublishedMessage(
            id=placed.id,
            partition=placed.partition,
            offset=None if placed.offset < 0 else placed.offset,
            duplicate=placed.duplicate,
        )


def _duration(given: Seconds | None) -> Any:
    return None if given is None else as_duration(given)


def _is_open_elsewhere(name: TopicName) -> bool:
    return True  # who has the folder sees to it
