"""Settings as frozen structs, with the unit in each name."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from penstock.errors import InvalidInput

FsyncPolicy = Literal["always", "interval", "batch", "never"]
CodecName = Literal["none", "lz4", "zstd", "gzip"]

DAY_MS = 24 * 60 * 60 * 1000


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How one log writes its segments, and when it calls a write durable."""

    segment_bytes: int = 64 << 20
    """A segment is sealed before it would grow past this."""

    segment_age_ms: int = 7 * DAY_MS
    """A segment is sealed when its first frame is older than this, so that it can be dropped."""

    index_interval_bytes: int = 4096
    """One index entry for at least this much log."""

    fsync: FsyncPolicy = "interval"
    """`always`: before an append is confirmed. `interval`, `batch`: every so often. `never`: only
    when a segment is sealed and at close."""

    fsync_interval_ms: int = 1000
    fsync_batch_writes: int = 1000

    codec: CodecName = "none"
    """Tried on frames of 1 KB or more, kept where it saves at least 5 %."""

    message_bytes_max: int = 10 << 20
    free_bytes_min: int = 100 << 20
    """Writes are refused while the disk has less room than this."""

    def __post_init__(self) -> None:
        _one_of("fsync", self.fsync, get_args(FsyncPolicy))
        _one_of("codec", self.codec, get_args(CodecName))
        _at_least("segment_bytes", self.segment_bytes, 4096)
        if self.segment_bytes >= 1 << 32:
            raise InvalidInput("segment_bytes must be below 4 GiB: index positions have 32 bits")
        _at_least("segment_age_ms", self.segment_age_ms, 1)
        _at_least("index_interval_bytes", self.index_interval_bytes, 1)
        _at_least("fsync_interval_ms", self.fsync_interval_ms, 1)
        _at_least("fsync_batch_writes", self.fsync_batch_writes, 1)
        _at_least("message_bytes_max", self.message_bytes_max, 1)
        _at_least("free_bytes_min", self.free_bytes_min, 0)


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """What a log may forget. Each limit that is set applies; the newest segments always stay."""

    age_ms: int | None = 7 * DAY_MS
    bytes_max: int | None = None
    segments_max: int | None = None
    segments_min: int = 1
    """This many of the newest segments are kept whatever the limits say; the active one counts."""

    def __post_init__(self) -> None:
        for name in ("age_ms", "bytes_max", "segments_max"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 0)
        _at_least("segments_min", self.segments_min, 1)


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInput(f"{name} is {value!r}; allowed: {', '.join(allowed)}")


def _at_least(name: str, value: int, floor: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < floor:
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number of at least {floor}")
