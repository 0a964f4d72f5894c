"""The settings of a topic as programs give them, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from penstock.config import CodecName, FsyncPolicy
    from penstock.durations import Duration
    from penstock.model.settings import RetentionMode, SchemaCheck, SchemaOnError


class TopicOptions(TypedDict, total=False):
    """What `create_topic` and `alter_topic` take; what they mean is said with `TopicSettings`.

    A test compares the names with those that `parse_settings` knows.
    """

    partitions: int
    visibility: Duration
    max_retries: int | None
    backoff: tuple[Duration, float, Duration]
    ordered_by_key: bool
    key_run_max: int
    fair_by: str | None
    in_flight_max: int | None
    ttl: Duration | None
    dead_letters: bool
    dead_letter_suffix: str
    dead_letter_topic: str | None
    dead_letter_expired: bool
    retention_mode: RetentionMode
    retention: Duration | None
    retention_bytes: int | None
    retention_segments: int | None
    keep_segments: int
    retention_waits_for: Sequence[str]
    compacted: bool
    compaction_interval: Duration | None
    dedup_window: Duration
    dedup_ids_max: int
    fsync: FsyncPolicy
    fsync_interval: Duration
    fsync_batch_writes: int
    codec: CodecName
    codec_level: int | None
    compress_bytes_min: int
    segment_bytes: int
    message_bytes_max: int
    weights: Sequence[int]
    boost_after: Duration
    lag_alarm: Duration | None
    trace_sample: float
    lease_expiry_backoff: bool
    schema_check: SchemaCheck
    schema_subject: str | None
    schema_on_error: SchemaOnError
    attributes: Mapping[str, str]
