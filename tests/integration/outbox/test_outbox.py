"""What a database commits is published, once and in order; what it rolls back is not."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import penstock
from penstock import outbox
from penstock.client.client import Client
from penstock.errors import InvalidInput
from penstock.outbox.database import database_of, open_url
from penstock.outbox.table import retry_refused
from tests.integration.outbox.conftest import Connect


def begin(connection: Any) -> None:
    connection.cursor().execute("BEGIN")


def end(connection: Any, how: str) -> None:
    connection.cursor().execute(how)


def received(ps: Client, topic: str, count: int = 10_000) -> list[Any]:
    found = ps.receive(topic, group="test", max_messages=count)
    for message in found:
        message.ack()
    return list(found)


def test_what_commits_is_published_and_what_rolls_back_is_not(
    shop: Any, connect: Connect, ps: Client
) -> None:
    ps.create_topic("orders")
    begin(shop)
    shop.cursor().execute("INSERT INTO orders (id) VALUES (1)")
    outbox.publish(shop, "orders", b"1", key="c-1", headers={"h": b"\xff"}, priority="high")
    end(shop, "COMMIT")
    begin(shop)
    outbox.publish(shop, "orders", b"2")
    end(shop, "ROLLBACK")
    with closing(outbox.Relay(connect, ps)) as relay:
        assert relay.drain() == 1
        assert relay.status().pending == 0
    [message] = received(ps, "orders")
    assert (message.value, message.key, message.headers["h"]) == (b"1", b"c-1", b"\xff")
    assert message.priority.name == "HIGH"


def test_rows_of_a_topic_keep_their_order_over_batches_of_the_relay(
    shop: Any, connect: Connect, ps: Client
) -> None:
    ps.create_topic("orders")
    ps.create_topic("mail")
    for number in range(40):
        outbox.publish(shop, "mail" if number % 4 == 0 else "orders", str(number), key="one")
    with closing(outbox.Relay(connect, ps, batch_rows=7)) as relay:
        assert relay.drain() == 40
    orders = [int(message.text()) for message in received(ps, "orders")]
    assert orders == [n for n in range(40) if n % 4]
    assert [int(message.text()) for message in received(ps, "mail")] == list(range(0, 40, 4))


def test_a_row_that_was_published_but_not_deleted_is_stored_once(
    shop: Any, connect: Connect, ps: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps.create_topic("orders")
    for number in range(3):
        outbox.publish(shop, "orders", str(number))

    def lost(*_: object) -> None:
        raise RuntimeError("the relay dies here")

    with closing(outbox.Relay(connect, ps)) as relay, monkeypatch.context() as patch:
        patch.setattr("penstock.outbox.relay.delete", lost)
        with pytest.raises(RuntimeError):
            relay.drain()
    with closing(outbox.Relay(connect, ps)) as relay:
        assert relay.drain() == 3
    assert [message.text() for message in received(ps, "orders")] == ["0", "1", "2"]


def test_a_refused_row_is_kept_with_its_error_and_the_others_go_on(
    shop: Any, connect: Connect, ps: Client
) -> None:
    ps.create_topic("orders", message_bytes_max=1000)
    for value in (b"a", b"x" * 2000, b"b"):
        outbox.publish(shop, "orders", value)
    outbox.publish(shop, "later", b"c")
    with closing(outbox.Relay(connect, ps)) as relay:
        relay.drain()
        assert (relay.published, relay.refused) == (2, 2)
        status = relay.status()
        assert (status.pending, status.refused) == (0, 2)
    errors = database_of(shop).rows("SELECT error FROM penstock_outbox ORDER BY position")
    assert [error.partition(":")[0] for (error,) in errors] == [
        "message_too_large",
        "topic_not_found",
    ]
    assert [message.value for message in received(ps, "orders")] == [b"a", b"b"]
    ps.create_topic("later")
    assert retry_refused(database_of(shop)) == 2
    with closing(outbox.Relay(connect, ps)) as relay:
        relay.drain()
    assert [message.value for message in received(ps, "later")] == [b"c"]


def test_what_a_refusal_quotes_fits_into_any_database(
    shop: Any, connect: Connect, ps: Client
) -> None:
    """A database that refuses the reason would have the relay try the same row for ever."""
    ps.schemas.register("orders-value", {"additionalProperties": {"type": "integer"}})
    ps.create_topic("orders", schema_check="full")
    for field in ("\\u0000", "\u4e2d\U0001f600", "\\ud83d"):
        outbox.publish(shop, "orders", f'{{"{field}": "x"}}')
    outbox.publish(shop, "orders", b'{"fits": 1}')
    with closing(outbox.Relay(connect, ps)) as relay:
        relay.drain()
        assert (relay.published, relay.refused) == (1, 3)
    errors = database_of(shop).rows("SELECT error FROM penstock_outbox ORDER BY position")
    assert all("schema_mismatch: row 0" in error for (error,) in errors)
    assert "/\\u4e2d\\U0001f600" in errors[1][0]


def test_a_step_of_the_relay_has_few_large_values_in_memory(
    shop: Any, connect: Connect, ps: Client
) -> None:
    ps.create_topic("orders")
    for number in range(5):
        outbox.publish(shop, "orders", bytes([number]) * (7 << 20 if number < 3 else 1))
    with closing(outbox.Relay(connect, ps)) as relay:
        assert [relay.step() for _ in range(3)] == [2, 3, 0]
    assert [message.value[0] for message in received(ps, "orders")] == [0, 1, 2, 3, 4]


def test_a_second_relay_stands_by_until_the_first_ends(
    shop: Any, connect: Connect, ps: Client
) -> None:
    ps.create_topic("orders")
    outbox.publish(shop, "orders", b"1")
    with closing(outbox.Relay(connect, ps)) as second:
        with closing(outbox.Relay(connect, ps)) as first:
            assert first.step() == 1
            outbox.publish(shop, "orders", b"2")
            assert second.step() is None
        deadline = time.monotonic() + 20
        while (settled := second.step()) is None:  # the database has yet to see the other go
            assert time.monotonic() < deadline
        assert settled == 1


def test_a_relay_commits_where_the_driver_begins_transactions(
    url: str, shop: Any, connect: Connect, ps: Client
) -> None:
    def connect_as_drivers_do() -> Any:
        if url.startswith("sqlite"):
            return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0)
        if url.startswith("postgresql"):
            return psycopg.connect(url)
        connection = connect()
        connection.autocommit(False)
        return connection

    ps.create_topic("orders", message_bytes_max=1000)
    for value in (b"1", b"x" * 2000, b"2"):
        outbox.publish(shop, "orders", value)
    with closing(outbox.Relay(connect_as_drivers_do, ps)) as relay:
        assert relay.drain() == 3
        outbox.publish(shop, "orders", b"3")  # nothing is locked while the relay stands by
        assert relay.status().pending == 1
        relay.drain()
    with closing(outbox.Relay(connect, ps)) as other:
        assert (other.drain(), other.status().refused) == (0, 1)
    assert [message.value for message in received(ps, "orders")] == [b"1", b"2", b"3"]


def test_a_time_to_live_counts_from_the_publish(shop: Any, connect: Connect, ps: Client) -> None:
    ps.create_topic("orders")
    outbox.publish(shop, "orders", b"1", ttl="1h")
    with closing(outbox.Relay(connect, ps)) as relay:
        relay.drain()
    [message] = received(ps, "orders")
    assert message.expires_at_us is not None
    assert 3500e6 < message.expires_at_us - message.timestamp_us <= 3600e6


def test_a_relay_goes_on_when_the_database_was_away(
    shop: Any, connect: Connect, ps: Client
) -> None:
    ps.create_topic("orders")
    outbox.publish(shop, "orders", b"1")
    refusals = iter([ConnectionRefusedError("not yet"), TimeoutError("not yet")])

    def connect_later() -> Any:
        for refusal in refusals:
            raise refusal
        return connect()

    stop = threading.Event()
    relay = outbox.Relay(connect_later, ps, poll="1ms")
    thread = threading.Thread(target=relay.run, args=(stop,))
    thread.start()
    arrived = ps.receive("orders", group="test", wait="30s")
    stop.set()
    thread.join(30)
    assert [message.value for message in arrived] == [b"1"]


def test_the_inbox_knows_what_was_worked_on(shop: Any, ps: Client) -> None:
    begin(shop)
    assert outbox.first_time(shop, "id-1", consumer="billing")
    end(shop, "ROLLBACK")
    for consumer in ("billing", "mail"):
        assert outbox.first_time(shop, "id-1", consumer=consumer)
        assert not outbox.first_time(shop, "id-1", consumer=consumer)


def test_a_session_of_sqlalchemy_takes_part(url: str, connect: Connect, ps: Client) -> None:
    ps.create_topic("orders")
    kind = url.partition(":")[0]
    driver = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
    engine = sqlalchemy.create_engine(url.replace(kind, driver[kind], 1))
    with Session(engine) as session, session.begin():
        outbox.publish(session, "orders", {"id": 1})
    with Session(engine) as session:
        outbox.publish(session, "orders", {"id": 2})
        session.rollback()
    engine.dispose()
    with closing(outbox.Relay(connect, ps)) as relay:
        assert relay.drain() == 1
    [message] = received(ps, "orders")
    assert message.json() == {"id": 1}


def test_what_is_no_connection_is_told() -> None:
    with pytest.raises(InvalidInput, match="is no connection of"):
        outbox.publish(object(), "orders", b"1")


def test_an_asynchronous_connection_is_refused_and_loses_no_message(postgresql_url: str) -> None:
    async def publish() -> None:
        async with await psycopg.AsyncConnection.connect(postgresql_url) as connection:
            with pytest.raises(InvalidInput, match="is asynchronous"):
                outbox.publish(connection, "orders", b"1")
        with pytest.raises(InvalidInput, match="run_sync"):
            outbox.publish(AsyncSession(), "orders", b"1")

    asyncio.run(publish())


@pytest.mark.parametrize("bad", ["shop.db", "oracle://x/y", "sqlite:///", "sqlite:///gone.db"])
def test_what_is_no_url_of_a_database_is_told(bad: str) -> None:
    with pytest.raises(InvalidInput, match=r"database|names no file"):
        open_url(bad)


def test_rows_are_published_once_though_the_relay_is_killed(
    url: str, shop: Any, folder: str
) -> None:
    """The relay is killed again and again while a program publishes."""
    with penstock.connect(folder) as ps:
        ps.create_topic("orders")
    published = 0
    for _ in range(4):
        process = relay_process(url, folder, "--poll", "1ms", "--batch", "5")
        try:
            for _ in range(60):
                outbox.publish(shop, "orders", str(published), key="one")
                published += 1
            first = published - 60
            pending = "SELECT COUNT(*) FROM penstock_outbox"
            for _ in range(600):
                if int(database_of(shop).rows(pending)[0][0]) <= 30:
                    break
                assert process.poll() is None, process.stderr and process.stderr.read()
                threading.Event().wait(0.02)
            else:
                pytest.fail(f"the relay published nothing after {first}")
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=30)
    done = relay_process(url, folder, "--once")
    _, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    with penstock.connect(folder) as ps:
        found = [int(message.text()) for message in received(ps, "orders")]
    assert found == list(range(published))


def relay_process(url: str, folder: str, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "outbox", "relay", "--data", folder, *options],
        env={**os.environ, "PENSTOCK_OUTBOX": url},
        cwd=Path(folder).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
