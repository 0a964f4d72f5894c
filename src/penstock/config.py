"""Settings as frozen structs, with the unit in each name."""

from __future__ import annotations

import os
from typing import Literal, get_args

import msgspec

from penstock.errors import InvalidInput

FsyncPolicy = Literal["always", "interval", "batch", "never"]
CodecName = Literal["none", "lz4", "zstd", "gzip"]
LogLevel = Literal["debug", "info", "warning", "error"]

DAY_MS = 24 * 60 * 60 * 1000
DELAY_MS_MAX = 90 * DAY_MS


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


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How `penstock serve` listens, whom it lets in, and how much it takes from each."""

    data: str = "./data"
    """The data folder, which is made if it is not there."""

    host: str = "127.0.0.1"
    """The address to listen on; 127.0.0.1 is for this machine alone, 0.0.0.0 for everybody."""

    port: int = 8080
    """0: any free port; the log says which."""

    tls_cert: str | None = None
    """The certificate chain, a PEM file. With it, and `tls_key`, the server speaks HTTPS."""

    tls_key: str | None = None
    """The key of the certificate, a PEM file."""

    auto_create: bool = False
    """Make a topic when somebody publishes to one, or receives from one, that is not there."""

    allow_public_without_keys: bool = False
    """Listen on an address that others can reach although there is no API key."""

    require_keys: bool = False
    """Do not start without an API key, also where nobody else could reach the server."""

    allowed_hosts: str = ""
    """Names, separated by commas, by which a server without keys may be called beside localhost,
    its address and the name of its machine; and those of web pages that may call it. *: any."""

    free_bytes_min: int = 100 << 20
    """Publishing is refused while the disk has less room than this."""

    body_bytes_max: int = 64 << 20
    """The longest body of a request. Also, about, the messages of an answer together."""

    batch_messages_max: int = 100_000
    """Messages, or receipts, in one request."""

    header_bytes_max: int = 32 << 10
    """All headers of a request together, with its first line."""

    buffered_bytes_max: int = 512 << 20
    """Bodies and long answers of all requests together, while they are under way; more get 503."""

    connections_max: int = 16_384
    """Connections at the same time; fewer if half of the limit of open files is less."""

    polls_max: int = 10_000
    """Requests that may wait for messages at the same time."""

    rate_per_key: float | None = None
    """Requests a second that one API key may make; None: as many as it likes."""

    burst_per_key: int = 1000
    """So many it may make at once after a quiet time."""

    rate_per_address: float | None = None
    """Requests a second from one address, whatever the key."""

    burst_per_address: int = 1000
    """So many at once after a quiet time."""

    idle_timeout_ms: int = 75_000
    """A connection on which nothing is asked for so long is closed."""

    request_timeout_ms: int = 30_000
    """A request has to be there, to its last byte, within this time; and of an answer, as long as
    there is more of it, a client has to take 64 KiB."""

    stop_timeout_ms: int = 10_000
    """What is still under way so long after the server was told to stop is cut off."""

    log_level: LogLevel = "info"
    """`info` writes a line for every request, `warning` only for what went wrong."""

    def __post_init__(self) -> None:
        _one_of("log_level", self.log_level, get_args(LogLevel))
        if not 0 <= self.port < 1 << 16:
            raise InvalidInput(f"port is {self.port!r}; it must be from 0 to 65535")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidInput("TLS needs both tls_cert and tls_key")
        _at_least("free_bytes_min", self.free_bytes_min, 0)
        for name in ("body_bytes_max", "batch_messages_max", "header_bytes_max", "polls_max"):
            _at_least(name, getattr(self, name), 1)
        _at_least("connections_max", self.connections_max, 1)
        _at_least("buffered_bytes_max", self.buffered_bytes_max, self.body_bytes_max)
        for name in ("burst_per_key", "burst_per_address"):
            _at_least(name, getattr(self, name), 1)
        for name in ("idle_timeout_ms", "request_timeout_ms", "stop_timeout_ms"):
            _at_least(name, getattr(self, name), 1)
        for name in ("rate_per_key", "rate_per_address"):
            rate = getattr(self, name)
            if rate is not None and not rate > 0:
                raise InvalidInput(f"{name} is {rate!r}; it must be more than 0, or null for none")


def api_key() -> str | None:
    """The key that clients use where none is given: that of PENSTOCK_API_KEY."""
    return os.environ.get("PENSTOCK_API_KEY") or None


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInput(f"{name} is {value!r}; allowed: {', '.join(allowed)}")


def _at_least(name: str, value: int, floor: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < floor:
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number of at least {floor}")
