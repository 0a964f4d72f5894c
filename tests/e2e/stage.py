"""A shop at work, with an hour of its past, for who looks at the dashboard.

The past is made by the broker itself, on a clock that is moved through it; then the folder is
served by a process of its own.
"""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import penstock
from penstock.broker.api import Api
from penstock.broker.broker import Broker, BrokerConfig
from penstock.client.client import Client
from penstock.client.local_link import LocalLink
from penstock.clock import ManualClock
from penstock.errors import QuotaExceeded
from penstock.log.local_engine import LocalEngine
from tests.integration.broker.world import QuickFiles
from tests.integration.server.receiver import Receiver

MINUTES = 75
CITIES = ("Lisbon", "Bergen", "Graz", "Leeds", "Turin", "Ghent")
ERRORS = (
    "TimeoutError: the bank did not answer within 5 s",
    "CardDeclined: insufficient funds",
    "ValueError: no tax rate for country 'XZ'",
)


def fill(folder: Path, minutes: int = MINUTES) -> None:
    """Make the past of the shop, up to now."""
    now_ns = time.time_ns()
    clock = ManualClock(wall_ns=now_ns - minutes * 60_000_000_000)
    engine = LocalEngine(folder, clock=clock, files=QuickFiles())
    broker = Broker(engine, BrokerConfig(free_bytes_min=0), housekeeping=False)
    ps: Any = Client(LocalLink(Api(broker)), "default")
    partners: Any = Client(LocalLink(Api(broker)), "partners")
    dice = random.Random(7)
    _make_topics(ps, partners)
    for minute in range(minutes):
        _live_through(ps, partners, dice, minute, minutes)
        clock.advance(30)
        broker.housekeep()
        _work(ps, partners, dice, minute, clock)
        clock.advance(30 - 0.25)
        broker.housekeep()
        broker.history.take_notes(broker)
        clock.advance(0.25)
    _leave_something(ps)
    ps.close()


def _make_topics(ps: Any, partners: Any) -> None:
    ps.create_topic("orders", partitions=4, max_retries=2, lag_alarm="10m")
    ps.create_topic("payments", partitions=2, max_retries=0, trace_sample=0.2)
    ps.create_topic("emails", partitions=1)
    ps.create_topic("clicks", partitions=8, codec="zstd")
    ps.create_topic("invoices", partitions=1, compacted=True)
    ps.create_topic("stock-levels", partitions=2, ordered_by_key=True)
    partners.create_topic("shipments", partitions=2)
    ps.schedule(
        "nightly-report",
        topic="emails",
        value="report",
        cron="30 2 * * *",
        timezone="Europe/Berlin",
    )
    ps.schedule("poll-stock", topic="stock-levels", value="poll", every="15m")
    ps.schedule("old-import", topic="invoices", value="import", cron="@hourly", paused=True)


def _live_through(ps: Any, partners: Any, dice: random.Random, minute: int, minutes: int) -> None:
    busy = 1 + abs((minute % 40) - 20) / 10 + dice.random() * 0.4
    for number in range(int(14 * busy)):
        ps.publish(
            "orders",
            _order(dice),
            key=f"customer-{dice.randrange(400)}",
            priority=dice.choice(["normal"] * 9 + ["high"]),
            headers={"type": "order", "traceparent": _traceparent(dice)},
        )
        if number % 3 == 0:
            ps.publish(
                "payments",
                {"order": dice.randrange(9000), "amount": round(dice.random() * 200, 2)},
                key=f"customer-{dice.randrange(400)}",
            )
    ps.publish_batch(
        "clicks",
        [
            json.dumps({"page": f"/p/{dice.randrange(90)}", "ms": dice.randrange(900)}).encode()
            for _ in range(int(90 * busy))
        ],
    )
    ps.publish("emails", "Dear customer, your parcel is on its way.", key="mail", ttl="2d")
    ps.publish(
        "stock-levels",
        {"sku": dice.randrange(50), "left": dice.randrange(80)},
        key=f"sku-{dice.randrange(50)}",
    )
    partners.publish("shipments", {"parcel": minute, "to": dice.choice(CITIES)})


