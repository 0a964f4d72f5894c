"""Where every message of a group has to be: one dictionary, looked up the slow and obvious way."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from penstock.delivery.ledger import Acked, Event, Expired, Extended, Nacked, Rejected


@dataclass
class Fate:
    """What the model knows of one message in one group."""

    place: Literal["ready", "leased", "waiting", "done"] = "ready"
    deliveries: int = 0
    nonce: int = 0
    deadline_ns: int = 0  # leased until, or waiting until, in ledger time
    first_us: int = 0
    last_us: int = 0
    consumer: str = ""
    error: str = ""


@dataclass
class Model:
    fates: dict[int, Fate] = field(default_factory=dict)  # of every message in the log
    told_ns: int = 0  # the ledger time that an event told last
    start: int = 0  # everything below is done
    until_us: dict[int, int] = field(default_factory=dict)  # by nonce: when it ends, in true time

    def copy(self) -> Model:
        fates = {offset: replace(fate) for offset, fate in self.fates.items()}
        return Model(fates, self.told_ns, self.start, dict(self.until_us))

    def placed(self, place: str) -> dict[int, Fate]:
        return {offset: fate for offset, fate in self.fates.items() if fate.place == place}


def touched(events: tuple[Event, ...], model: Model, nonce: int | None = None) -> list[int]:
    """The messages that settling events speak of."""
    offsets: list[int] = []
    for event in events:
        assert isinstance(event, Acked | Nacked | Rejected | Extended | Expired)
        assert nonce is None or event.nonce == nonce
        if isinstance(event, Extended) and not event.offsets:
            leased = model.placed("leased")
            offsets += [o for o, fate in leased.items() if fate.nonce == event.nonce]
        else:
            offsets += event.offsets
    return offsets
