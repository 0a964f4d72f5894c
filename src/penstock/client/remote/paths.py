"""Where a server keeps what."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from penstock.model.names import DEFAULT_NAMESPACE, TopicName


def base_path(namespace: str) -> str:
    return "/v1" if namespace == DEFAULT_NAMESPACE else f"/v1/namespaces/{namespace}"


def topic_path(name: TopicName) -> str:
    return f"{base_path(name.namespace)}/topics/{name.topic}"


def segment(text: str) -> str:
    """A name as a part of a path."""
    return quote(text, safe="")


def query(options: dict[str, Any]) -> str:
    """What goes behind a path; nothing where there are no options."""
    return "?" + urlencode(options) if options else ""