def _work(ps: Any, partners: Any, dice: random.Random, minute: int, clock: ManualClock) -> None:
    slow = 45 < minute < 60
    for topic, group, most in (
        ("orders", "billing", 18 if slow else 60),
        ("orders", "warehouse", 60),
        ("clicks", "analytics", 900),
        ("emails", "mailer", 5),
        ("stock-levels", "shop", 9),
    ):
        got = ps.receive(
            topic, group=group, max_messages=most, consumer=f"{group}-{dice.randrange(3)}"
        )
        clock.advance(dice.random() * 0.05)
        for message in got:
            message.ack()
    for message in ps.receive("payments", group="bank", max_messages=30, consumer="bank-1"):
        if dice.random() < 0.04:
            where = 'File "bank.py", line 71, in charge'
            message.reject(reason=f"{dice.choice(ERRORS)}\n  {where}\n    raise error")
        else:
            message.ack()
    for message in partners.receive("shipments", group="carrier", max_messages=3):
        message.ack()


def _leave_something(ps: Any) -> None:
    """Delayed, and what is hostile to whoever shows it."""
    for hours in (1, 3, 26):
        ps.publish("emails", "Did you like it?", key=f"customer-{hours}", delay=f"{hours}h")
    first: Any = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"order": {"type": "integer"}},
    }
    second = {**first, "properties": {**first["properties"], "note": {"type": "string"}}}
    for schema in (first, second):
        ps.schemas.register("orders-value", schema)
    with ps.transaction() as tx:
        tx.publish("invoices", {"order": 17, "total": 12.5}, key="order-17")
        tx.publish("emails", "Your invoice", key="customer-17")
    ps.publish("clicks", b"\x00\x01\xfe\xffbinary\x80", key=b"\xff\x00")


def _order(dice: random.Random) -> dict[str, Any]:
    return {
        "order": dice.randrange(1_000_000),
        "customer": {"id": dice.randrange(400), "city": dice.choice(CITIES)},
        "total": round(dice.random() * 300, 2),
        "lines": [
            {"sku": dice.randrange(50), "count": dice.randrange(1, 4)}
            for _ in range(dice.randrange(1, 3))
        ],
    }


def _traceparent(dice: random.Random) -> str:
    return f"00-{dice.getrandbits(128):032x}-{dice.getrandbits(64):016x}-01"


def let_tenants_in(url: str) -> None:
    """Namespaces with quotas, one of them full; it is in the audit log of the server."""
    with penstock.connect(url) as ps:
        ps.set_quotas("partners", publish_messages=50, storage_bytes=1 << 20, topics=1, webhooks=5)
        ps.create_namespace("reporting")
        ps.set_quotas("reporting", topics=5, retention="7d", policy="refuse")
        for number in range(4):
            ps.in_namespace("reporting").create_topic(f"day-{number}", retention="1d")
        with suppress(QuotaExceeded):
            ps.in_namespace("partners").create_topic("returns")


def hook_up(url: str, receiver: Receiver) -> None:
    """A webhook whose receiver fails now and then."""
    turns = count()
    receiver.answers = lambda _: (503 if next(turns) % 6 == 5 else 204, {}, b"")
    with penstock.connect(url) as ps:
        ps.create_webhook("emails", receiver.url, name="ship")


def keep_busy(url: str, stop: threading.Event) -> None:
    """What goes on while somebody looks: the shop takes orders, works on them, and reads along."""
    dice = random.Random(11)
    with penstock.connect(url) as ps, ps.stream("clicks", group="reporting") as clicks:
        for number in count():
            for _ in range(4):
                ps.publish("orders", _order(dice), key=f"customer-{dice.randrange(400)}")
            ps.publish_batch("clicks", [b'{"page":"/p/1"}'] * 25)
            for topic, group in (("orders", "warehouse"), ("clicks", "analytics")):
                for message in ps.receive(topic, group=group, max_messages=60):
                    message.ack()
            for _ in range(20):
                clicks.next(0)
            if number == 2:  # of a consumer that takes its time
                ps.receive("orders", "billing", 7, consumer="billing-2", visibility="2h")
            if number % 10 == 0:
                ps.publish("payments", {"order": number}, key="customer-1")
            if stop.wait(0.15):
                return
