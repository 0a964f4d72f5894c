"""Groups, dead letters and delays, on a folder and on a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from tests.integration.cli.shell import Shell


@pytest.fixture
def orders(sh: Shell) -> Shell:
    sh("topic", "create", "orders", "backoff=1ms,2,1s", "max_retries=0")
    return sh


def connect(sh: Shell) -> Any:
    """What a program of one's own would use beside the commands."""
    options = dict(zip(sh.where[::2], sh.where[1::2], strict=True))
    target = options.get("--url") or options["--data"]
    return penstock.connect(target, namespace=options.get("--namespace", "default"))


def test_a_queue_group_and_its_lag(orders: Shell) -> None:
    orders("publish", "orders", *"abcde")
    orders("consume", "orders", "-g", "billing", "--max", "2")
    (row,) = orders("group", "list", "--json").json["groups"]
    assert (row["group"], row["kind"], row["topic"], row["lag"]) == (
        "billing",
        "queue",
        "orders",
        3,
    )
    assert orders("group", "list").lines[0].split() == (
        ["group", "kind", "topic", "to", "do", "in", "flight", "members"]
    )
    assert orders("group", "lag", "billing").lines[-1] == "3 to do"
    orders("group", "lag", "billing", "--max", "3")
    orders("group", "lag", "billing", "--max", "2", code=1)
    described = orders("group", "describe", "billing", "--json").json
    assert described["places"][0]["committed"] == 2
    assert described["queues"][0]["ready"] == 3
    assert "3 normal" in orders("group", "describe", "billing").text


def test_a_group_goes_back_and_ahead(orders: Shell) -> None:
    orders("publish", "orders", *"abc")
    orders("consume", "orders", "-g", "g")
    orders("group", "reset", "g", "orders", "--to", "1")
    assert orders("consume", "orders", "-g", "g").lines == ["b", "c"]
    orders("group", "reset", "g", "orders", "--to", "-1h")
    orders("group", "reset", "g", "orders", "--to", "latest")
    orders("consume", "orders", "-g", "g", code=1)


def test_a_stream_group_is_listed_reset_and_deleted(orders: Shell) -> None:
    orders("publish", "orders", *"abc")
    name = f"audit-{orders.where[-1].rpartition('-')[2].replace('/', '')}"
    how = ["--stream", "--wait", "100ms"]
    orders("consume", "orders", "-g", name, *how, "--max", "1")
    rows = [r for r in orders("group", "list", "--json").json["groups"] if r["group"] == name]
    assert [(r["kind"], r["lag"], r["members"]) for r in rows] == [("stream", 2, 0)]
    done = orders("group", "reset", name, "orders", "--to", "latest", "--json").json
    assert done["places"][0]["committed"] == 3
    assert orders("group", "lag", name, "--json").json["lag"] == 0
    orders("group", "delete", name, "--yes")
    orders("group", "lag", name, code=3)


def test_groups_of_both_kinds_have_to_be_told_apart(orders: Shell) -> None:
    orders("publish", "orders", "a")
    name = f"both-{orders.where[-1].rpartition('-')[2].replace('/', '')}"
    orders("consume", "orders", "-g", name)
    orders("consume", "orders", "-g", name, "--stream", "--wait", "100ms")
    for command in (["reset", name, "orders", "--to", "earliest"], ["delete", name, "--yes"]):
        assert "say which: --kind" in orders("group", *command, code=2).err
    orders("group", "delete", name, "--kind", "queue", "--yes")
    assert "queue group" not in orders("group", "delete", name, "--yes").text


def test_a_group_that_is_not_there(orders: Shell) -> None:
    assert "[group_not_found]" in orders("group", "describe", "nobody", code=3).err
    assert "--kind" in orders("group", "reset", "nobody", "orders", "--to", "latest", code=2).err


