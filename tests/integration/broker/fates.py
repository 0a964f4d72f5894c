"""What became of each message for each group, as far as a killed process could tell.

A fate is told by deliveries (each has a number, the delivery count) and by an end: acked, rejected,
or nacked for the last time. The folder that the process left says the same in its own words: a
message is still to be delivered, or it is done, with a dead letter or without one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from penstock.broker.dead_letters import Letter
from tests.integration.broker.doomed import MAX_RETRIES

DELIVERIES_MAX = MAX_RETRIES + 1


@dataclass
class Fate:
    """Of one message, for one group."""

    told: set[int] = field(default_factory=set)
    """Deliveries that a consumer heard of."""
    untold: int = 0
    """Deliveries that nobody heard of: the process was killed before they were returned."""
    doing: set[tuple[str, int]] = field(default_factory=set)
    """What somebody was about to do, with which delivery, when the process was killed."""
    end: str = ""
    """What is sure to have been done; nothing else may happen to it from then on."""
    last: int = DELIVERIES_MAX
    """The delivery that it was done with."""
    lines: list[str] = field(default_factory=list)

    def hear(self, line: str, event: str, delivery: int) -> None:
        """Consumers speak all at once: one may say late what it did before another one came."""
        self.lines.append(line)
        match event:
            case "got":
                assert delivery not in self.told, f"delivery {delivery} twice: {self}"
                self.told.add(delivery)
            case "acking" | "nacking" | "rejecting":
                self.doing.add((event, delivery))
            case "refused":
                self._no_longer_doing(delivery)
            case "nacked" if delivery < DELIVERIES_MAX:
                self._no_longer_doing(delivery)
            case "acked" | "nacked" | "rejected":
                assert not self.end, f"done already: {self}"
                self.end, self.last = event, delivery
                self._no_longer_doing(delivery)
        assert max(self.told) <= self.last, f"came back: {self}"

    def still_to_do(self, attempts: int, letters: list[Letter], untold_max: int) -> None:
        """The folder has it among what is to be delivered, after so many attempts."""
        assert not self.end, f"came back: {self}"
        assert not letters, f"to be delivered, and a dead letter: {letters}, {self}"
        self._count(attempts, untold_max)
        self.doing.clear()

    def is_done(self, letters: list[Letter], untold_max: int) -> None:
        """The folder has it neither among what is to be delivered nor in anyone's hands."""
        assert len(letters) <= 1, f"it died twice: {letters}, {self}"
        if not letters:
            assert self.end == "acked" or (not self.end and self._was("acking")), f"lost: {self}"
            self.end = "acked"
            return
        (letter,) = letters
        assert self.end != "acked", f"acked, and a dead letter: {letter}, {self}"
        if letter.reason == "rejected":
            assert self.end == "rejected" or self._was("rejecting"), f"{letter}, {self}"
            self.end = "rejected"
        else:
            assert self.end != "rejected", f"{letter}, {self}"
            assert letter.reason == "max_retries"
            assert letter.attempts == DELIVERIES_MAX, f"{letter.attempts} attempts: {self}"
            self.end = "nacked"
        self._count(letter.attempts, untold_max)

    def _was(self, doing: str) -> bool:
        return any(event == doing for event, _ in self.doing)

    def _no_longer_doing(self, delivery: int) -> None:
        self.doing = {each for each in self.doing if each[1] != delivery}

    def _count(self, attempts: int, untold_max: int) -> None:
        """Attempts go on where they were."""
        more = attempts - len(self.told) - self.untold
        assert 0 <= more <= untold_max, f"{attempts} attempts: {self}"
        assert max(self.told, default=0) <= attempts, f"{attempts} attempts: {self}"
        self.untold += more


class Fates:
    def __init__(self) -> None:
        self._fates: dict[tuple[str, str, str], Fate] = {}
        self._receiving: Counter[tuple[str, str]] = Counter()
        """Consumers that may have been given messages without being told."""

    def begin_life(self) -> None:
        self._receiving.clear()

    def hear(self, line: str, event: str, topic: str, group: str, words: list[str]) -> None:
        match event:
            case "receiving":
                self._receiving[topic, group] += 1
            case "received":
                self._receiving[topic, group] -= 1
            case _:
                self._fate(topic, group, words[0]).hear(line, event, int(words[1]))

    def check(
        self,
        topic: str,
        group: str,
        values: set[str],
        attempts: dict[str, int],
        letters: dict[str, list[Letter]],
    ) -> None:
        """`values` are all messages that there are; `attempts` has those still to be delivered."""
        untold_max = self._receiving[topic, group]
        for value in values:
            fate = self._fate(topic, group, value)
            there = letters.get(value, [])
            if value in attempts:
                fate.still_to_do(attempts[value], there, untold_max)
            else:
                fate.is_done(there, untold_max)

    def _fate(self, topic: str, group: str, value: str) -> Fate:
        return self._fates.setdefault((topic, group, value), Fate())
