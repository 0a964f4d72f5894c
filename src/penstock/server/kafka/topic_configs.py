"""The settings of a topic by the names that Kafka has for them, and by ours after `penstock.`.

Pure. What Kafka knows and Penstock has no use for is taken without a word, as a broker takes
settings for features that it does not use; what nobody knows is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from penstock.model.settings import TopicSettings
from penstock.server.kafka.codes import Code, Refused

OWN = "penstock."

_WITHOUT_LIMIT = "-1"
_FLUSH_NEVER = str((1 << 63) - 1)
_FROM_CODEC = {"none": "uncompressed"}
_TO_CODEC = {
    "uncompressed": "none",
    "producer": "none",
    "gzip": "gzip",
    "lz4": "lz4",
    "zstd": "zstd",
}
_TAKEN_UNUSED = {
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "message.downconversion.enable",
    "message.format.version",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.difference.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.storage.enable",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
}
_STRING, _INT, _LONG, _LIST = 2, 3, 5, 7


class TopicConfig(NamedTuple):
    name: str
    value: str
    is_default: bool
    kind: int
    """The number that the protocol has for a type."""


def settings_of(configs: Mapping[str, str | None]) -> dict[str, Any]:
    """Settings as `penstock` takes them, from configs as Kafka has them; None is the default.
    Raises Refused."""
    given: dict[str, Any] = {}
    defaults = {config.name: config.value for config in configs_of(TopicSettings())}
    for name, value in configs.items():
        if name in _TAKEN_UNUSED:
            continue
        if name not in defaults:
            raise Refused(Code.INVALID_CONFIG, f"unknown topic config {name!r:.100}")
        text = defaults[name] if value is None else value
        given |= _own(name, text) if name.startswith(OWN) else _foreign(name, text)
    if given.get("compacted") and "retention.ms" not in configs and _keeps_all(configs):
        given["retention"] = None
    return given


def configs_of(settings: TopicSettings) -> list[TopicConfig]:
    """All configs of a topic, first those that Kafka has."""
    plain = TopicSettings()
    found = [
        TopicConfig(name, value, value == usual, kind)
        for (name, value, kind), (_, usual, _) in zip(_shown(settings), _shown(plain), strict=True)
    ]
    for name in TopicSettings.__struct_fields__:
        value, usual = getattr(settings, name), getattr(plain, name)
        text = msgspec.json.encode(value).decode().strip('"')
        given = name.removesuffix("_ms")
        if given != name and value is not None:
            text = f"{value}ms"
        elif name == "backoff":
            text = f'["{value[0]}ms",{value[1]},"{value[2]}ms"]'
        found.append(TopicConfig(OWN + given, text, value == usual, _STRING))
    return found


def _shown(settings: TopicSettings) -> list[tuple[str, str, int]]:
    def limit(value: int | None) -> str:
        return _WITHOUT_LIMIT if value is None else str(value)

    policy = "delete"
    if settings.compacted:
        policy = "compact" if settings.retention_ms is None else "compact,delete"
    codec = _FROM_CODEC.get(settings.codec, settings.codec)
    return [
        ("cleanup.policy", policy, _LIST),
        ("compression.type", codec, _STRING),
        ("flush.messages", "1" if settings.fsync == "always" else _FLUSH_NEVER, _LONG),
        ("max.message.bytes", str(settings.message_bytes_max), _INT),
        ("retention.bytes", limit(settings.retention_bytes), _LONG),
        ("retention.ms", limit(settings.retention_ms), _LONG),
        ("segment.bytes", str(settings.segment_bytes), _INT),
    ]


def _foreign(name: str, text: str) -> dict[str, Any]:
    match name:
        case "cleanup.policy":
            policies = {each.strip() for each in text.split(",")}
            if not policies <= {"compact", "delete"}:
                raise _refused(name, text)
            return {"compacted": "compact" in policies}
        case "compression.type":
            if text not in _TO_CODEC:
                raise _refused(name, text)
            return {"codec": _TO_CODEC[text]}
        case "flush.messages":
            return {"fsync": "always" if _number(name, text) == 1 else "interval"}
        case "retention.ms":
            number = _number(name, text)
            return {"retention": None if number < 0 else f"{number}ms"}
        case "retention.bytes":
            number = _number(name, text)
            return {"retention_bytes": None if number < 0 else number}
        case "segment.bytes":
            return {"segment_bytes": _number(name, text)}
        case _:
            return {"message_bytes_max": _number(name, text)}


def _own(name: str, text: str) -> dict[str, Any]:
    """JSON or, where it is none, text."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text
    return {name.removeprefix(OWN): value}


def _keeps_all(configs: Mapping[str, str | None]) -> bool:
    """Whether a compacted topic keeps the last message of each key for ever, as Kafka does."""
    own = OWN + "retention"
    return "delete" not in (configs.get("cleanup.policy") or "") and own not in configs


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _refused(name, text) from None


def _refused(name: str, text: str) -> Refused:
    return Refused(Code.INVALID_CONFIG, f"{name}={text!r:.100} is not allowed")
