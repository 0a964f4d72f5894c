"""Webhooks, and the requests that they made."""

from __future__ import annotations

from typing import Generic

from penstock.model.calls.base import Call, T_co, route
from penstock.model.values import Short
from penstock.model.webhooks import (
    Webhook,
    WebhookAttempts,
    WebhookList,
    WebhookMade,
    WebhookSettings,
)


class WebhookCall(Call[T_co], Generic[T_co], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question about one webhook of a namespace."""

    webhook: str


@route("GET", "/webhooks", "describe", WebhookList, tag="webhooks")
class ListWebhooks(Call[WebhookList], frozen=True, kw_only=True):
    """The webhooks of a namespace, and how they stand."""


@route("PUT", "/webhooks/{webhook}", "manage", WebhookMade, tag="webhooks", repeatable=True)
class PutWebhook(WebhookCall[WebhookMade], frozen=True, kw_only=True):
    """Make a webhook, or change one. Only a server posts; it begins with the oldest message."""

    settings: WebhookSettings
    secret: Short | None = None
    """`whsec_` and base64 of 24 to 64 bytes; by default one is made, or stays as it is."""


@route("GET", "/webhooks/{webhook}", "describe", Webhook, tag="webhooks")
class DescribeWebhook(WebhookCall[Webhook], frozen=True, kw_only=True):
    """A webhook, and how it stands."""


@route("DELETE", "/webhooks/{webhook}", "manage", tag="webhooks")
class DeleteWebhook(WebhookCall[None], frozen=True, kw_only=True):
    """With its queue group; its dead letters stay."""


@route("POST", "/webhooks/{webhook}/pause", "manage", Webhook, tag="webhooks", repeatable=True)
class PauseWebhook(WebhookCall[Webhook], frozen=True, kw_only=True):
    """Post nothing until it is resumed."""


@route("POST", "/webhooks/{webhook}/resume", "manage", Webhook, tag="webhooks", repeatable=True)
class ResumeWebhook(WebhookCall[Webhook], frozen=True, kw_only=True):
    """Go on, also after it was disabled because its receiver failed for days."""


@route("POST", "/webhooks/{webhook}/rotate", "manage", WebhookMade, tag="webhooks")
class RotateWebhook(WebhookCall[WebhookMade], frozen=True, kw_only=True):
    """A new secret; for a day requests are signed with the old one as well."""


@route("POST", "/webhooks/{webhook}/test", "manage", tag="webhooks", repeatable=True)
class SendTestWebhook(WebhookCall[None], frozen=True, kw_only=True):
    """Post an example; the attempts tell what came of it."""


@route("GET", "/webhooks/{webhook}/attempts", "manage", WebhookAttempts, tag="webhooks")
class ListWebhookAttempts(WebhookCall[WebhookAttempts], frozen=True, kw_only=True):
    """The last requests to the receiver, and what it answered, newest first."""
