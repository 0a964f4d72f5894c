"""Names of topics, namespaces and groups, checked at the door."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from penstock.errors import InvalidInput

DEFAULT_NAMESPACE = "default"
DEAD_LETTER_SUFFIX = ".dlq"

TOPIC_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,248}"
"""As Kafka's, which also covers the names of SQS queues."""
_TOPIC = re.compile(TOPIC_PATTERN)
_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_SUFFIX = re.compile(r"[._-][a-z0-9._-]{0,31}")
_FOLDER_LETTERS_MAX = 200
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class TopicName(NamedTuple):
    """A topic in its namespace."""

    namespace: str
    topic: str

    def __str__(self) -> str:
        short = self.namespace == DEFAULT_NAMESPACE
        return self.topic if short else f"{self.namespace}/{self.topic}"

    @property
    def folder(self) -> str:
        """The name of its folder, which no other topic has, on a case-blind disk either.

        `Orders` and `orders` are two topics. A name with capitals gets a hash, after a character
        that no name has.
        """
        lower = self.topic.lower()
        if lower == self.topic:
            return lower
        digest = blake2b(self.topic.encode(), digest_size=8).hexdigest()
        return f"{lower[:_FOLDER_LETTERS_MAX]}~{digest}"

    @property
    def is_dead_letters(self) -> bool:
        return self.topic.endswith(DEAD_LETTER_SUFFIX)

    @property
    def dead_letters(self) -> TopicName:
        """Where the dead letters of this topic go, unless its settings name another suffix."""
        return TopicName(self.namespace, self.topic + DEAD_LETTER_SUFFIX)


def topic_name(topic: str, namespace: str = DEFAULT_NAMESPACE) -> TopicName:
    try:
        return _known_topic(topic, namespace)
    except TypeError:  # nothing that could be remembered, let alone a name
        return _checked_topic(topic, namespace)


def _checked_topic(topic: str, namespace: str) -> TopicName:
    base = topic.removesuffix(DEAD_LETTER_SUFFIX) if isinstance(topic, str) else topic
    rule = "letters, digits, '.', '_', '-'; 249 at most, the first a letter, a digit or '_'"
    _check("topic", base, _TOPIC, rule)
    _check("namespace", namespace, _NAMESPACE, "a-z, 0-9, '-'; 64 at most, the first a-z or 0-9")
    return TopicName(namespace, topic)


def parse_topic(text: str) -> TopicName:
    """A topic as `str` of its name writes it."""
    namespace, slash, topic = text.rpartition("/")
    return topic_name(topic, namespace) if slash else topic_name(text)


def group_name(group: str) -> str:
    try:
        return _known_group(group)
    except TypeError:
        return _checked_group(group)


def _checked_group(group: str) -> str:
    _check("group", group, _GROUP, "letters, digits, '.', '_', '-'; 128 at most")
    return group


def schedule_name(name: str) -> str:
    """The rule of groups: a schedule that a worker has is its group, too."""
    _check("schedule", name, _GROUP, "letters, digits, '.', '_', '-'; 128 at most")
    return name


def check_suffix(suffix: str) -> None:
    rule = "a-z, 0-9, '.', '_', '-'; 32 at most, the first '.', '_' or '-'"
    _check("dead_letter_suffix", suffix, _SUFFIX, rule)


def is_group_name(text: str) -> bool:
    return _GROUP.fullmatch(text) is not None


def stream_group(group: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """A stream group as the broker knows it, within its namespace: written as a topic is."""
    return str(TopicName(topic_name("any", namespace).namespace, group_name(group)))


def parse_stream_group(text: str) -> tuple[str, str]:
    """The namespace and the group of what `stream_group` wrote, or InvalidInput."""
    namespace, slash, group = text.rpartition("/") if isinstance(text, str) else ("", "", text)
    namespace = topic_name("any", namespace).namespace if slash else DEFAULT_NAMESPACE
    return namespace, group_name(group)


def dedup_names(ids: Sequence[str | bytes | None], messages: int) -> list[bytes | None]:
    """Deduplication ids as they are compared, or InvalidInput."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence) or len(ids) != messages:
        raise InvalidInput(f"{messages} messages need as many deduplication ids; got {ids!r:.100}")
    for each in ids:
        if each is not None and (not isinstance(each, str | bytes) or not each):
            raise InvalidInput(f"a deduplication id is text or bytes, not empty; not {each!r:.100}")
    try:
        return [each.encode() if isinstance(each, str) else each for each in ids]
    except UnicodeEncodeError as exc:
        raise InvalidInput(f"a deduplication id cannot be stored as UTF-8: {exc}") from None


def _check(kind: str, name: object, pattern: re.Pattern[str], rule: str) -> None:
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise InvalidInput(f"{kind} name {name!r:.100} is not allowed; it is made of {rule}")


# Names are few, and each comes with every call: those that passed are not checked again.
_known_topic = lru_cache(maxsize=4096)(_checked_topic)
_known_group = lru_cache(maxsize=4096)(_checked_group)
