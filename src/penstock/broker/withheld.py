"""Messages of a partition that some of its readers pass over.

On a dead-letter topic these are the letters that were redriven or purged: they are gone for every
reader. On any topic they are messages that were sent back to the group in which they failed: they
are for that group alone.

Neither is an entry of its own in the ledger. The first are what the group `~letters` has done. The
second lie in frames whose producer id is `REDRIVEN` and whose sequence is the hash of the group's
name; a start finds them there or in the checkpoint. Whatever a group has done is made to agree with
both whenever the group is made, seeks or is recovered, so that no crash lets a reader see one.
"""

from __future__ import annotations

from collections.abc import Mapping

import mmh3

from penstock.delivery.acked import AckedSet
from penstock.delivery.offsets import EMPTY, Offsets
from penstock.record.writing import FrameProducer

LETTERS_GROUP = "~letters"
"""On a dead-letter topic: what this group has done was redriven or purged."""

REDRIVEN = -2
"""In place of a producer id: the frame holds messages that were sent back to one group."""


class Redriven:
    """Messages that were sent back to one group each, by the hash of its name."""

    def __init__(self) -> None:
        self.by_group: dict[int, Offsets] = {}

    def __bool__(self) -> bool:
        return bool(self.by_group)

    def add(self, group_hash: int, offsets: Offsets) -> None:
        self.by_group[group_hash] = self.by_group.get(group_hash, EMPTY) | offsets

    def only_for(self, group: str) -> Offsets:
        """What only this group gets."""
        return self.by_group.get(group_hash(group), EMPTY)

    def not_for(self, group: str | None) -> Offsets:
        """What a queue group passes over or, with None, everybody who is none."""
        own = None if group is None else group_hash(group)
        passed_over = EMPTY
        for each, offsets in self.by_group.items():
            if each != own:
                passed_over |= offsets
        return passed_over

    def keep_between(self, start: int, end: int) -> None:
        """The log holds these offsets."""
        held = Offsets.run(start, end)
        self.by_group = {
            each: left for each, its in self.by_group.items() if (left := its & held).count
        }

    def snapshot(self) -> dict[int, Offsets]:
        return dict(self.by_group)

    def restore(self, snapshot: Mapping[int, Offsets]) -> None:
        self.by_group = dict(snapshot)


def sent_back_to(group: str) -> FrameProducer:
    """What marks the frame of messages that are for one group alone."""
    return FrameProducer(REDRIVEN, group_hash(group))


def group_hash(group: str) -> int:
    return mmh3.hash64(group.encode())[0]


def done_between(acked: AckedSet, start: int, end: int) -> Offsets:
    """Which of some offsets are done."""
    return acked.among(Offsets.run(start, end))
