"""What clients of a cluster were told, and whether the cluster keeps to it.

Producers and consumers write down each confirmation that they get. At the end everything is read:
no confirmed message may be missing or be there twice, none that nobody sent may be there, none may
have come back after a confirmed ack, none may have come before its delay was over, and those of a
key must have come in their order. Of a transaction both messages are there or neither, and no group
of a stream begins before a position that it has committed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import penstock
from penstock.errors import LeaseLost, PenstockError

TOPIC = "orders"
BILLS = "bills-of-orders"
GROUP = "billing"
READERS = "readers"
KEYS = 8
_DELAY_S = 1.0


class Checker:
    """Told from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.tried: set[bytes] = set()
        self.confirmed: dict[bytes, float] = {}
        self.not_before: dict[bytes, float] = {}
        self.acked: set[bytes] = set()
        self.problems: list[str] = []
        self.handed: Counter[bytes] = Counter()
        self.in_transactions: set[bytes] = set()
        self.offsets: dict[int, int] = {}
        self.commits = 0

    def sending(self, value: bytes, delay_s: float = 0) -> None:
        with self._lock:
            self.tried.add(value)
            if delay_s:
                self.not_before[value] = time.time() + delay_s

    def sent(self, value: bytes) -> None:
        with self._lock:
            self.confirmed[value] = time.monotonic()

    def received(self, value: bytes) -> None:
        with self._lock:
            self.handed[value] += 1
            if value not in self.tried:
                self.problems.append(f"{value!r} came, and nobody sent it")
            if value in self.acked:
                self.problems.append(f"{value!r} came back after its ack was confirmed")
            if time.time() < self.not_before.get(value, 0):
                self.problems.append(f"{value!r} came before its time")

    def sending_both(self, value: bytes) -> None:
        """To the topic and to the bills, in one transaction."""
        with self._lock:
            self.tried.add(value)
            self.in_transactions.add(value)

    def began_at(self, partition: int, offset: int) -> None:
        """A group got a partition, or got it back, and reads from there on."""
        with self._lock:
            if offset < (committed := self.offsets.get(partition, 0)):
                self.problems.append(f"a group begins at {offset}, and has committed {committed}")

    def offsets_confirmed(self, offsets: dict[int, int]) -> None:
        with self._lock:
            self.commits += 1
            self.offsets |= offsets

    def ack_confirmed(self, value: bytes) -> None:
        with self._lock:
            self.acked.add(value)

    def check(
        self, logs: Iterable[list[tuple[bytes, bytes]]], bills: Iterable[bytes] | None = None
    ) -> list[str]:
        """What is wrong; `logs` has key and value of each message, partition by partition. `bills`:
        the other halves of transactions, where these were looked at."""
        found = list(self.problems)
        seen: Counter[bytes] = Counter()
        for log in logs:
            last: dict[bytes, list[int]] = {}
            for key, value in log:
                seen[value] += 1
                number = int(value.split(b":")[1])
                if value not in self.not_before:
                    last.setdefault(key, []).append(number)
            for key, numbers in last.items():
                if any(before > after for before, after in pairwise(numbers)):
                    found.append(f"the messages of key {key!r} are not in their order")
        found += [
            f"{value!r} was confirmed, and is lost" for value in self.confirmed if not seen[value]
        ]
        found += [f"{value!r} is there {n} times" for value, n in seen.items() if n > 1]
        found += [
            f"{value!r} is there, and nobody sent it" for value in seen if value not in self.tried
        ]
        if bills is not None:
            counts = Counter(bills)
            found += [
                f"the bill {value!r} is there {n} times" for value, n in counts.items() if n > 1
            ]
            for value in self.in_transactions:
                if bool(counts[value]) != bool(seen[value]):
                    found.append(f"only half of the transaction of {value!r} is there")
        return found


