"""The whole of it, start to end: a queue at work, and its data on Spark. `make demo`.

Orders with priorities, delays and poison go through an embedded broker; workers fail now and then.
Meanwhile the archive pipeline brings every message into a Delta table. Then the roll-up, the
triage of the dead letters, their repair and redrive, and the archive once more. At the end
everything is counted. `--keep some/folder` leaves it all there to be looked at.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import threading
import time
from contextlib import nullcontext

import penstock
from penstock.client.client import Client
from penstock.spark.pipelines import archive, dead_letters, read_lake, rollup, session

ORDERS = 20_000
DELAYED = 300
POISON_EVERY = 200
FAILS = 0.02
SCHEMA = "n int not null, city string, amount double"

NEXT = """
Open {folder}/rollup/rollup.html in a browser: messages, lag and latencies, minute by minute.
   {folder}/lake/orders   every message, as a Delta table; orders.bad is what was no order
   {bin}/penstock stats orders --data {folder}/data
   {bin}/penstock inspect {folder}/data   what lies in the data folder"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", metavar="FOLDER", help="leave data, lake and charts there")
    parser.add_argument("--orders", type=int, default=ORDERS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    place = nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory()
    with place as folder:
        verdict = Demo(os.path.abspath(folder), options.orders).run()
    if options.keep:
        print(
            NEXT.format(folder=options.keep, bin=os.path.relpath(os.path.dirname(sys.executable)))
        )
    else:
        print("It is all removed again; run it with --keep FOLDER to look at it.")
    return verdict


class Demo:
    def __init__(self, folder: str, orders: int) -> None:
        self.data, self.lake, self.out = (
            os.path.join(folder, name) for name in ("data", "lake", "rollup")
        )
        self.orders = orders
        self.began = time.monotonic()
        self.done: set[int] = set()
        self.failures = 0

    def run(self) -> int:
        self.say(f"A broker in this process, on {self.data}; Spark starts beside it.")
        with session("local[2]", "penstock demo") as spark:
            with penstock.connect(self.data) as ps:
                self.open_shop(ps)
                workers = [threading.Thread(target=self.work, args=(ps, n)) for n in range(2)]
                for worker in workers:
                    worker.start()
                self.publish(ps)
                self.say("The archive reads the folder while the broker writes to it ...")
                first = archive(spark, self.data, self.lake, ["orders"], schema=SCHEMA)
                self.say(f"   {first.rows:,} messages are in the Delta table {first.tables[0]}")
                for worker in workers:
                    worker.join()
                letters = len(ps.dead_letters("orders"))
                self.say(
                    f"The workers are done: {len(self.done):,} orders, {self.failures:,} failures "
                    f"that were tried again, {letters:,} dead letters."
                )
                self.say(f"   {self.latencies(ps)}")
            chart = rollup(spark, self.data, ["orders"], self.out)
            self.say(
                f"The roll-up: {chart.messages:,} messages and how long they took, "
                f"minute by minute: {chart.chart}"
            )
            triage = dead_letters(spark, self.data, ["orders"])
            for cause in triage.causes[:3]:
                self.say(
                    f"   {cause.count:,} x {cause.reason}: {cause.error}  ({cause.samples[0]})"
                )
            redriven = dead_letters(
                spark, self.data, ["orders"], action="redrive", where="reason = 'max_retries'"
            )
            self.say(f"The workers are repaired, and {redriven.redriven:,} letters redriven.")
            with penstock.connect(self.data) as ps:
                self.work(ps, 2, repaired=True)
            second = archive(spark, self.data, self.lake, ["orders"], schema=SCHEMA)
            good = read_lake(spark, os.path.join(self.lake, "orders")).count()
            bad = read_lake(spark, os.path.join(self.lake, "orders.bad")).count()
        return self.verdict(good, bad, first.rows + second.rows, redriven.redriven)

    def open_shop(self, ps: Client) -> None:
        ps.create_topic(
            "orders",
            partitions=2,
            max_retries=2,
            backoff=("50ms", 2.0, "500ms"),
            retention_waits_for=["archive"],
        )

    def publish(self, ps: Client) -> None:
        dice = random.Random(1)
        for start in range(0, self.orders, 500):
            numbers = range(start, min(start + 500, self.orders))
            priorities = dice.choices(["critical", "high", "normal", "low"], [1, 4, 90, 5], k=500)
            ps.publish_batch(
                "orders",
                [self.body(number, dice) for number in numbers],
                keys=[f"c-{number % 97}" for number in numbers],
                priority=priorities[: len(numbers)],
            )
        late = [self.body(self.orders + number, dice) for number in range(DELAYED)]
        ps.schedule_batch("orders", late, delay="2s")
        # Spark reads what is durable, and this topic is synced once a second.
        while any(part.durable_end < part.end for part in ps.stats("orders").partitions):
            time.sleep(0.1)
        self.say(f"{self.orders:,} orders are published, {DELAYED} more in two seconds.")

    def body(self, number: int, dice: random.Random) -> str:
        if number % POISON_EVERY == 13:
            return f"order {number}: two of the blue ones"
        return json.dumps({"n": number, "city": "Bergen", "amount": dice.randint(1, 99)})

    def work(self, ps: Client, number: int, repaired: bool = False) -> None:
        """Until nothing has come for three seconds."""
        dice = random.Random(number)
        last = time.monotonic()
        while time.monotonic() - last < 3:
            for message in ps.receive("orders", "billing", max_messages=100, wait="500ms"):
                last = time.monotonic()
                try:
                    self.handle(message.value or b"", dice, repaired)
                    message.ack()
                except ValueError as exc:
                    self.failures += 1
                    message.nack(error=f"{type(exc).__name__}: {exc}")

    def handle(self, value: bytes, dice: random.Random, repaired: bool) -> None:
        if repaired and value.startswith(b"order "):
            self.done.add(int(value.split()[1].rstrip(b":")))
            return
        if not repaired and dice.random() < FAILS:
            raise ValueError("the payment service is tired")
        self.done.add(json.loads(value)["n"])

    def latencies(self, ps: Client) -> str:
        (billing,) = ps.stats("orders").groups
        waited, handled = billing.waited, billing.handled
        if waited is None or handled is None:
            return "They were done more than five minutes ago."
        return (
            f"19 of 20 orders waited less than {waited.p95_us / 1e6:.1f} s for a worker, which "
            f"was done with half of them within {handled.p50_us / 1000:.1f} ms."
        )

    def verdict(self, good: int, bad: int, archived: int, redriven: int) -> int:
        sold = self.orders + DELAYED
        with penstock.connect(self.data) as ps:
            stored = ps.stats("orders").messages
            lag = sum(ps.describe_stream_group("archive").lag.values())
        checks = {
            f"every order was worked off: {len(self.done):,} of {sold:,}": len(self.done) == sold,
            f"the log has the orders and what was redriven: {stored:,}": stored == sold + redriven,
            f"the lake has each message once: {good:,} + {bad:,} bad": good + bad == stored,
            f"and counted as many: {archived:,}": archived == stored,
            f"the archive's group has {lag} to do": lag == 0,
        }
        for what, holds in checks.items():
            self.say(f"   {'yes' if holds else 'NO '}  {what}")
        return 0 if all(checks.values()) else 1

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self.began:5.1f} s  {line}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
