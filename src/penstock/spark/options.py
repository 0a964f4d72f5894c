"""The options of the data source, as people write them and as the code reads them.

Names and meanings are those of Spark's Kafka source where there is such an option. Spark hands
options over without regard to upper and lower case; a name that nobody knows is an error.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TypeAlias
from urllib.parse import unquote, urlparse

import msgspec

from penstock.durations import parse_ns
from penstock.errors import InvalidInput
from penstock.model.schemas import version_number
from penstock.schema.definition import SchemaType
from penstock.spelling import nearest

Offsets: TypeAlias = dict[str, dict[int, int]]
"""By topic and partition."""

EARLIEST, LATEST = -2, -1
"""What stands in an option for an offset that is not known yet."""

SPLIT_BYTES = 32 << 20
_MS_MAX = 253_402_300_800_000  # the year 10000, where dates end


class Position(msgspec.Struct, frozen=True):
    """Where to begin or to end: one place for all partitions, or one for each."""

    all: Literal["earliest", "latest"] | int
    """For partitions that are not named; a number is a time in microseconds."""
    offsets: Offsets = {}
    times_us: Offsets = {}
    is_strict: bool = False
    """A time behind the last message is an error, and not the end."""


class Subscription(msgspec.Struct, frozen=True):
    """Which topics, and which of their partitions."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: dict[str, list[int]] = {}

    def chosen(self, topics: list[str]) -> list[str]:
        """Those of the topics that there are; a topic that is named has to be there."""
        if self.pattern:
            return [topic for topic in topics if re.fullmatch(self.pattern, topic)]
        return list(self.topics or self.partitions)

    def has(self, topic: str, partition: int) -> bool:
        return not self.partitions or partition in self.partitions[topic]


class Target(msgspec.Struct, frozen=True):
    """A data folder or a server."""

    path: str = ""
    url: str = ""
    namespace: str = "default"
    api_key: str = ""

    def full_name(self, topic: str) -> str:
        """With its namespace; one of the default namespace goes without."""
        plain = "/" in topic or self.namespace == "default"
        return topic if plain else f"{self.namespace}/{topic}"

    def __str__(self) -> str:
        return self.url or self.path


class ValueFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What values are, as the options say it."""

    kind: SchemaType
    subject: str
    version: str = "latest"
    id: int | None = None
    """Instead of a subject and a version."""
    message: str | None = None
    bare: bool = False
    on_error: Literal["fail", "null"] = "fail"


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    target: Target
    subscription: Subscription
    starting: Position | None
    ending: Position
    fail_on_data_loss: bool = True
    offsets_per_trigger_max: int | None = None
    bytes_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_s: float = 900.0
    """How long a batch may wait for so many."""
    partitions_min: int | None = None
    patience_s: float = 900.0
    """How long a stream waits for a server that is away."""
    split_bytes: int = SPLIT_BYTES
    include_headers: bool = False
    pushdown: bool = False
    incarnations: dict[str, str] = {}
    """Of the topics that are meant, for offsets that are of no use to others of these names."""
    group: str = ""
    lake: str = ""
    """Where the tables of an archive are, if history is to be read from there."""
    lake_storage: dict[str, str] = {}
    """Settings of the object store that they are in, if those of the environment will not do."""
    queue: bool = False
    visibility: str = "10m"
    spool: str = ""
    """Where leased messages are kept until their batch is done."""
    spool_storage: dict[str, str] = {}
    """Settings of the object store that this is in."""
    values: ValueFormat | None = None
    """How values are decoded; None: they stay bytes."""


READ_OPTIONS = (
    "path",
    "url",
    "apiKey",
    "namespace",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxBytesPerPartition",
    "includeHeaders",
    "pushdown",
    "incarnations",
    "group",
    "tier",
    "lake",
    "lakeStorage",
    "mode",
    "visibility",
    "staging",
    "stagingStorage",
    "patience",
    "valueFormat",
    "valueSubject",
    "valueVersion",
    "valueSchemaId",
    "valueMessage",
    "valueFraming",
    "valueOnError",
)


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    target: Target
    topic: str = ""
    sink: str = ""
    """The name under which a batch is published once; by default that of the query."""
    batch: int = 0
    staging: str = ""
    staging_storage: dict[str, str] = {}
    """Settings of the object store that it is in, if those of the environment will not do."""
    patience_s: float = 900.0
    queue: bool = False
    """Rows are verdicts on messages that `group` has leased."""
    group: str = ""


WRITE_OPTIONS = (
    "path",
    "url",
    "apiKey",
    "namespace",
    "topic",
    "sinkId",
    "batchId",
    "staging",
    "stagingStorage",
    "mode",
    "group",
    "patience",
)
NOT_OURS = ("checkpointlocation", "queryname", "outputmode", "numpartitions")


def parse_write_options(given: Mapping[str, str], stream: bool = False) -> WriteOptions:
    """Options of a write, or InvalidInput that names the one that is wrong."""
    others = {key.lower(): value for key, value in given.items() if key.lower() in NOT_OURS}
    options = checked({k: v for k, v in given.items() if k.lower() not in NOT_OURS}, WRITE_OPTIONS)
    target = parse_target(options)
    if _is_verdict(options):
        return WriteOptions(target=target, queue=True, group=_group(options["group"]))
    sink = options.get("sinkId", "")
    if sink and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", sink):
        raise InvalidInput(f"sinkId {sink!r} is made of letters, digits, '.', '_', '-'")
    return WriteOptions(
        target=target,
        topic=options.get("topic", ""),
        sink=sink,
        batch=(number(options, "batchId") or 0) if options.get("batchId") != "0" else 0,
        staging=_staging(options, target, others.get("checkpointlocation", ""), stream),
        staging_storage=_storage(options, "stagingStorage"),
        patience_s=parse_patience(options) if stream else 0.0,
    )


def parse_read_options(given: Mapping[str, str]) -> ReadOptions:
    """Options of a read, or InvalidInput that names the one that is wrong."""
    options = checked(given, READ_OPTIONS)
    return ReadOptions(
        target=parse_target(options),
        subscription=_subscription(options),
        starting=_position(options, "starting"),
        ending=_position(options, "ending") or Position("latest"),
        fail_on_data_loss=flag(options, "failOnDataLoss", True),
        offsets_per_trigger_max=number(options, "maxOffsetsPerTrigger"),
        bytes_per_trigger_max=size(options, "maxBytesPerTrigger"),
        offsets_per_trigger_min=number(options, "minOffsetsPerTrigger"),
        trigger_delay_s=parse_ns(options.get("maxTriggerDelay", "15m"), "maxTriggerDelay") / 1e9,
        partitions_min=number(options, "minPartitions"),
        patience_s=parse_patience(options),
        split_bytes=size(options, "maxBytesPerPartition") or SPLIT_BYTES,
        include_headers=flag(options, "includeHeaders", False),
        pushdown=flag(options, "pushdown", False),
        incarnations=_incarnations(options),
        group=_group(options.get("group", "")),
        lake=_lake(options),
        lake_storage=_storage(options, "lakeStorage"),
        queue=_is_queue(options),
        visibility=options.get("visibility", "10m"),
        spool=_spool(options),
        spool_storage=_storage(options, "stagingStorage"),
        values=_value_format(options),
    )


def checked(given: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """The options under the names that they have here; an unknown one is an error."""
    names = {name.lower(): name for name in known}
    options = {}
    for key, value in given.items():
        if key.lower().startswith("kafka."):
            raise InvalidInput(
                f"option {key!r} is for Kafka; say where the messages are with 'path' "
                "(a data folder) or 'url' (a server)"
            )
        if key.lower() not in names:
            near = nearest(key.lower(), names)
            hint = f"; did you mean {names[near]!r}?" if near else "."
            raise InvalidInput(f"unknown option {key!r}{hint} Known: {', '.join(known)}")
        options[names[key.lower()]] = value
    return options


def parse_target(options: Mapping[str, str]) -> Target:
    path, url = options.get("path", ""), options.get("url", "")
    if bool(path) == bool(url):
        raise InvalidInput("give one of 'path' (a data folder) and 'url' (a server)")
    if path:
        path = local_folder(path, "path")
    return Target(path, url, options.get("namespace", "default"), options.get("apiKey", ""))


def parse_offsets(text: str, name: str) -> Offsets:
    """`{"topic": {"0": 12}}` as Kafka's source writes it."""
    try:
        return msgspec.json.decode(text, type=Offsets)
    except msgspec.DecodeError as exc:
        raise InvalidInput(
            f'{name} is {text!r}; give JSON such as {{"orders": {{"0": 23, "1": -2}}}}: {exc}'
        ) from None


def parse_patience(options: Mapping[str, str]) -> float:
    return parse_ns(options.get("patience", "15m"), "patience") / 1e9


def _incarnations(options: Mapping[str, str]) -> dict[str, str]:
    text = options.get("incarnations", "{}")
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError as exc:
        raise InvalidInput(
            f'incarnations is {text!r}; give JSON such as {{"orders": "5f0c..."}}: {exc}'
        ) from None


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidInput(f"{name} is {options[name]!r}; it is true or false")
    return text == "true"


def number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput(f"{name} is {text!r}; it must be a whole number of at least 1")
    return int(text)


