"""What can be set for a topic, with its defaults."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import msgspec

from penstock.config import DAY_MS, CodecName, FsyncPolicy, LogConfig, Retention
from penstock.delivery.backoff import Backoff
from penstock.delivery.lanes import WEIGHTS
from penstock.delivery.queue import Policy
from penstock.durations import Duration, parse_ms, parse_ns
from penstock.errors import InvalidInput
from penstock.model.names import DEAD_LETTER_SUFFIX, check_suffix, group_name
from penstock.model.values import Seconds
from penstock.spelling import nearest

RetentionMode = Literal["time", "consumed"]
SettingsGiven: TypeAlias = dict[str, Any]
"""Some settings as people write them; see `parse_settings`."""

PARTITIONS_MAX = 10_000
VISIBILITY_MS_MAX = 12 * 3600 * 1000
TTL_MS_MAX = 1 << 40
MESSAGE_BYTES_MAX = 64 << 20
_LETTER_BYTES_MAX = MESSAGE_BYTES_MAX + (1 << 20)  # with the story of its failure


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a topic, as they are stored. Fields may be added, never renamed."""

    partitions: int = 1
    visibility_ms: int = 30_000
    max_retries: int | None = 3
    backoff: tuple[int, float, int] = (1_000, 2.0, 60_000)
    """The first delay in ms, the factor, the longest delay in ms."""
    ordered_by_key: bool = False
    in_flight_max: int | None = None
    """Of one group on one partition."""
    ttl_ms: int | None = None
    dead_letters: bool = True
    """Whether messages that are given up become dead letters; otherwise they are dropped."""
    dead_letter_suffix: str = DEAD_LETTER_SUFFIX
    """What is added to the topic's name for that of its dead letters; it stays as it was made."""
    dead_letter_expired: bool = False
    retention_mode: RetentionMode = "time"
    retention_ms: int | None = 7 * DAY_MS
    retention_bytes: int | None = None
    retention_segments: int | None = None
    keep_segments: int = 1
    retention_waits_for: tuple[str, ...] = ()
    """Groups that must be done with a message before retention may drop it, in either mode."""
    compacted: bool = False
    """Keep only the last message of each key."""
    compaction_interval_ms: int | None = 60_000
    """How often sealed segments may be rewritten by themselves; None: only when asked for."""
    dedup_window_ms: int = 5 * 60 * 1000
    fsync: FsyncPolicy = "interval"
    fsync_interval_ms: int = 1000
    fsync_batch_writes: int = 1000
    codec: CodecName = "none"
    segment_bytes: int = 64 << 20
    message_bytes_max: int = 10 << 20
    weights: tuple[int, int, int, int, int] = WEIGHTS
    boost_after_ms: int = 30_000
    lease_expiry_backoff: bool = False
    """Whether a message whose lease ran out waits for the backoff, as one that is nacked does."""

    def __post_init__(self) -> None:
        _within("partitions", self.partitions, 1, PARTITIONS_MAX)
        _within("visibility in ms", self.visibility_ms, 1, VISIBILITY_MS_MAX)
        if self.max_retries is not None:
            _within("max_retries", self.max_retries, 0, 1_000_000)
        if self.in_flight_max is not None:
            _within("in_flight_max", self.in_flight_max, 1, 1 << 40)
        if self.ttl_ms is not None:
            _within("ttl in ms", self.ttl_ms, 1, TTL_MS_MAX)
        if self.compaction_interval_ms is not None:
            _within("compaction_interval in ms", self.compaction_interval_ms, 1000, 365 * DAY_MS)
        _within("dedup_window in ms", self.dedup_window_ms, 1, 14 * DAY_MS)
        _within("fsync_interval in ms", self.fsync_interval_ms, 1, DAY_MS)
        _within("message_bytes_max", self.message_bytes_max, 1, _LETTER_BYTES_MAX)
        for group in self.retention_waits_for:
            group_name(group)
        check_suffix(self.dead_letter_suffix)
        if self.retention_mode not in get_args(RetentionMode):
            raise InvalidInput(
                f"retention_mode is {self.retention_mode!r}; allowed: "
                f"{', '.join(get_args(RetentionMode))}"
            )
        self.log_config()
        self.retention()
        self.policy()

    def log_config(self, free_bytes_min: int = 100 << 20) -> LogConfig:
        return LogConfig(
            segment_bytes=self.segment_bytes,
            fsync=self.fsync,
            fsync_interval_ms=self.fsync_interval_ms,
            fsync_batch_writes=self.fsync_batch_writes,
            codec=self.codec,
            message_bytes_max=self.message_bytes_max,
            free_bytes_min=free_bytes_min,
        )

    def retention(self) -> Retention:
        return Retention(
            age_ms=self.retention_ms,
            bytes_max=self.retention_bytes,
            segments_max=self.retention_segments,
            segments_min=self.keep_segments,
        )

    def policy(self) -> Policy:
        first_ms, factor, max_ms = self.backoff
        return Policy(
            max_retries=self.max_retries,
            backoff=Backoff(first_ms=first_ms, factor=factor, max_ms=max_ms),
            in_flight_max=self.in_flight_max,
            ordered_by_key=self.ordered_by_key,
            weights=self.weights,
            boost_after_ms=self.boost_after_ms,
            lease_expiry_backoff=self.lease_expiry_backoff,
        )


