"""What the demo knows of the shop: only what the shop told, and what that adds up to."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from shop import MAX_RETRIES, PRIORITIES, TILLS, Plan


class Check(NamedTuple):
    """A line of the summary: whether it is as it has to be, what, and the figures."""

    good: bool
    what: str
    figures: str


class Records:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.began = self.opened_at = time.time()
        self.life = 0
        self.news: deque[str] = deque(maxlen=400)
        self.stats: dict[str, Any] = {}
        self.tills = {f"till {number}": "" for number in range(1, TILLS + 1)}
        self.acked_by_priority = [0] * len(PRIORITIES)
        self.published: set[int] = set()
        self.duplicates = 0
        self.gifts = 0
        self.cancelled: int | None = None
        self.letters: list[tuple[str, str, int, str]] = []
        self.redriven = self.purged = 0
        self.rejected: set[str] = set()
        self.failures: Counter[str] = Counter()
        self.given_up = False
        self.charged: Counter[str] = Counter()  # by what was ordered
        self.charges: Counter[str] = Counter()  # by message
        self.priority_of: dict[str, int] = {}
        self.sent_us_of: dict[str, int] = {}
        self.acked_at: dict[str, float] = {}
        self.handed_out_again = 0  # after an ack that was confirmed: must not be
        self.in_hand: set[str] = set()
        self.interrupted: set[str] = set()  # in somebody's hands when the process ended, or late
        self.gift_late_ms: list[float] = []
        self.down: list[tuple[float, float]] = []
        self.audited: list[dict[int, tuple[int, int]]] = []
        self.audit_gaps = 0
        self.rush: tuple[str, int] | None = None
        self.wait_ms: dict[str, float] = {}
        self.closed = False

    def note(self, line: str) -> None:
        event = json.loads(line)
        getattr(self, f"_{event.pop('what')}")(**event)

    def say(self, text: str) -> None:
        self.news.append(f"{time.time() - self.began:5.1f} s  {text}")

    def killed(self) -> None:
        self.interrupted |= self.in_hand
        self.down.append((time.time(), 0.0))
        self.tills = dict.fromkeys(self.tills, "[dim]gone[/]")
        stats, self.stats, self.in_hand = self.stats, {}, set()
        to_do = sum(sum(stats[column]) for column in ("waiting", "in_flight", "retrying"))
        self.say(
            f"[bold red]kill -9[/], with about {to_do} orders to do, {sum(stats['in_flight'])} of "
            f"them held, {stats['delayed']} delayed, {stats['dead']} dead"
        )

    # One method for each thing that the shop tells.

    def _open(
        self, at: float, took_ms: float, to_do: int, in_flight: int, delayed: int, dead: int
    ) -> None:
        self.life += 1
        self.opened_at = at
        self.audited.append({})
        if self.life == 1:
            self.say(f"the shop opens, with a backlog of {self.plan.backlog} orders")
        else:
            self.down[-1] = (self.down[-1][0], at)
            self.say(
                f"[bold green]back in {took_ms:.0f} ms[/], with {to_do} orders to do, {in_flight} "
                f"of them still held, {delayed} delayed, {dead} dead"
            )

    def _scheduled(self, at: float, gifts: int, cancelled: int | None) -> None:
        self.gifts, self.cancelled = gifts, cancelled
        self.say(f"{gifts} gifts are to be delivered later; one of them was cancelled")

    def _published(self, at: float, orders: list[int], duplicates: int) -> None:
        if self.life > 1 and duplicates and not self.duplicates:
            self.say(
                "the last orders are sent once more, to be sure; known ids are not stored again"
            )
        self.published.update(orders)
        self.duplicates += duplicates

    def _rush(self, at: float, id: str, behind: int) -> None:
        self.rush = id, behind
        self._tell_of_rush()

    def _received(
        self, at: float, id: str, till: str, attempt: int, priority: int, sent_us: int
    ) -> None:
        if id in self.acked_at:
            self.handed_out_again += 1
        self.priority_of[id] = priority
        self.sent_us_of[id] = sent_us
        self.in_hand.add(id)
        if attempt == 1:
            self.wait_ms[id] = at * 1000 - sent_us / 1000
            self._tell_of_rush()
        self.tills[till] = f"[dim]{PRIORITIES[priority]}[/]"

    def _charged(
        self,
        at: float,
        id: str,
        till: str,
        attempt: int,
        total: float,
        order: int | None = None,
        gift: int | None = None,
        due_us: int | None = None,
        currency: str = "EUR",
    ) -> None:
        self.charges[id] += 1
        if gift is not None:
            self.charged[f"gift {gift}"] += 1
            if due_us is not None and not self._was_down(due_us / 1e6, self.sent_us_of[id] / 1e6):
                self.gift_late_ms.append((self.sent_us_of[id] - due_us) / 1000)
        else:
            self.charged[f"order {order}"] += 1
        again = f"[yellow], attempt {attempt}[/]" if attempt > 1 else ""
        what = f"order {order}" if gift is None else f"[magenta]gift {gift}[/]"
        lane = PRIORITIES[self.priority_of[id]]
        self.tills[till] = f"{what}  [dim]{lane}[/]  {total:.2f} {currency}{again}"

    def _acked(self, at: float, id: str, till: str, attempt: int) -> None:
        self.acked_at[id] = at
        self.acked_by_priority[self.priority_of[id]] += 1
        self.in_hand.discard(id)

    def _failed(self, at: float, id: str, till: str, attempt: int, error: str, order: int) -> None:
        self.in_hand.discard(id)
        self.failures[error] += 1
        last = attempt > MAX_RETRIES
        then = "given up: a dead letter" if last else "to be tried again"
        self.tills[till] = f"order {order}  [red]{error}[/], {then}"
        if last and not self.given_up:
            self.given_up = True
            self.say(f"order {order}: {error}, {attempt} times; it is a dead letter now")

    def _rejected(self, at: float, id: str, till: str, attempt: int) -> None:
        self.in_hand.discard(id)
        if not self.rejected:
            self.say("a message is no order at all; it is rejected, straight to the dead letters")
        self.rejected.add(id)
        self.tills[till] = "[red]not an order[/], rejected"

    def _late(self, at: float, id: str, till: str, attempt: int, error: str) -> None:
        self.in_hand.discard(id)
        self.interrupted.add(id)
        self.tills[till] = "[red]too late: the lease ran out[/]"

    def _audited(self, at: float, partition: int, offset: int) -> None:
        seen = self.audited[-1]
        first, next_ = seen.get(partition, (offset, offset))
        self.audit_gaps += offset != next_
        seen[partition] = (first, offset + 1)

    def _stats(self, at: float, **stats: Any) -> None:
        self.stats = stats

    def _letters(self, at: float, letters: list[tuple[str, str, int, str]]) -> None:
        self.letters = [(reason, error, attempts, by) for reason, error, attempts, by in letters]
        self.say(f"the queue is empty; {len(letters)} dead letters are left. Somebody reads them:")
        groups = Counter((reason, error, attempts) for reason, error, attempts, _ in self.letters)
        for (reason, error, attempts), count in groups.most_common():
            tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
            self.say(f"  {count} x [yellow]{reason}[/] after {tries}: {error}")

    def _triaged(self, at: float, redriven: int, purged: int) -> None:
        self.redriven, self.purged = redriven, purged
        self.say(f"the rate is known now: {redriven} letters are redriven, {purged} are purged")

    def _closed(self, at: float) -> None:
        self.closed = True
        self.say("the shop closes, and leaves a clean folder")

    def _tell_of_rush(self) -> None:
        if self.rush and self.rush[0] in self.wait_ms:
            (id_, behind), self.rush = self.rush, None
            waited = f"{self.wait_ms[id_]:.0f} ms"
            self.say(
                f"a critical order came behind {behind} others, and was in hand after {waited}"
            )

    def _was_down(self, due: float, sent: float) -> bool:
        """It fell due while there was no shop, or hardly one, and came when there was again."""
        return any(down - 0.5 <= due <= up + 0.5 and sent >= down for down, up in self.down)

    # The sum of it.

    def checks(self, stored: int, ends: dict[int, int], left: int) -> Iterator[Check]:
        """What has to be true; `stored`, `ends` and `left` are what the data folder says itself."""
        plan = self.plan
        orders = range(1, max(self.published) + 1)
        garbage = {number for number in orders if not plan.order(number).startswith(b"{")}
        wanted = {f"order {number}" for number in orders if number not in garbage}
        wanted |= {f"gift {n}" for n in range(self.gifts) if n != self.cancelled}
        missing, strange = wanted - set(self.charged), set(self.charged) - wanted
        yield Check(
            len(self.published) == len(orders) and not missing and not strange,
            "every order was charged",
            f"{len(wanted & set(self.charged)):,} of {len(wanted):,}; "
            f"{sum(self.failures.values())} attempts failed on the way",
        )
        twice = {id_ for id_, count in self.charges.items() if count > 1}
        yield Check(
            twice <= self.interrupted,
            "twice only what was interrupted",
            f"{len(twice)} in a till's hand, between the charge and the ack",
        )
        yield Check(
            not self.handed_out_again,
            "nothing came back after its ack",
            f"{len(self.acked_at):,} acks were confirmed, {self.handed_out_again} came back",
        )
        delivered = self.gifts - (self.cancelled is not None)
        yield Check(
            stored == len(orders) + delivered + self.redriven,
            "every message was stored once",
            f"{stored:,}: {len(orders):,} orders, {delivered} gifts, {self.redriven} redriven; "
            f"{self.duplicates} sent twice",
        )
        poison = [letter for letter in self.letters if letter[0] == "max_retries"]
        attempts = sorted({letter[2] for letter in poison})
        yield Check(
            len(self.letters) == self.redriven + self.purged
            and self.purged == len(garbage)
            and attempts == [MAX_RETRIES + 1],
            "all poison became dead letters",
            f"{len(poison)} after {' or '.join(map(str, attempts))} attempts; "
            f"{self.purged} rejected at once",
        )
        early = sum(late_ms < 0 for late_ms in self.gift_late_ms)
        worst = f"{max(self.gift_late_ms, default=0):.0f} ms"
        down = delivered - len(self.gift_late_ms)
        yield Check(
            not early,
            "no gift was before its time",
            f"{len(self.gift_late_ms)} came at most {worst} after it; {down} fell due while down",
        )
        reread = self._reread()
        yield Check(
            not self.audit_gaps and reread is not None and self._audited_to() == ends,
            "the auditor saw all, in order",
            f"{sum(ends.values()):,} messages; {reread} of them again after the kill",
        )
        yield Check(not left, "nothing is left", f"{left} waiting, held, delayed or dead")

    def _reread(self) -> int | None:
        """Messages that the auditor read again in its second life; None if it left some out."""
        again = 0
        at: dict[int, int] = {}
        for life in self.audited:
            for partition, (first, next_) in life.items():
                if first > at.get(partition, 0):
                    return None
                again += at.get(partition, 0) - first
                at[partition] = max(next_, at.get(partition, 0))
        return again

    def _audited_to(self) -> dict[int, int]:
        partitions = {partition for life in self.audited for partition in life}
        return {
            p: max(life[p][1] for life in self.audited if p in life) for p in sorted(partitions)
        }