def size(options: Mapping[str, str], name: str) -> int | None:
    """Bytes: a number, or one with a unit such as 64m or 1g, as Spark writes sizes."""
    text = options.get(name)
    if text is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]*)([kmgt]?)b?", text.strip().lower())
    if not match:
        raise InvalidInput(f"{name} is {text!r}; give bytes, or a size such as 64m or 1g")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2]]


def _is_verdict(options: Mapping[str, str]) -> bool:
    if ("mode" in options or "group" in options) and options.get("mode") != "queue":
        raise InvalidInput("mode of a write is queue, with the 'group' whose messages are settled")
    if "mode" in options and not options.get("group"):
        raise InvalidInput("mode=queue needs the 'group' whose messages are settled")
    return "mode" in options


def _is_queue(options: Mapping[str, str]) -> bool:
    mode = options.get("mode", "stream")
    if mode not in ("stream", "queue"):
        raise InvalidInput(f"mode is {mode!r}; it is stream, queue or trace")
    if mode == "queue":
        parse_ns(options.get("visibility", "10m"), "visibility")
        if not options.get("group") or not options.get("subscribe"):
            raise InvalidInput("mode=queue needs a 'group', and 'subscribe' to say which topics")
        given = [name for name in options if name.startswith(("starting", "ending", "tier"))]
        if given:
            raise InvalidInput(f"{given[0]} is not for mode=queue: the group knows where it is")
    return mode == "queue"


def _spool(options: Mapping[str, str]) -> str:
    if options.get("mode") != "queue":
        return ""
    if given := options.get("staging"):
        return folder_or_store(given, "staging")
    if not options.get("path"):
        raise InvalidInput(
            "mode=queue on a server needs 'staging', a folder that all workers see or an object "
            "store"
        )
    return os.path.join(local_folder(options["path"], "path"), "spark")


def _lake(options: Mapping[str, str]) -> str:
    tier, lake = options.get("tier", "log"), options.get("lake", "")
    if tier not in ("log", "lake+log"):
        raise InvalidInput(f"tier is {tier!r}; it is log or lake+log")
    if (tier == "lake+log") != bool(lake):
        raise InvalidInput("tier=lake+log needs the option 'lake', the folder of an archive")
    if lake and flag(options, "pushdown", False):
        raise InvalidInput(
            "pushdown is for reads of the log alone; leave it out with tier=lake+log"
        )
    return lake_folder(lake) if lake else ""


def _storage(options: Mapping[str, str], name: str) -> dict[str, str]:
    given = options.get(name, "{}")
    try:
        return msgspec.json.decode(given, type=dict[str, str])
    except msgspec.DecodeError as exc:
        raise InvalidInput(
            f"{name} is no JSON object of texts, the settings of an object store: {exc}"
        ) from None


def _staging(options: Mapping[str, str], target: Target, checkpoint: str, stream: bool) -> str:
    """Where rows wait: in the data folder, or in the checkpoint of a stream to a server."""
    if given := options.get("staging"):
        return folder_or_store(given, "staging")
    if target.path:
        return os.path.join(target.path, "spark")
    if checkpoint:
        return os.path.join(folder_or_store(checkpoint, "checkpointLocation"), "penstock")
    if stream:  # what is decided there has to outlive this machine's temporary folder
        raise InvalidInput(
            "a stream to a server needs its own option 'checkpointLocation', or 'staging': a "
            "folder that the driver and all executors see, where rows wait"
        )
    return os.path.join(tempfile.gettempdir(), f"penstock-spark-{os.getuid()}")


def local_folder(text: str, name: str, otherwise: str = "") -> str:
    """A folder as a path that every worker understands. `otherwise`: what else it may be."""
    parsed = urlparse(text)
    if parsed.scheme not in ("", "file"):
        raise InvalidInput(
            f"{name} is {text!r}; it has to be a folder that the driver and all executors see"
            + otherwise
            + ("" if name != "checkpointLocation" else ": name another with the option 'staging'")
        )
    return os.path.abspath(unquote(parsed.path) if parsed.scheme else text)


_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")


def in_object_store(text: str) -> bool:
    return "://" in text and not text.startswith("file:")


def lake_folder(text: str) -> str:
    """The folder of a lake or of a table as a path, or its address in an object store."""
    return folder_or_store(text, "the lake")


def folder_or_store(text: str, name: str) -> str:
    """A folder as a path that every worker understands, or its address in an object store."""
    if text.partition("://")[0] in _SCHEMES:
        return text.rstrip("/")
    return local_folder(text, name, ", or in an object store: s3://, gs://, az://")


def _group(name: str) -> str:
    if name and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        raise InvalidInput(
            f"group name {name!r} is not allowed; it is made of letters, digits, '.', '_', '-'"
        )
    return name


