"""Webhooks: messages of a topic that a server posts to a URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from penstock.client.arguments import seconds
from penstock.client.base import AsyncCalls, SyncCalls
from penstock.durations import Duration
from penstock.errors import InvalidInput
from penstock.model import calls
from penstock.model.webhooks import Webhook, WebhookAttempt, WebhookMade, WebhookSettings


class WebhookOptions(TypedDict, total=False):
    """What can be said of a webhook beside its topic and URL."""

    types: Sequence[str]
    """Only messages whose header `type` is one of these."""
    key_prefix: str
    """Only messages whose key begins with this."""
    only_headers: Mapping[str, str]
    """Only messages with these headers."""
    payload: Literal["envelope", "raw"]
    """`{"type", "timestamp", "data"}`, or the value of the message itself."""
    batch: int
    """So many messages, at most, in one request, as a list."""
    retries: Literal["topic", "standard"]
    """As the topic's settings say, or ten attempts within about three days."""
    concurrency: int
    """Requests at the same time; 8 by default."""
    rate: float
    """Requests a second."""
    timeout: Duration
    """How long an answer may take; 15 s by default."""
    headers: Mapping[str, str]
    """Sent with each request."""
    private: bool
    """The URL may lead to a private address, if the server allows that network."""
    paused: bool


_FILTERS = {"key_prefix": "key_prefix", "only_headers": "headers", "types": "types"}


def _put(
    namespace: str, name: str, secret: str | None, topic: str, url: str, options: WebhookOptions
) -> calls.PutWebhook:
    given: dict[str, Any] = {"topic": topic, "url": url, **options}
    given["filter"] = {
        field: given.pop(option) for option, field in _FILTERS.items() if option in given
    }
    if "timeout" in given:
        given["timeout"] = seconds(given["timeout"], "timeout")
    if "batch" in given:
        given["batch"] = {"max_messages": given["batch"]}
    try:
        settings = msgspec.convert(given, WebhookSettings)
    except msgspec.ValidationError as exc:
        raise InvalidInput(str(exc)) from None
    return calls.PutWebhook(namespace=namespace, webhook=name, settings=settings, secret=secret)


class WebhookCalls(SyncCalls):
    def create_webhook(
        self,
        topic: str,
        url: str,
        *,
        name: str | None = None,
        secret: str | None = None,
        **settings: Unpack[WebhookOptions],
    ) -> WebhookMade:
        """Have a server post the messages of a topic to a URL, from the oldest on.

        Its name is that of the topic unless another is given; the webhook of that name is changed.
        The secret is in what returns, this once; receivers check the signatures with it.
        """
        return self._ask(_put(self._namespace, name or topic, secret, topic, url, settings))

    def webhooks(self) -> list[Webhook]:
        """Those of the namespace, and how they stand."""
        return self._ask(calls.ListWebhooks(namespace=self._namespace)).webhooks

    def webhook(self, name: str) -> Webhook:
        """One, and how it stands; never its secret."""
        return self._ask(calls.DescribeWebhook(namespace=self._namespace, webhook=name))

    def webhook_attempts(self, name: str) -> list[WebhookAttempt]:
        """The last requests to its receiver, newest first."""
        asked = calls.ListWebhookAttempts(namespace=self._namespace, webhook=name)
        return self._ask(asked).attempts

    def pause_webhook(self, name: str) -> Webhook:
        """Post nothing until it is resumed."""
        return self._ask(calls.PauseWebhook(namespace=self._namespace, webhook=name))

    def resume_webhook(self, name: str) -> Webhook:
        """Go on, also after it was disabled because its receiver failed for days."""
        return self._ask(calls.ResumeWebhook(namespace=self._namespace, webhook=name))

    def rotate_webhook(self, name: str) -> WebhookMade:
        """A new secret; for a day requests are signed with the old one as well."""
        return self._ask(calls.RotateWebhook(namespace=self._namespace, webhook=name))

    def test_webhook(self, name: str) -> None:
        """Have an example posted; `webhook_attempts` tells what came of it."""
        self._ask(calls.SendTestWebhook(namespace=self._namespace, webhook=name))

    def delete_webhook(self, name: str) -> None:
        """With its queue group; its dead letters stay."""
        self._ask(calls.DeleteWebhook(namespace=self._namespace, webhook=name))


class AsyncWebhookCalls(AsyncCalls):
    async def create_webhook(
        self,
        topic: str,
        url: str,
        *,
        name: str | None = None,
        secret: str | None = None,
        **settings: Unpack[WebhookOptions],
    ) -> WebhookMade:
        """Have a server post the messages of a topic to a URL, from the oldest on.

        Its name is that of the topic unless another is given; the webhook of that name is changed.
        The secret is in what returns, this once; receivers check the signatures with it.
        """
        return await self._ask(_put(self._namespace, name or topic, secret, topic, url, settings))

    async def webhooks(self) -> list[Webhook]:
        """Those of the namespace, and how they stand."""
        return (await self._ask(calls.ListWebhooks(namespace=self._namespace))).webhooks

    async def webhook(self, name: str) -> Webhook:
        """One, and how it stands; never its secret."""
        return await self._ask(calls.DescribeWebhook(namespace=self._namespace, webhook=name))

    async def webhook_attempts(self, name: str) -> list[WebhookAttempt]:
        """The last requests to its receiver, newest first."""
        asked = calls.ListWebhookAttempts(namespace=self._namespace, webhook=name)
        return (await self._ask(asked)).attempts

    async def pause_webhook(self, name: str) -> Webhook:
        """Post nothing until it is resumed."""
        return await self._ask(calls.PauseWebhook(namespace=self._namespace, webhook=name))

    async def resume_webhook(self, name: str) -> Webhook:
        """Go on, also after it was disabled because its receiver failed for days."""
        return await self._ask(calls.ResumeWebhook(namespace=self._namespace, webhook=name))

    async def rotate_webhook(self, name: str) -> WebhookMade:
        """A new secret; for a day requests are signed with the old one as well."""
        return await self._ask(calls.RotateWebhook(namespace=self._namespace, webhook=name))

    async def test_webhook(self, name: str) -> None:
        """Have an example posted; `webhook_attempts` tells what came of it."""
        await self._ask(calls.SendTestWebhook(namespace=self._namespace, webhook=name))

    async def delete_webhook(self, name: str) -> None:
        """With its queue group; its dead letters stay."""
        await self._ask(calls.DeleteWebhook(namespace=self._namespace, webhook=name))
