"""What is posted: the body, and the headers that Standard Webhooks 1.0 wants."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.model.webhooks import WebhookFilter, WebhookSettings, secret_key
from penstock.record.batch import Message
from penstock.record.json_values import CONTENT_TYPE, as_datetime

_TRACE = ("traceparent", "tracestate")


class Posted(NamedTuple):
    """One request."""

    id: str
    """Stable over retries, so that a receiver knows what it has seen."""
    body: bytes
    headers: dict[str, str]


def posted(settings: WebhookSettings, topic: str, messages: Sequence[Message]) -> Posted:
    """Messages as one request."""
    first = messages[0]
    headers = {**settings.headers, "content-type": "application/json"}
    if settings.payload == "raw":
        body = first.value or b""
        headers["content-type"] = _text(first, CONTENT_TYPE) or "application/octet-stream"
    elif settings.batch is not None:
        body = msgspec.json.encode([envelope(topic, message) for message in messages])
    else:
        body = msgspec.json.encode(envelope(topic, first))
    for name in _TRACE:
        value = _text(first, name)
        if value:
            headers[name] = value
    return Posted(first.id, body, headers)


def envelope(topic: str, message: Message) -> dict[str, Any]:
    return {
        "type": _text(message, "type") or topic,
        "timestamp": as_datetime(message.timestamp_us).isoformat().replace("+00:00", "Z"),
        "data": _data(message.value),
    }


def signatures(id_: str, timestamp: int, body: bytes, secrets: Sequence[str]) -> str:
    """The header `webhook-signature`: one signature for each secret that is good."""
    signed = f"{id_}.{timestamp}.".encode() + body
    return " ".join(
        "v1," + base64.b64encode(hmac.digest(secret_key(each), signed, hashlib.sha256)).decode()
        for each in secrets
    )


def fits(wanted: WebhookFilter, message: Message) -> bool:
    """Whether a message is to be posted."""
    if wanted.key_prefix is not None:
        key = message.key or b""
        if not key.startswith(wanted.key_prefix.encode()):
            return False
    if wanted.types and _text(message, "type") not in wanted.types:
        return False
    return all(_text(message, name) == value for name, value in wanted.headers.items())


def _data(value: bytes | None) -> Any:
    """JSON as it is; other text as text; bytes as base64."""
    if value is None:
        return None
    try:
        msgspec.json.decode(value)
        return msgspec.Raw(value)
    except msgspec.MsgspecError:
        pass
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _text(message: Message, name: str) -> str:
    value = message.headers.get(name) or b""
    text = value.decode("ascii", "replace")
    return text if text.isprintable() else ""
