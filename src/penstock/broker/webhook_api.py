"""The calls of the API that are about webhooks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from penstock.broker.api_part import ApiPart
from penstock.errors import TopicNotFound, WebhookNotFound
from penstock.model import calls
from penstock.model.names import topic_name
from penstock.model.webhooks import (
    Webhook,
    WebhookAttempt,
    WebhookAttempts,
    WebhookList,
    WebhookMade,
    WebhookRecord,
    webhook_group,
)


class WebhookApi(ApiPart):
    """Webhooks, as doors and the server that posts see them."""

    def webhook_records(self) -> list[WebhookRecord]:
        """All of them, with their secrets: for the server that posts."""
        return self._broker.webhooks.all()

    def on_webhooks(self, callback: Callable[[], None]) -> None:
        """Call back, from any thread, when a webhook was changed or is to be tested."""
        self._broker.webhooks.on_change = callback

    def webhook_tests(self) -> list[tuple[str, str]]:
        """Namespace and name of those that somebody wants to be tested, each once."""
        return self._broker.webhooks.take_tests()

    def webhook_attempted(self, record: WebhookRecord, attempt: WebhookAttempt) -> None:
        self._broker.webhooks.attempted(record.namespace, record.name, attempt)

    def disable_webhook(self, record: WebhookRecord, reason: str) -> None:
        """Its receiver is gone, or failed for too long."""
        self._broker.webhooks.change(record.namespace, record.name, disabled=reason)

    def list_webhooks(self, call: calls.ListWebhooks) -> WebhookList:
        found = self._broker.webhooks.all(topic_name("any", call.namespace).namespace)
        return WebhookList(webhooks=[self._broker.webhooks.view(record) for record in found])

    def put_webhook(self, call: calls.PutWebhook) -> WebhookMade:
        self._broker.topic(topic_name(call.settings.topic, call.namespace))
        is_known = self._knows_webhook(call)
        if self._broker.tenants.limited and not is_known:
            self._broker.tenants.check(call.namespace, "webhooks", 1)
        known = call.secret is None and is_known
        record = self._broker.webhooks.put(call.namespace, call.webhook, call.settings, call.secret)
        return WebhookMade(
            webhook=self._broker.webhooks.view(record), secret="" if known else record.secret
        )

    def describe_webhook(self, call: calls.DescribeWebhook) -> Webhook:
        return self._broker.webhooks.view(self._broker.webhooks.get(call.namespace, call.webhook))

    def delete_webhook(self, call: calls.DeleteWebhook) -> None:
        record = self._broker.webhooks.delete(call.namespace, call.webhook)
        with suppress(TopicNotFound):  # deleted before
            name = topic_name(record.settings.topic, call.namespace)
            self._broker.delete_group(name, webhook_group(record.name))

    def pause_webhook(self, call: calls.PauseWebhook) -> Webhook:
        return self._broker.webhooks.view(
            self._broker.webhooks.change(call.namespace, call.webhook, paused=True)
        )

    def resume_webhook(self, call: calls.ResumeWebhook) -> Webhook:
        record = self._broker.webhooks.change(
            call.namespace, call.webhook, paused=False, disabled=""
        )
        return self._broker.webhooks.view(record)

    def rotate_webhook(self, call: calls.RotateWebhook) -> WebhookMade:
        record = self._broker.webhooks.rotate(call.namespace, call.webhook)
        return WebhookMade(webhook=self._broker.webhooks.view(record), secret=record.secret)

    def send_test_webhook(self, call: calls.SendTestWebhook) -> None:
        self._broker.webhooks.ask_for_test(call.namespace, call.webhook)

    def list_webhook_attempts(self, call: calls.ListWebhookAttempts) -> WebhookAttempts:
        return WebhookAttempts(
            attempts=self._broker.webhooks.attempts(call.namespace, call.webhook)
        )

    def _knows_webhook(self, call: calls.PutWebhook) -> bool:
        with suppress(WebhookNotFound):
            self._broker.webhooks.get(call.namespace, call.webhook)
            return True
        return False
