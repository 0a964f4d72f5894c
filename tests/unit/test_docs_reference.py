"""The tables of the reference pages are the code's: settings, errors, limits, the ledger."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock import config, errors
from penstock.broker import (
    activity,
    catalog,
    check_text,
    delays,
    latencies,
    latency_log,
    ledgered_partition,
    queue_calls,
    schedule_journal,
    stream_journal,
)
from penstock.broker import schemas as broker_schemas
from penstock.broker import transactions as journal_of_transactions
from penstock.broker.broker import BrokerConfig
from penstock.client.client import Client
from penstock.client.producer import ProducerConfig
from penstock.delivery import ledger
from penstock.delivery.callers import Callers
from penstock.delivery.dedup import DedupWindow
from penstock.delivery.lanes import WEIGHTS
from penstock.delivery.producers import Producers
from penstock.durations import text
from penstock.errors import InvalidInput, PenstockError
from penstock.group import events, session
from penstock.model import deliveries, schedules, schemas, settings, transactions
from penstock.model.calls import PutSchedule
from penstock.model.names import group_name, topic_name
from penstock.model.settings import DEAD_LETTER_SETTINGS, TopicSettings, parse_settings
from penstock.record.schema import HEADERS_MAX, Priority
from penstock.schedule.definition import CATCH_UP_US_MAX, EVERY_US_MIN, JITTER_US_MAX
from penstock.schema import definition

DOCS = Path(__file__).parents[2] / "docs"
SETTINGS = DOCS / "reference" / "settings.md"
ERRORS = DOCS / "reference" / "errors.md"
CONCEPTS = DOCS / "concepts.md"
BROKER = DOCS / "internals" / "broker.md"


def rows(page: Path, heading: str, number: int = 0) -> list[list[str]]:
    """The cells of a table below a heading of a page, without its head."""
    body = page.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = re.findall(r"(?:^\|.*\n)+", body, re.MULTILINE)[number]
    cells = [re.split(r"(?<!\\)\|", line.strip()[1:-1]) for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in row] for row in cells]


def value(cell: str) -> Any:
    """What stands between backticks, as Python."""
    code = re.fullmatch(r"`(.+)`", cell)
    assert code, f"{cell!r} is not code"
    return eval(code[1])


def ms(milliseconds: int) -> str:
    return text(milliseconds * 1_000_000)


def us(microseconds: int) -> str:
    return text(microseconds * 1000)


def size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


# Settings.


def test_every_topic_setting_is_described_with_its_default() -> None:
    documented = {row[0].strip("`"): value(row[1]) for row in rows(SETTINGS, "Topics")}
    assert sorted(documented) == sorted([*settings._DURATIONS, *settings._PLAIN])
    for name, default in documented.items():
        # On top of others, so that a default that says nothing would be noticed.
        assert parse_settings({name: default}) == TopicSettings(), name
    assert parse_settings(documented) == TopicSettings()


def test_the_defaults_of_dead_letter_topics_are_described() -> None:
    documented = {row[0].strip("`"): value(row[1]) for row in rows(SETTINGS, "Topics", 1)}
    made = parse_settings(documented)
    limits = {"message_bytes_max": DEAD_LETTER_SETTINGS.message_bytes_max}
    assert msgspec.structs.replace(made, **limits) == DEAD_LETTER_SETTINGS


@pytest.mark.parametrize(
    ("heading", "function"),
    [
        ("Connecting", penstock.connect),
        ("Receiving", Client.receive),
        ("Producers", Client.producer),
        ("Streams", Client.stream),
    ],
)
def test_every_option_of_a_call_is_described_with_its_default(heading: str, function: Any) -> None:
    documented = {row[0].strip("`"): value(row[1]) for row in rows(SETTINGS, heading)}
    parameters = inspect.signature(function).parameters.values()
    assert documented == {p.name: p.default for p in parameters if p.default is not p.empty}


def test_so_is_the_one_that_only_a_batch_has() -> None:
    documented = {row[0].strip("`"): value(row[1]) for row in rows(SETTINGS, "Receiving", 1)}
    more = {**inspect.signature(Client.receive_batch).parameters}
    for name in inspect.signature(Client.receive).parameters:
        del more[name]
    assert documented == {name: parameter.default for name, parameter in more.items()}


# Errors.


def test_every_error_is_described_with_its_code() -> None:
    sections = re.findall(r"^## (.+)$", ERRORS.read_text("utf-8"), re.MULTILINE)
    documented = {
        row[0].strip("`"): (row[1].strip("*"), row[2] == "yes")
        for section in sections
        for row in rows(ERRORS, section)
    }
    known = [
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, PenstockError)
    ]
    assert documented == {error.code: (error.__name__, error.retriable) for error in known}


def test_those_in_italics_are_never_raised_themselves() -> None:
    sections = re.findall(r"^## (.+)$", ERRORS.read_text("utf-8"), re.MULTILINE)
    names = [row[1] for section in sections for row in rows(ERRORS, section)]
    italic = {name.strip("*") for name in names if name.startswith("*")}
    made = set()
    for path in Path(penstock.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                made.add(node.func.id)
    assert italic & made == set()
    assert {"ProducerError", "TopicError", "DeliveryError"} <= italic


# Limits.


def test_the_table_of_limits_is_true() -> None:
    given = TopicSettings()
    producer = ProducerConfig()
    first_ms, factor, longest_ms = given.backoff
    receive, receive_batch = (
        inspect.signature(call).parameters["max_messages"].default
        for call in (Client.receive, Client.receive_batch)
    )
    standing = session.MemberSession(
        member_id="m",
        subscriptions=frozenset(),
        assignor="sticky",
        session_timeout_ms=session.SESSION_TIMEOUT_MS,
    ).standing(1, rebalancing=False)
    stream = inspect.signature(Client.stream).parameters
    window = inspect.signature(DedupWindow).parameters["ids_max"].default
    remembered = inspect.signature(Producers).parameters["producers_max"].default
    callers = inspect.signature(Callers).parameters["callers_max"].default
    assert dict(rows(CONCEPTS, "Limits and defaults")[:-3]) == {
        "partitions of a topic": f"{given.partitions}, at most {settings.PARTITIONS_MAX}",
        "lease (`visibility`)": (
            f"{ms(given.visibility_ms)}, at most {ms(settings.VISIBILITY_MS_MAX)}"
        ),
        "messages that one `receive` hands out": f"{receive}, at most {queue_calls.RECEIVE_MAX}",
        "messages that one `receive_batch` hands out": (
            f"{receive_batch}, at most {queue_calls.RECEIVE_MAX}"
        ),
        "how long a `receive` waits (`wait`)": f"0s, at most {ms(deliveries.WAIT_MS_MAX)}",
        "retries before the dead letters (`max_retries`)": f"{given.max_retries}, at most 1000000",
        "backoff": f"{ms(first_ms)}, times {factor}, at most {ms(longest_ms)}",
        "delay of a message": f"at most {ms(config.DELAY_MS_MAX)}",
        "length of a message: key, value and headers": (
            f"{size(given.message_bytes_max)}, at most {size(settings.MESSAGE_BYTES_MAX)}"
        ),
        "headers of a message": str(HEADERS_MAX),
        "name of a consumer": f"{queue_calls.CONSUMER_LENGTH_MAX} characters",
        "what is kept of an error text": f"{check_text.ERROR_LENGTH_MAX} characters",
        "weights of the lanes": ", ".join(map(str, WEIGHTS)),
        "a lane is boosted after": ms(given.boost_after_ms),
        "retention": ms(given.retention_ms or 0),
        "retention of dead letters": ms(DEAD_LETTER_SETTINGS.retention_ms or 0),
        "deduplication window": f"{ms(given.dedup_window_ms)}, at most 14d",
        "ids in a deduplication window": str(window),
        "sync interval": ms(given.fsync_interval_ms),
        "segment of a log": size(given.segment_bytes),
        "free space below which writes are refused": size(BrokerConfig().free_bytes_min),
        "producer: messages, bytes, linger": (
            f"{producer.messages_max}, {size(producer.bytes_max)}, {ms(producer.linger_ms)}"
        ),
        "producer: retries, backoff": f"{producer.retries}, from {ms(producer.retry_backoff_ms)}",
        "producers remembered by a partition": str(remembered),
        "callers whose last call a partition remembers": str(callers),
        "stream: commit, session, heartbeat": (
            f"{stream['commit_every'].default}, {stream['session_timeout'].default}, "
            f"{ms(standing.heartbeat_interval_ms)}"
        ),
        "stream: session at most": ms(session.SESSION_TIMEOUT_MS_MAX),
        "transaction: messages, bytes": (
            f"{transactions.MESSAGES_MAX}, {size(transactions.BYTES_MAX)}"
        ),
        "transactions whose answers are remembered": (
            f"{transactions.KEPT_MAX}, for {ms(transactions.KEPT_MS)}"
        ),
        "schedules": (
            f"{schedules.SCHEDULES_MAX}, "
            f"their messages {size(schedules.SCHEDULES_BYTES_MAX)} in all"
        ),
        "schedule: length of its message": size(schedules.SCHEDULE_BYTES_MAX),
        "schedule: fires missed that are made up for (`catch_up`)": (
            f"{PutSchedule(schedule='s', topic='t').catch_up}, at most {us(CATCH_UP_US_MAX)}"
        ),
        "schedule: interval, jitter": f"at least {us(EVERY_US_MIN)}, at most {us(JITTER_US_MAX)}",
        "schedule: fires of a backfill": str(schedules.BACKFILL_MAX),
        "schemas": (
            f"{schemas.SCHEMAS_MAX}, {size(schemas.SCHEMAS_BYTES_MAX)} in all; "
            f"{schemas.VERSIONS_MAX} versions of a subject"
        ),
        "schema: length, depth, references": (
            f"{size(definition.SCHEMA_BYTES_MAX)}, {definition.DEPTH_MAX}, "
            f"{definition.REFERENCES_MAX}"
        ),
    }
    parse_settings({"max_retries": 1_000_000, "dedup_window": "14d"})
    for too_much in ({"max_retries": 1_000_001}, {"dedup_window": "15d"}):
        with pytest.raises(InvalidInput):
            parse_settings(too_much)


def test_the_names_that_are_allowed_are_those_described() -> None:
    checks = {
        "topic": topic_name,
        "namespace": lambda name: topic_name("t", name),
        "group": group_name,
    }
    described = {}
    for what, rule in rows(CONCEPTS, "Limits and defaults")[-3:]:
        found = re.fullmatch(
            r"(\d+) characters of `(.+)`, the first a letter or digit(, or `_`)?", rule
        )
        assert found, rule
        first = [] if found[3] else ["_a"]
        described[what.removeprefix("name of a ")] = int(found[1]), found[2].split(), first
    assert described.keys() == checks.keys()
    for what, (length, ranges, refused) in described.items():
        pattern = "[" + "".join(re.escape(r) if len(r) == 1 else r for r in ranges) + "]"
        letters = [chr(code) for code in range(32, 127) if re.match(pattern, chr(code))]
        checks[what]("a" * length)
        for name in ["a" * (length + 1), "", "-a", ".a", *refused]:
            with pytest.raises(InvalidInput):
                checks[what](name)
        for letter in map(chr, range(32, 127)):
            if letter in letters:
                checks[what](f"a{letter}")
            else:
                with pytest.raises(InvalidInput):
                    checks[what](f"a{letter}")


# The broker's journals.


def test_the_table_of_ledger_events_is_the_code() -> None:
    documented = [
        (int(tag), name.strip("`"), fields.replace("`", "").split(", "))
        for tag, name, fields, *_ in rows(BROKER, "The ledger", 1)
    ]
    assert documented == [
        (kind.__struct_config__.tag, kind.__name__, list(kind.__struct_fields__))
        for kind in ledger.Event.__args__
    ]


def test_the_table_of_stream_group_events_is_the_code() -> None:
    documented = [
        (tag.strip("`"), fields.replace("`", "").split(", "))
        for tag, fields, *_ in rows(BROKER, "Stream groups")
    ]
    assert documented == [
        (kind.__struct_config__.tag, list(kind.__struct_fields__)) for kind in events.Event.__args__
    ]


def test_the_stored_form_of_latencies_is_the_code() -> None:
    fields = [name for row in rows(BROKER, "Latencies") for name in re.findall(r"`(\w+)`", row[0])]
    assert fields == [field.name for field in msgspec.structs.fields(latency_log._Stored)]
    page = " ".join(BROKER.read_text("utf-8").split())
    config, kept = latency_log.latency_log_config(0), latency_log.RETENTION
    assert (
        f"({config.codec}, synced every second, segments of {size(config.segment_bytes)} or a day, "
        f"dropped after 7 days or beyond {size(kept.bytes_max or 0)})"
    ) in page
    assert (config.fsync, config.fsync_interval_ms) == ("interval", 1000)
    assert (ms(config.segment_age_ms), ms(kept.age_ms or 0)) == ("1d", "7d")
    assert f"no more than {latencies._UNSTORED_MAX:,} messages wait" in page
    marks = [latency_log._TOPIC_BEGINS, latency_log._RUN_BEGINS, Priority.NORMAL]
    documented = [row[0] for row in rows(BROKER, "Latencies", 1)]
    assert documented == [f"{mark.value}, {mark.name.lower()}" for mark in marks]
    assert f"{size(latency_log.READ_BYTES)} at a time" in page
    assert f"after {latencies.READS_MAX} reads" in page


def test_checkpoints_are_written_when_the_page_says() -> None:
    documented = {row[0]: row[1] for row in rows(BROKER, "Checkpoints")}
    assert documented == {
        "ledger": (
            f"{size(ledgered_partition.CHECKPOINT_LEDGER_BYTES)} of entries or as much as the last "
            f"checkpoint took, {size(ledgered_partition.CHECKPOINT_LOG_BYTES)} of messages, or "
            f"{ledgered_partition.CHECKPOINT_FRAMES:,} frames"
        ),
        "journal of delays": f"{size(delays.CHECKPOINT_BYTES)} of entries",
        "stream groups": f"{size(stream_journal._CHECKPOINT_BYTES)} of entries",
        "catalog": f"{size(catalog._CHECKPOINT_BYTES)} of entries",
        "activity": f"{size(activity._CHECKPOINT_BYTES)} of entries",
        "schedules": (
            f"{size(schedule_journal._CHECKPOINT_BYTES)} of entries, or as much as the last "
            "checkpoint took"
        ),
        "transactions": (
            f"{size(journal_of_transactions._CHECKPOINT_BYTES)} of entries and messages"
        ),
        "schemas": (
            f"{size(broker_schemas._CHECKPOINT_BYTES)} of entries, or as much as the last "
            "checkpoint took"
        ),
    }