class Load:
    """Clients at work on any of the nodes, until it is told to stop."""

    def __init__(self, urls: list[str], checker: Checker, *, delays: bool = True) -> None:
        self._urls = urls
        self._checker = checker
        self._delays = delays
        self._stop = threading.Event()
        self.errors: list[str] = []
        work = [(self._produce, n) for n in range(2)] + [(self._consume, n) for n in range(2)]
        work += [(self._transact, 2), (self._read, 0)]
        self._threads = [
            threading.Thread(target=self._guarded, args=each, daemon=True) for each in work
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(90)
            if thread.is_alive():
                self.errors.append("a client hangs")

    def _guarded(self, work, number: int) -> None:  # type: ignore[no-untyped-def]
        try:
            work(number)
        except Exception as exc:  # noqa: BLE001 - it is told at the end
            self.errors.append(repr(exc))

    def _connect(self, number: int) -> penstock.Client:
        deadline = time.monotonic() + 60
        while True:
            for shift in range(len(self._urls)):
                url = self._urls[(number + shift) % len(self._urls)]
                try:
                    return penstock.connect(url, retry_for="6s", timeout="10s")
                except PenstockError:
                    continue
            if time.monotonic() > deadline:
                raise TimeoutError("no node answers")
            time.sleep(0.2)

    def _produce(self, number: int) -> None:
        """Each message under a deduplication id, and sent until it is confirmed: exactly once."""
        count, node = 0, number
        client = self._connect(node)
        while not self._stop.is_set():
            count += 1
            key = b"%d-%d" % (number, count % KEYS)
            value = b"p%d:%d" % (number, count)
            delay_s = _DELAY_S if self._delays and count % 10 == 0 else 0
            self._checker.sending(value, delay_s)
            while True:
                try:
                    client.publish(
                        TOPIC,
                        value,
                        key=key,
                        dedup_id=value.decode(),
                        **({"delay": delay_s} if delay_s else {}),
                    )
                    break
                except PenstockError:
                    client.close()
                    node += 1
                    client = self._connect(node)
            self._checker.sent(value)
            time.sleep(0.01)
        client.close()

    def _transact(self, number: int) -> None:
        """A message and its bill, under a deduplication id each, until both are confirmed."""
        count, node = 0, number
        client = self._connect(node)
        while not self._stop.is_set():
            count += 1
            value = b"p%d:%d" % (number, count)
            self._checker.sending_both(value)
            while True:
                try:
                    with client.transaction() as tx:
                        for topic in (TOPIC, BILLS):
                            tx.publish(topic, value, key=b"both", dedup_id=value.decode())
                    break
                except PenstockError:
                    client.close()
                    node += 1
                    client = self._connect(node)
            self._checker.sent(value)
            time.sleep(0.1)
        client.close()

    def _read(self, number: int) -> None:
        """A group of a stream, which begins anew again and again."""
        node = number
        client = self._connect(node)
        while not self._stop.is_set():
            try:
                self._read_on(client)
            except PenstockError:
                client.close()
                node += 1
                client = self._connect(node)
        client.close()

    def _read_on(self, client: penstock.Client) -> None:
        known: set[int] = set()
        options = {"commit_every": None, "session_timeout": "6s"}
        with client.stream(TOPIC, READERS, **options) as stream:
            for _ in range(50):
                message = stream.next(wait=0.5)
                if self._stop.is_set():
                    return
                if message is None:
                    continue
                if message.partition not in known:
                    known.add(message.partition)
                    self._checker.began_at(message.partition, message.offset)
                if message.offset % 10 == 0:
                    stream.commit()  # of what it still has, which it may not have had all the time
                    done = {place.partition: at for place, at in stream.position.items()}
                    self._checker.offsets_confirmed(done)

    def _consume(self, number: int) -> None:
        node = number + 1
        client = self._connect(node)
        while not self._stop.is_set():
            try:
                messages = client.receive(TOPIC, group=GROUP, max_messages=10, wait=0.5)
                for message in messages:
                    self._checker.received(message.value)
                for message in messages:
                    message.ack()
                    self._checker.ack_confirmed(message.value)
            except LeaseLost:
                continue
            except PenstockError:
                client.close()
                node += 1
                client = self._connect(node)
        client.close()


def drain(client: penstock.Client, checker: Checker, timeout_s: float = 60) -> None:
    """Receive and ack what is left."""
    deadline, idle = time.monotonic() + timeout_s, 0
    while time.monotonic() < deadline and idle < 8:  # longer than a lease lasts
        messages = client.receive(TOPIC, group=GROUP, max_messages=100, wait=1)
        idle = 0 if messages else idle + 1
        for message in messages:
            checker.received(message.value)
            message.ack()
            checker.ack_confirmed(message.value)


def make_topics(client: penstock.Client) -> None:
    client.create_topic(TOPIC, partitions=2, visibility="5s")
    client.create_topic(BILLS)


def bills_of(client: penstock.Client) -> list[bytes]:
    return [value for log in logs_of(client, BILLS) for _, value in log]


def logs_of(client: penstock.Client, topic: str = TOPIC) -> list[list[tuple[bytes, bytes]]]:
    """All messages of a topic, as they lie there."""
    found: list[list[tuple[bytes, bytes]]] = []
    partitions = len(client.stats(topic).partitions)
    for partition in range(partitions):
        rows: list[tuple[bytes, bytes]] = []
        at = 0
        while page := client.peek(topic, at=at, partition=partition, limit=1000):
            rows += [(message.key or b"", message.value) for message in page]
            at = page[-1].offset + 1
        found.append(rows)
    return found
