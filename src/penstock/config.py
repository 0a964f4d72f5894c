"""Settings as frozen structs, with the unit in each name."""

from __future__ import annotations

import os
import re
from typing import Any, Literal, get_args

import msgspec

from penstock.errors import InvalidInput

FsyncPolicy = Literal["always", "interval", "batch", "never"]
CodecName = Literal["none", "lz4", "zstd", "gzip"]
LogLevel = Literal["debug", "info", "warning", "error"]

LEVELS_MAX: dict[CodecName, int] = {"lz4": 12, "zstd": 22, "gzip": 9}

_CLUSTER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

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
    """Tried on frames of `compress_bytes_min` or more, kept where it saves at least 5 %."""

    codec_level: int | None = None
    """How hard the codec tries, in its own levels; None: as it does by default."""

    compress_bytes_min: int = 1024

    message_bytes_max: int = 10 << 20
    free_bytes_min: int = 100 << 20
    """Writes are refused while the disk has less room than this."""

    def __post_init__(self) -> None:
        _one_of("fsync", self.fsync, get_args(FsyncPolicy))
        _one_of("codec", self.codec, get_args(CodecName))
        if self.codec_level is not None:
            _check_level(self.codec, self.codec_level)
        _at_least("compress_bytes_min", self.compress_bytes_min, 1)
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

    topic_defaults: dict[str, Any] = {}
    """Settings of every topic that is made from now on, dead-letter topics apart, unless it is made
    with others: `{codec: zstd}` for one. Topics that are there stay as they are."""

    allow_public_without_keys: bool = False
    """Listen on an address that others can reach although there is no API key."""

    require_keys: bool = False
    """Do not start without an API key, also where nobody else could reach the server."""

    allowed_hosts: str = ""
    """Names, separated by commas, by which a server without keys may be called beside localhost,
    its address and the name of its machine; and those of web pages that may call it. *: any."""

    grpc: str = ""
    """Where to listen for gRPC, as `HOST:PORT`; empty: nowhere."""

    grpc_reflection: bool = False
    """Describe the services of gRPC to tools that ask."""

    kafka: str = ""
    """Where to listen for the Kafka protocol, as `HOST:PORT`; empty: nowhere."""

    kafka_advertised: str = ""
    """The `HOST:PORT` that Kafka clients are told to come to; by default where they came to."""

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
    """At most this many requests at once, after a quiet time."""

    rate_per_address: float | None = None
    """Requests a second from one address, whatever the key."""

    burst_per_address: int = 1000
    """At most this many requests at once from an address, after a quiet time."""

    webhook_networks: str = ""
    """Networks, separated by commas, to which webhooks may be posted although they are not public:
    10.0.0.0/8 for one. Private ones are also to be asked for by the webhook; loopback and others
    that lead back to a machine itself need no less than their exact network here."""

    webhook_http: bool = False
    """Post webhooks over plain HTTP as well, where anybody on the way can read them."""

    sqs_accounts: str = ""
    """Which account of the SQS API stands for which namespace, separated by commas:
    shop=111122223333 for one. The default namespace has 000000000000."""

    idle_timeout_ms: int = 75_000
    """A connection on which nothing is asked for so long is closed."""

    request_timeout_ms: int = 30_000
    """A request has to be there, to its last byte, within this time; and of an answer, as long as
    there is more of it, a client has to take 64 KiB."""

    stop_timeout_ms: int = 10_000
    """What is still under way so long after the server was told to stop is cut off."""

    cluster: str = ""
    """URLs of NATS servers, separated by commas, that keep the messages of several nodes:
    nats://a,nats://b,nats://c. Without it this server is alone."""

    node_id: str = ""
    """The name of this node in its cluster; the same after a restart. By default the machine's."""

    advertise: str = ""
    """The URL by which other nodes of the cluster, and clients, reach this one."""

    cluster_name: str = "penstock"
    """Several clusters can share NATS servers under different names."""

    cluster_shards: int = 16
    """Parts that are owned by one node each. It cannot change once the cluster is there."""

    cluster_standbys: int = 1
    """Nodes that keep the files of a shard ready beside its owner."""

    cluster_replicas: int = 3
    """NATS servers that keep each message."""

    cluster_shard_bytes: int = 2 << 30
    """How long the stream of a shard may be; NATS reserves it. At 90 % publishing is refused."""

    cluster_dead_after_ms: int = 5000
    """A node that was not heard from for so long loses its shards to others."""

    cluster_monitors: str = ""
    """Monitoring URLs of the NATS servers, separated by commas: http://a:8222. They are asked
    whether what they confirm lasts."""

    cluster_nats_syncs: bool = False
    """The NATS servers have `sync_interval: always`, where they cannot be asked."""

    cluster_credentials: str = ""
    """The credentials file of a user of NATS."""

    cluster_tls_ca: str = ""
    """The certificate of the authority that signed those of the NATS servers, a PEM file."""

    log_level: LogLevel = "info"
    """`info` writes a line for every request, `warning` only for what went wrong."""

    def __post_init__(self) -> None:
        _one_of("log_level", self.log_level, get_args(LogLevel))
        if not 0 <= self.port < 1 << 16:
            raise InvalidInput(f"port is {self.port!r}; it must be from 0 to 65535")
        if self.cluster and not self.advertise:
            raise InvalidInput(
                "a node of a cluster needs advertise: the URL by which the other nodes reach it"
            )
        if self.advertise and not self.advertise.startswith(("http://", "https://")):
            raise InvalidInput(
                f"advertise is {self.advertise!r}; it is a URL, as http://node1:8080"
            )
        for server in filter(None, map(str.strip, self.cluster.split(","))):
            scheme, marked, _ = server.partition("://")
            if marked and scheme not in ("nats", "tls", "ws", "wss"):
                raise InvalidInput(
                    f"cluster is {self.cluster!r}; it names NATS servers, as nats://a:4222"
                )
        for name in ("cluster_name", "node_id"):
            if getattr(self, name) and not _CLUSTER_NAME.fullmatch(getattr(self, name)):
                raise InvalidInput(
                    f"{name} is {getattr(self, name)!r}; it is made of letters, digits, '-' and '_'"
                )
        _at_least("cluster_shards", self.cluster_shards, 1)
        _at_least("cluster_standbys", self.cluster_standbys, 0)
        _at_least("cluster_replicas", self.cluster_replicas, 1)
        _at_least("cluster_shard_bytes", self.cluster_shard_bytes, 16 << 20)
        _at_least("cluster_dead_after_ms", self.cluster_dead_after_ms, 2000)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidInput("TLS needs both tls_cert and tls_key")
        for name in ("grpc", "kafka", "kafka_advertised"):
            _check_address(name, getattr(self, name))
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


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of `HOST:PORT`, where HOST may be an IPv6 address in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _check_address(name: str, address: str) -> None:
    if not address:
        return
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) < 1 << 16
    if not is_port or not host or (":" in host and not host.startswith("[")):
        raise InvalidInput(f"{name} is {address!r:.100}; it must be HOST:PORT, as 127.0.0.1:9092")


def api_key() -> str | None:
    """The key that clients use where none is given: that of PENSTOCK_API_KEY."""
    return os.environ.get("PENSTOCK_API_KEY") or None


def _check_level(codec: CodecName, level: int) -> None:
    if codec not in LEVELS_MAX:
        raise InvalidInput(f"codec_level is {level!r}, and there is no codec; give both or neither")
    most = LEVELS_MAX[codec]
    if isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= most:
        raise InvalidInput(f"codec_level is {level!r}; that of {codec} is from 1 to {most}")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInput(f"{name} is {value!r}; allowed: {', '.join(allowed)}")


def _at_least(name: str, value: int, floor: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < floor:
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number of at least {floor}")