def _subscription(options: Mapping[str, str]) -> Subscription:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if options.get(name)]
    if len(given) != 1:
        raise InvalidInput("say which topics: one of 'subscribe', 'subscribePattern' and 'assign'")
    text = options[given[0]]
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
        if not topics:
            raise InvalidInput(f"subscribe is {text!r}; give topics, separated by commas")
        return Subscription(topics=topics)
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as exc:
            raise InvalidInput(
                f"subscribePattern {text!r} is no regular expression: {exc}"
            ) from exc
        return Subscription(pattern=text)
    try:
        return Subscription(partitions=msgspec.json.decode(text, type=dict[str, list[int]]))
    except msgspec.DecodeError as exc:
        raise InvalidInput(
            f'assign is {text!r}; give JSON such as {{"orders": [0, 1]}}: {exc}'
        ) from None


def _value_format(options: Mapping[str, str]) -> ValueFormat | None:
    """None: values stay bytes."""
    kind = options.get("valueFormat", "binary").lower()
    others = sorted(name for name in options if name.startswith("value") and name != "valueFormat")
    if kind == "binary":
        if others:
            raise InvalidInput(f"{others[0]} is for valueFormat=json, avro or protobuf")
        return None
    if kind not in ("json", "avro", "protobuf"):
        raise InvalidInput(f"valueFormat is {kind!r:.100}; it is binary, json, avro or protobuf")
    if options.get("mode") == "queue" or options.get("tier", "log") != "log":
        raise InvalidInput("valueFormat is for reads of the log: leave out mode and tier")
    id_ = options.get("valueSchemaId")
    if id_ is not None and not (id_.isascii() and id_.isdigit() and len(id_) < 11):
        raise InvalidInput(f"valueSchemaId is {id_!r:.100}; it is the id of a schema")
    subject = options.get("valueSubject", "")
    if not subject and id_ is None:
        topics = _subscription(options).topics
        if len(topics) != 1:
            raise InvalidInput("valueFormat with several topics needs 'valueSubject'")
        subject = f"{topics[0].rpartition('/')[2]}-value"
    on_error = options.get("valueOnError", "fail")
    if on_error not in ("fail", "null"):
        raise InvalidInput(f"valueOnError is {on_error!r:.100}; it is fail or null")
    framing = options.get("valueFraming", "id")
    if framing not in ("id", "none"):
        raise InvalidInput(f"valueFraming is {framing!r:.100}; it is id or none")
    version = options.get("valueVersion", "latest")
    version_number(version)
    return ValueFormat(
        kind=kind,  # type: ignore[arg-type]
        subject=subject,
        version=version,
        id=None if id_ is None else int(id_),
        message=options.get("valueMessage"),
        bare=framing == "none",
        on_error=on_error,  # type: ignore[arg-type]
    )


def _position(options: Mapping[str, str], end: str) -> Position | None:
    """The first that is given, in the order in which Kafka's source looks at them."""
    unnamed: Literal["earliest", "latest"] = "earliest" if end == "starting" else "latest"
    is_strict = end == "starting" and _is_strict(options)
    if text := options.get(f"{end}Timestamp"):
        return Position(parse_time_us(text, f"{end}Timestamp"), is_strict=is_strict)
    if text := options.get(f"{end}OffsetsByTimestamp"):
        times = parse_offsets(text, f"{end}OffsetsByTimestamp")
        in_us = {t: {p: ms * 1000 for p, ms in each.items()} for t, each in times.items()}
        return Position(unnamed, times_us=in_us, is_strict=is_strict)
    text = options.get(f"{end}Offsets", "")
    if not text:
        return None
    if text.lower() == "earliest" and end == "starting":
        return Position("earliest")
    if text.lower() == "latest":
        return Position("latest")
    offsets = parse_offsets(text, f"{end}Offsets")
    least = EARLIEST if end == "starting" else LATEST
    for topic, each in offsets.items():
        for partition, offset in each.items():
            if offset < least:
                raise InvalidInput(f"{end}Offsets: {offset} of {topic}/{partition} is no offset")
    return Position(unnamed, offsets=offsets)


def _is_strict(options: Mapping[str, str]) -> bool:
    strategy = options.get("startingOffsetsByTimestampStrategy", "latest")
    if strategy not in ("error", "latest"):
        raise InvalidInput(
            f"startingOffsetsByTimestampStrategy is {strategy!r}; it is error or latest"
        )
    return strategy == "error"


def parse_time_us(text: str, name: str) -> int:
    """Milliseconds since 1970, as Kafka's source takes them, or a date and time."""
    if text.isdecimal() and int(text) < _MS_MAX:
        return int(text) * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{name} is {text!r}; give milliseconds since 1970, or a time such as "
            "2026-11-15T08:30:00Z"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000_000)