# How people write them: durations without a unit in the name.
_DURATIONS = {
    "visibility": "visibility_ms",
    "ttl": "ttl_ms",
    "retention": "retention_ms",
    "compaction_interval": "compaction_interval_ms",
    "dedup_window": "dedup_window_ms",
    "fsync_interval": "fsync_interval_ms",
    "boost_after": "boost_after_ms",
}
_PLAIN = [f for f in TopicSettings.__struct_fields__ if f not in _DURATIONS.values()]
_NONE_ALLOWED = {"ttl", "retention", "compaction_interval"}
_CHOICES: dict[str, tuple[str, ...]] = {
    "fsync": get_args(FsyncPolicy),
    "codec": get_args(CodecName),
    "retention_mode": get_args(RetentionMode),
}


def _settings_schema() -> type[msgspec.Struct]:
    """All settings as people write them; what is left out stays as it is."""
    names = {stored: given for given, stored in _DURATIONS.items()}
    fields: list[Any] = []
    for field in msgspec.structs.fields(TopicSettings):
        name = names.get(field.name, field.name)
        kind: Any = field.type
        if field.name in names:
            kind = Seconds | None if name in _NONE_ALLOWED else Seconds
        elif name == "backoff":
            kind = tuple[Seconds, float, Seconds]
        fields.append((name, kind | msgspec.UnsetType, msgspec.UNSET))
    return msgspec.defstruct(
        "Settings", fields, frozen=True, kw_only=True, forbid_unknown_fields=True
    )


SETTINGS_SCHEMA = _settings_schema()
"""What the settings of a topic look like in JSON; for descriptions, they are parsed below."""


def parse_settings(given: dict[str, Any], base: TopicSettings | None = None) -> TopicSettings:
    """Settings from keyword arguments, on top of others; InvalidInput says what is allowed."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name in _DURATIONS:
            empty = value is None and name in _NONE_ALLOWED
            fields[_DURATIONS[name]] = None if empty else parse_ms(value, name)
        elif name == "backoff":
            fields["backoff"] = _parse_backoff(value)
        elif name in _PLAIN:
            if name in _CHOICES and value not in _CHOICES[name]:
                allowed = ", ".join(_CHOICES[name])
                raise InvalidInput(f"{name} is {value!r}; allowed: {allowed}")
            fields[name] = value
        else:
            raise InvalidInput(_unknown(name))
    if "message_bytes_max" in fields:
        _within("message_bytes_max", fields["message_bytes_max"], 1, MESSAGE_BYTES_MAX)
    stored = msgspec.structs.asdict(base) if base else {}
    try:
        return msgspec.convert({**stored, **fields}, TopicSettings)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"topic settings: {exc}") from None


def parse_ttl_us(ttl: Duration) -> int:
    """How long a message lives, in microseconds."""
    ns = parse_ns(ttl, "ttl")
    if not ns:
        raise InvalidInput(
            f"ttl is {ttl!r}; nobody would get the message: leave it out, or say more"
        )
    if ns > TTL_MS_MAX * 1_000_000:
        raise InvalidInput(f"ttl is {ttl!r}; it must be at most {TTL_MS_MAX // DAY_MS} days")
    return ns // 1000


def _parse_backoff(value: Any) -> tuple[int, float, int]:
    try:
        first, factor, longest = value
        return parse_ms(first, "backoff"), float(factor), parse_ms(longest, "backoff")
    except (TypeError, ValueError) as exc:
        raise InvalidInput(
            f"backoff is {value!r}; give the first delay, a factor and the longest delay, "
            'such as ("1s", 2.0, "60s")'
        ) from exc


def _unknown(name: str) -> str:
    known = sorted([*_DURATIONS, *_PLAIN])
    near = nearest(name, known)
    hint = f"; did you mean {near!r}?" if near else ""
    return f"unknown topic setting {name!r}{hint} Known: {', '.join(known)}"


def _within(name: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number from {least} to {most}")


DEAD_LETTER_SETTINGS = TopicSettings(
    retention_ms=14 * DAY_MS, max_retries=None, message_bytes_max=_LETTER_BYTES_MAX
)
