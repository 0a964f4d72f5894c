"""Webhooks: messages of a topic that are posted to a URL, signed as Standard Webhooks has it."""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from penstock.durations import parse_ms
from penstock.errors import InvalidInput
from penstock.model.values import Seconds, Short

SECRET_PREFIX = "whsec_"
_SECRET_BYTES_MIN, _SECRET_BYTES_MAX = 24, 64
_TIMEOUT_MS_MAX = 60_000
_OWN_HEADERS = ("host", "content-length", "content-type", "transfer-encoding", "connection")
HEADERS_MAX = 20

STANDARD_SCHEDULE_S = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Between the attempts, as the standard recommends: ten of them within about three days."""


class WebhookFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages are posted: those that all of this fits. The others count as done."""

    key_prefix: Short | None = None
    headers: dict[str, str] = {}
    types: list[Short] = []
    """What the header `type` may be."""


class WebhookBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several messages in one request, as a JSON list of envelopes."""

    max_messages: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to, what and how."""

    topic: str
    url: Annotated[str, msgspec.Meta(max_length=2048)]
    filter: WebhookFilter = WebhookFilter()
    payload: Literal["envelope", "raw"] = "envelope"
    """`envelope`: `{"type", "timestamp", "data"}`; `raw`: the value of the message itself."""
    batch: WebhookBatch | None = None
    retries: Literal["topic", "standard"] = "topic"
    """`topic`: its `max_retries` and backoff; `standard`: ten attempts within about three days."""
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=100)] = 8
    """Requests at the same time."""
    rate: Annotated[float, msgspec.Meta(gt=0, le=100_000)] | None = None
    """Requests a second; null: as many as it takes."""
    timeout: Seconds = "15s"
    headers: dict[str, str] = {}
    """Sent with each request."""
    private: bool = False
    """The URL may lead to a private address, if the server's configuration allows that network."""
    paused: bool = False


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook, and how it stands."""

    name: str
    namespace: str
    group: str
    """The queue group that reads the topic for it: its lag, leases and dead letters are there."""
    settings: WebhookSettings
    created_at_us: int
    disabled: str = ""
    """Why it is disabled; empty: it is not."""
    delivered: int = 0
    """Requests since the server began that the receiver took."""
    failed: int = 0
    failing_since_us: int | None = None


class WebhookRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All that is stored of a webhook."""

    namespace: str
    name: str
    settings: WebhookSettings
    secret: str
    created_at_us: int
    old_secret: str = ""
    old_until_us: int = 0
    disabled: str = ""

    def secrets(self, now_us: int) -> list[str]:
        """Those that sign: after a rotation the old one, too, for a day."""
        old = [self.old_secret] if self.old_secret and now_us < self.old_until_us else []
        return [self.secret, *old]


class WebhookMade(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook and, this once, the secret that its receiver checks signatures with."""

    webhook: Webhook
    secret: str


class WebhookList(msgspec.Struct, frozen=True, kw_only=True):
    webhooks: list[Webhook]


class WebhookAttempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request to a receiver, and what came of it."""

    at_us: int
    message_id: str
    attempt: int
    took_ms: int
    status: int | None = None
    """Of the answer; null: there was none."""
    error: str = ""
    response: str = ""
    """The first 4 KiB of what the receiver answered."""
    messages: int = 1
    test: bool = False


class WebhookAttempts(msgspec.Struct, frozen=True, kw_only=True):
    """The newest first; a server remembers the last hundred since it began."""

    attempts: list[WebhookAttempt]


def check_webhook(settings: WebhookSettings) -> None:
    """Raise InvalidInput for what can never work."""
    try:
        parts = urlsplit(settings.url)
        port = parts.port
    except ValueError as exc:
        raise InvalidInput(f"url {settings.url!r:.200}: {exc}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidInput(f"url {settings.url!r:.200}: give https://host/path")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("url: a user or password in a URL ends up in logs; use `headers`")
    if len(settings.headers) > HEADERS_MAX:
        raise InvalidInput(f"headers: {HEADERS_MAX} at most")
    for name, value in settings.headers.items():
        if name.lower() in _OWN_HEADERS or name.lower().startswith("webhook-"):
            raise InvalidInput(f"headers: {name!r} is set by the server")
        if not _is_field(name) or not value.isprintable() or not value.isascii():
            raise InvalidInput(f"headers: {name!r:.100} cannot be sent")
    if settings.payload == "raw" and settings.batch is not None:
        raise InvalidInput("batch: several messages need the envelope")
    if not 100 <= parse_ms(settings.timeout, "timeout") <= _TIMEOUT_MS_MAX:
        raise InvalidInput("timeout: from 100ms to 60s")


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def secret_key(secret: str) -> bytes:
    """The bytes that sign; InvalidInput for what is no secret."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not (
        _SECRET_BYTES_MIN <= len(key) <= _SECRET_BYTES_MAX
    ):
        raise InvalidInput(
            f"a secret is {SECRET_PREFIX} and the base64 of {_SECRET_BYTES_MIN} to "
            f"{_SECRET_BYTES_MAX} bytes; leave it out, and one is made"
        )
    return key


GROUP_PREFIX = "webhook."


def webhook_group(name: str) -> str:
    """The queue group that reads for a webhook."""
    return GROUP_PREFIX + name


def _is_field(name: str) -> bool:
    return bool(name) and all(c.isascii() and (c.isalnum() or c in "-_.") for c in name)