def test_dead_letters_are_listed_shown_redriven_and_purged(orders: Shell) -> None:
    orders("publish", "orders", "good", "bad", "worse", "--key", "k", "--header", "h=1")
    with connect(orders) as ps:
        for m in ps.receive("orders", "billing", 3, consumer="me"):
            m.ack() if m.value == b"good" else m.reject(f"{m.value.decode()} order")

    letters = orders("dlq", "list", "orders", "--json").json_lines
    assert [(x["value"], x["origin"]["reason"]) for x in letters] == [
        ("bad", "rejected"),
        ("worse", "rejected"),
    ]
    table = orders("dlq", "list", "orders", "--error", "bad")
    assert len(table.lines) == 2
    assert letters[0]["id"] in table.text
    shown = orders("dlq", "show", "orders", letters[0]["id"])
    assert "bad order" in shown.text
    assert "header h" in shown.text
    assert "penstock-dead-letter" not in shown.text
    assert orders("dlq", "show", "orders", letters[0]["origin"]["id"], "--json").json == letters[0]

    assert orders("dlq", "redrive", "orders", letters[0]["id"]).lines == ["1 redriven"]
    assert orders("consume", "orders", "-g", "billing").lines == ["bad"]
    purged = orders("dlq", "purge", "orders", "--reason", "rejected", "--yes", "--json").json
    assert purged == {"topic": "orders", "purged": 1}
    assert orders("dlq", "list", "orders", "--json").out == b""
    assert orders("dlq", "redrive", "orders", "--all", "--json").json["redriven"] == 0


def test_letters_of_a_topic_that_is_not_there_are_not_none(orders: Shell) -> None:
    for args in (("redrive", "ordrs", "--all"), ("purge", "ordrs", "--all", "--yes")):
        err = orders("dlq", *args, code=3).err
        assert "there is no topic" in err
        assert "ordrs'" in err


def test_a_letter_is_redriven_to_its_group_or_to_all(orders: Shell) -> None:
    orders("publish", "orders", "bad", "worse")
    with connect(orders) as ps:
        ps.receive_batch("orders", "archive", 2).ack()
        for m in ps.receive("orders", "billing", 2):
            m.reject(f"{m.value.decode()} order")
    orders("dlq", "redrive", "orders", "--error", "bad")
    orders("dlq", "redrive", "orders", "--error", "worse", "--to", "topic")
    assert orders("consume", "orders", "-g", "billing").lines == ["bad", "worse"]
    assert orders("consume", "orders", "-g", "archive").lines == ["worse"]
    assert "--to" in orders("dlq", "redrive", "orders", "--all", "--to", "nobody", code=2).err


def test_a_topic_is_compacted(orders: Shell) -> None:
    orders("publish", "orders", *[str(n) for n in range(100)], "--ttl", "1ms")
    saved = orders("topic", "compact", "orders", "--json").json
    assert (saved["topic"], saved["bytes_freed"] > 0) == ("orders", True)
    assert "segments removed, " in orders("topic", "compact", "orders").text


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["redrive", "orders"], 2, "say which"),
        (["redrive", "orders", "01M7EW3PQYPBM4QJXRVV000000"], 3, "no dead letter of orders"),
        (["redrive", "orders", "01M7EW3PQYPBM4QJXRVV000000", "--all"], 2, "not several"),
        (["purge", "orders", "--all"], 2, "add --yes if so"),
        (["purge", "orders", "--all", "--group", "g", "--yes"], 2, "say which"),
        (["show", "orders", "x"], 3, "no dead letter of orders"),
        (["list", "nowhere"], 3, "there is no topic"),
    ],
)
def test_what_is_wrong_with_letters(orders: Shell, args: list[str], code: int, says: str) -> None:
    assert says in orders("dlq", *args, code=code).err


def test_delayed_messages_are_listed_and_cancelled(orders: Shell) -> None:
    made = orders("publish", "orders", "later", "--delay", "1h", "--json").json["message"]
    at = (datetime.now(UTC) + timedelta(days=30)).replace(microsecond=0)
    orders("publish", "orders", "next month", "--deliver-at", at.isoformat())
    listed = orders("delayed", "list", "orders", "--json").json_lines
    assert [m["value"] for m in listed] == ["later", "next month"]
    assert listed[0]["id"] == made["id"]
    assert listed[0]["deliver_at_us"] == made["deliver_at_us"]
    assert f"{at:%Y-%m-%d %H:%M:%S}.000" in orders("delayed", "list", "orders").text
    stats = orders("delayed", "stats", "orders", "--json").json["stats"]
    so_far = {"delivered": 0, "cancelled": 0, "expired": 0}
    assert stats == {"pending": 2, "next_due_us": made["deliver_at_us"], **so_far}
    assert orders("delayed", "stats", "--json").json["stats"]["pending"] == 2
    assert orders("delayed", "cancel", "orders", made["id"]).lines == ["1 cancelled"]
    again = orders("delayed", "cancel", "orders", made["id"], "--json", code=1)
    assert again.json["too_late"] == [made["id"]]
    assert "pending         1" in orders("delayed", "stats", "orders").lines
    orders("delayed", "cancel", "orders", "nonsense", code=2)
