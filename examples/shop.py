"""A shop whose orders go through an embedded queue. `demo.py` runs it, kills it, and watches.

This is an ordinary program on Penstock: one thread takes orders in, some tills charge them, an
auditor reads everything once more as a stream. What happens it tells on stdout, one JSON object a
line, so that another process can know it even when this one is gone:

    python examples/shop.py some/folder
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import penstock
from penstock.client.received import ReceivedMessage
from penstock.errors import DeliveryError

TILLS = 5
PRIORITIES = ("critical", "high", "normal", "low", "background")
SHARES = (2, 13, 55, 20, 10)  # of a hundred orders
MAX_RETRIES = 3
RUSH_AFTER_S = 1.5


class Plan(NamedTuple):
    """How much happens. The same numbers always give the same orders."""

    backlog: int = 250  # orders that are there when the shop opens
    waiting_max: int = 350  # when so many wait, new customers do too
    per_second: int = 300
    seconds: float = 3.0  # for how long orders are taken after a restart
    gifts: int = 40  # to be delivered later
    gifts_within_s: float = 11.0

    def order(self, number: int) -> bytes:
        dice = random.Random(number)
        if number % 97 == 50:
            return b"\x89PNG a scan of a postcard"
        order = {
            "order": number,
            "total": round(dice.uniform(3, 300), 2),
            "currency": "XAU" if number % 60 == 7 else "EUR",
        }
        return json.dumps(order).encode()

    def priority(self, number: int) -> str:
        return random.Random(-number).choices(PRIORITIES, SHARES)[0]

    def declines(self, number: int) -> bool:
        """The first attempt to charge this order fails."""
        return number % 11 == 3


QUICK = Plan(backlog=80, waiting_max=120, seconds=1.0, gifts=12, gifts_within_s=4.0)


class PaymentFailed(Exception):
    """The order cannot be charged now."""


class Shop:
    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.ps = penstock.connect(folder)
        self.ps.create_topic(
            "orders",
            partitions=2,
            visibility="2s",
            max_retries=MAX_RETRIES,
            backoff=("100ms", 2.0, "400ms"),
            exist_ok=True,
        )
        self.rates = {"EUR": 1.0}
        self.waiting = 0
        self.closing = threading.Event()

    def run(self, resume_at: int | None) -> None:
        """Sell everything, look after the dead letters, close."""
        with self.ps, ThreadPoolExecutor(TILLS + 2) as threads:
            at_work = [threads.submit(self.sell, f"till {n}") for n in range(1, TILLS + 1)]
            at_work += [threads.submit(self.audit), threads.submit(self.report)]
            try:
                self.take_orders(resume_at)
                self.drain()
                self.look_after_dead_letters()
                self.drain()
            finally:
                self.closing.set()
            for thread in at_work:
                thread.result()
        tell("closed")

    # Taking orders.

    def take_orders(self, resume_at: int | None) -> None:
        """Until somebody kills us or, after a restart, for some seconds."""
        number = resume_at or 1
        if resume_at is None:
            self.wrap_gifts()
            number = self.take_backlog()
        began = time.monotonic()
        rush_at = began + RUSH_AFTER_S if resume_at is None else float("inf")
        while resume_at is None or time.monotonic() < began + self.plan.seconds:
            rush = time.monotonic() >= rush_at
            published = self.ps.publish(
                "orders",
                self.plan.order(number),
                key=f"customer-{number % 250}",
                priority="critical" if rush else self.plan.priority(number),
                dedup_id=f"order-{number}",  # after a crash it is safe to send it again
            )
            tell("published", orders=[number], duplicates=int(published.duplicate))
            if rush:
                rush_at = float("inf")
                tell("rush", id=published.id, behind=self.waiting)
            number += 1
            time.sleep(1 / self.plan.per_second)
            while self.waiting > self.plan.waiting_max:
                time.sleep(0.01)

    def take_backlog(self) -> int:
        numbers = range(1, self.plan.backlog + 1)
        self.ps.publish_batch(
            "orders",
            [self.plan.order(number) for number in numbers],
            keys=[f"customer-{number % 250}" for number in numbers],
            priority=[self.plan.priority(number) for number in numbers],
            dedup_ids=[f"order-{number}" for number in numbers],
        )
        tell("published", orders=list(numbers), duplicates=0)
        return self.plan.backlog + 1

    def wrap_gifts(self) -> None:
        """Orders that must not be delivered before their time; one of them is taken back."""
        now = time.time()
        step_s = self.plan.gifts_within_s / self.plan.gifts
        due = [now + 1 + step_s * number for number in range(self.plan.gifts)]
        gifts = [
            json.dumps({"gift": number, "due_us": round(at * 1e6), "total": 25.0}).encode()
            for number, at in enumerate(due)
        ]
        ids = self.ps.schedule_batch("orders", gifts, deliver_at=due, priority="high")
        cancelled = self.plan.gifts - 1
        taken_back = self.ps.cancel("orders", ids[cancelled])
        tell("scheduled", gifts=len(gifts), cancelled=cancelled if taken_back else None)

    # Selling.

    def sell(self, till: str) -> None:
        while not self.closing.is_set():
            for message in self.ps.receive("orders", "tills", 2, wait="200ms", consumer=till):
                self.handle(message, till)

    def handle(self, message: ReceivedMessage, till: str) -> None:
        what = {"id": message.id, "till": till, "attempt": message.delivery_count}
        tell("received", **what, priority=int(message.priority), sent_us=message.timestamp_us)
        try:
            with message:  # acked at its end, given back on an exception
                order = self.read(message)
                if order is None:
                    tell("rejected", **what)
                    return
                self.charge(order, message.delivery_count)
                tell("charged", **what, **order)
        except PaymentFailed as exc:
            tell("failed", **what, error=str(exc), order=order.get("order"))
        except DeliveryError as exc:  # too slow: the message is somebody else's by now
            tell("late", **what, error=str(exc))
        else:
            tell("acked", **what)

    def read(self, message: ReceivedMessage) -> dict[str, Any] | None:
        try:
            order: dict[str, Any] = json.loads(message.value or b"")
        except ValueError:
            message.reject("not an order")  # no retry would change that
            return None
        return order

    def charge(self, order: dict[str, Any], attempt: int) -> None:
        time.sleep(random.uniform(0.02, 0.035))  # the bank
        currency = order.get("currency", "EUR")
        if currency not in self.rates:
            raise PaymentFailed(f"no rate for {currency}")
        if attempt == 1 and self.plan.declines(order.get("order", 0)):
            raise PaymentFailed("card declined")

    # Reading it all once more.

    def audit(self) -> None:
        """A stream of its own: it sees every order in the order of its partition, and acks none."""
        with self.ps.stream("orders", "auditor", commit_every="500ms") as stream:
            while not self.closing.is_set():
                message = stream.next(wait=0.2)
                if message is not None:
                    tell("audited", partition=message.partition, offset=message.offset)

    # Looking after it.

    def report(self) -> None:
        while not self.closing.wait(0.12):
            stats = self.ps.stats("orders")
            for group in stats.groups:
                self.waiting = group.ready
                tell(
                    "stats",
                    waiting=list(group.ready_by_priority.values()),
                    in_flight=list(group.in_flight_by_priority.values()),
                    retrying=list(group.retrying_by_priority.values()),
                    oldest_us=group.oldest_age_us,
                    stored=stats.messages,
                    delayed=stats.delayed,
                    next_due_us=stats.next_due_us,
                    dead=stats.dead,
                    acks_per_second=group.ack_rate,
                )

    def look_after_dead_letters(self) -> None:
        letters = list(self.ps.dead_letters("orders"))
        tell(
            "letters",
            letters=[(x.reason, x.error, x.attempts, x.origin.consumer) for x in letters],
        )
        time.sleep(2.0)  # somebody reads them, and understands
        self.rates["XAU"] = 2300.0
        dead = self.ps.dead_letters("orders")
        # To the topic, not to the tills alone: the auditor reads them, too.
        redriven = dead.redrive(where=lambda letter: letter.reason == "max_retries", to="topic")
        purged = dead.purge(where=lambda letter: letter.reason == "rejected")
        tell("triaged", redriven=redriven, purged=purged)

    def drain(self) -> None:
        """Wait until nothing is waiting, in flight or to come."""
        while True:
            stats = self.ps.stats("orders")
            if not stats.depth and not stats.delayed:
                return
            time.sleep(0.05)


_out = threading.Lock()


def tell(what: str, **more: Any) -> None:
    """One line, whole or not at all: whoever reads it may outlive us."""
    line = json.dumps({"what": what, "at": time.time(), **more}) + "\n"
    with _out:
        sys.stdout.write(line)
        sys.stdout.flush()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--quick", action="store_true", help="a quarter of the orders")
    options.add_argument("--resume-at", type=int, help="the first order to be taken in (again)")
    given = options.parse_args()
    began = time.monotonic()
    shop = Shop(given.folder, QUICK if given.quick else Plan())
    took_ms = (time.monotonic() - began) * 1000
    found = shop.ps.stats("orders")
    tell(
        "open",
        took_ms=took_ms,
        to_do=found.depth,
        in_flight=found.in_flight,
        delayed=found.delayed,
        dead=found.dead,
    )
    try:
        shop.run(given.resume_at)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
