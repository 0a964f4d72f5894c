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
from penstock.model.names import DEAD_LETTER_SUFFIX, check_suffix, group_name, topic_name
from penstock.model.schemas import subject_name
from penstock.model.values import Seconds
from penstock.spelling import nearest

RetentionMode = Literal["time", "consumed"]
SchemaCheck = Literal["none", "id", "full"]
SchemaOnError = Literal["refuse", "dead_letter"]
SettingsGiven: TypeAlias = dict[str, Any]
"""Some settings as people write them; see `parse_settings`."""

PARTITIONS_MAX = 10_000
VISIBILITY_MS_MAX = 12 * 3600 * 1000
TTL_MS_MAX = 1 << 40
DEDUP_WINDOW_MS_MAX = 14 * DAY_MS
DEDUP_IDS_MAX = 100_000_000
MESSAGE_BYTES_MAX = 64 << 20
KEY_RUN_MAX = 10_000
ATTRIBUTES_BYTES_MAX = 64 << 10
_LETTER_BYTES_MAX = MESSAGE_BYTES_MAX + (1 << 20)  # with the story of its failure


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a topic, as they are stored. Fields may be added, never renamed."""

    partitions: int = 1
    visibility_ms: int = 30_000
    max_retries: int | None = 3
    backoff: tuple[int, float, int] = (1_000, 2.0, 60_000)
    """The first delay in ms, the factor, the longest delay in ms."""
    ordered_by_key: bool = False
    key_run_max: int = 1
    """Where keys are ordered: messages of one key that one receive may hand out, in their order."""
    fair_by: str | None = None
    """Tenants take turns who are told apart by `"key"` or a header, `"header:NAME"`."""
    in_flight_max: int | None = None
    """Of one group on one partition."""
    ttl_ms: int | None = None
    dead_letters: bool = True
    """Whether messages that are given up become dead letters; otherwise they are dropped."""
    dead_letter_suffix: str = DEAD_LETTER_SUFFIX
    """What is added to the topic's name for that of its dead letters; it stays as it was made."""
    dead_letter_topic: str | None = None
    """A topic of the same namespace to which dead letters go instead; several may share one."""
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
    dedup_ids_max: int = 1_000_000
    """Deduplication ids that are remembered; beyond it the oldest are forgotten first."""
    fsync: FsyncPolicy = "interval"
    fsync_interval_ms: int = 1000
    fsync_batch_writes: int = 1000
    codec: CodecName = "none"
    codec_level: int | None = None
    """How hard the codec tries: gzip 1 to 9 (6 by default), zstd 1 to 22 (1), lz4 1 to 12 (1)."""
    compress_bytes_min: int = 1024
    """Batches of fewer bytes are stored as they are."""
    segment_bytes: int = 64 << 20
    message_bytes_max: int = 10 << 20
    weights: tuple[int, int, int, int, int] = WEIGHTS
    boost_after_ms: int = 30_000
    lag_alarm_ms: int | None = None
    """A group whose oldest message that is not done is older is an alarm; None: never."""
    trace_sample: float = 0.01
    """The share of messages whose life is traced; those that fail are in any case."""
    lease_expiry_backoff: bool = False
    """Whether a message whose lease ran out waits for the backoff, as one that is nacked does."""
    schema_check: SchemaCheck = "none"
    """What a publish is checked for: nothing, that each message names a version of the subject, or
    that it also is what that version says."""
    schema_subject: str | None = None
    """None: the name of the topic and `-value`."""
    schema_on_error: SchemaOnError = "refuse"
    """Refuse the whole batch, or make dead letters of the messages that do not fit."""
    attributes: dict[str, str] = {}
    """Anything that somebody wants to keep with the topic; Penstock does nothing with it."""

    def __post_init__(self) -> None:
        _within("partitions", self.partitions, 1, PARTITIONS_MAX)
        _within("visibility in ms", self.visibility_ms, 0, VISIBILITY_MS_MAX)
        _within("key_run_max", self.key_run_max, 1, KEY_RUN_MAX)
        if self.max_retries is not None:
            _within("max_retries", self.max_retries, 0, 1_000_000)
        if self.in_flight_max is not None:
            _within("in_flight_max", self.in_flight_max, 1, 1 << 40)
        if self.fair_by is not None:
            _check_fair_by(self.fair_by)
            if self.ordered_by_key:
                raise InvalidInput("fair_by and ordered_by_key do not go together: choose one")
        if self.ttl_ms is not None:
            _within("ttl in ms", self.ttl_ms, 1, TTL_MS_MAX)
        if self.compaction_interval_ms is not None:
            _within("compaction_interval in ms", self.compaction_interval_ms, 1000, 365 * DAY_MS)
        if self.lag_alarm_ms is not None:
            _within("lag_alarm in ms", self.lag_alarm_ms, 1000, 365 * DAY_MS)
        if not 0 <= self.trace_sample <= 1:
            raise InvalidInput(f"trace_sample is {self.trace_sample!r}; it must be from 0 to 1")
        _within("dedup_window in ms", self.dedup_window_ms, 1, DEDUP_WINDOW_MS_MAX)
        _within("dedup_ids_max", self.dedup_ids_max, 1, DEDUP_IDS_MAX)
        _within("fsync_interval in ms", self.fsync_interval_ms, 1, DAY_MS)
        _within("message_bytes_max", self.message_bytes_max, 1, _LETTER_BYTES_MAX)
        for group in self.retention_waits_for:
            group_name(group)
        check_suffix(self.dead_letter_suffix)
        if self.schema_subject is not None:
            subject_name(self.schema_subject)
        if self.dead_letter_topic is not None:
            topic_name(self.dead_letter_topic)
        _check_attributes(self.attributes)
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
            codec_level=self.codec_level,
            compress_bytes_min=self.compress_bytes_min,
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
            key_run_max=self.key_run_max,
            fair_by=self.fair_by,
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
    "lag_alarm": "lag_alarm_ms",
}
_PLAIN = [f for f in TopicSettings.__struct_fields__ if f not in _DURATIONS.values()]
_NONE_ALLOWED = {"ttl", "retention", "compaction_interval", "lag_alarm"}
_CHOICES: dict[str, tuple[str, ...]] = {
    "fsync": get_args(FsyncPolicy),
    "codec": get_args(CodecName),
    "retention_mode": get_args(RetentionMode),
    "schema_check": get_args(SchemaCheck),
    "schema_on_error": get_args(SchemaOnError),
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


def parse_topic_defaults(given: dict[str, Any]) -> TopicSettings:
    """What the topics of a server have unless they are made with other settings."""
    for name in ("dead_letter_topic", "dead_letter_suffix"):
        if name in given:
            raise InvalidInput(f"{name} says where the letters of one topic go; set it there")
    return parse_settings(given)


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


def check_visibility(visibility_ns: int) -> None:
    """Raises InvalidInput."""
    if not 0 <= visibility_ns <= VISIBILITY_MS_MAX * 1_000_000:
        raise InvalidInput("visibility must be at most 12 hours")


def parse_dedup_window_ms(window: Duration) -> int:
    """How long a deduplication id is remembered, in milliseconds."""
    window_ms = parse_ms(window, "dedup_window")
    if not 0 < window_ms <= DEDUP_WINDOW_MS_MAX:
        days = DEDUP_WINDOW_MS_MAX // DAY_MS
        raise InvalidInput(
            f"dedup_window is {window!r}; it must be more than nothing and at most {days} days"
        )
    return window_ms


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


def _check_fair_by(fair_by: str) -> None:
    if fair_by != "key" and not (fair_by.startswith("header:") and fair_by != "header:"):
        raise InvalidInput(f'fair_by is {fair_by!r}; it must be "key" or "header:NAME"')


def _check_attributes(attributes: dict[str, str]) -> None:
    """They are in the catalog, of which all is in memory."""
    size_bytes = sum(len(f"{name}{value}".encode()) for name, value in attributes.items())
    if size_bytes > ATTRIBUTES_BYTES_MAX:
        raise InvalidInput(
            f"the attributes of the topic have {size_bytes} bytes; {ATTRIBUTES_BYTES_MAX} at most"
        )


def _within(name: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number from {least} to {most}")


DEAD_LETTER_SETTINGS = TopicSettings(
    retention_ms=14 * DAY_MS, max_retries=None, message_bytes_max=_LETTER_BYTES_MAX
)
