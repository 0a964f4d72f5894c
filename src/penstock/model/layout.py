"""Where the logs of a topic lie below a data folder: for the broker, and for readers beside it."""

from __future__ import annotations

from penstock.model.names import TopicName


def topic_prefix(name: TopicName) -> str:
    """Below which the logs of a topic are."""
    return f"topics/{name.namespace}/{name.folder}"


def partition_prefix(name: TopicName, number: int) -> str:
    return f"{topic_prefix(name)}/{number:05d}"
