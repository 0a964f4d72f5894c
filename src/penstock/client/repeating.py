"""Requests that are sent again because their answer was lost, whichever way they went."""

from __future__ import annotations

from penstock.errors import Unavailable
from penstock.model.deliveries import Refusal, Verb

_DONE_BY_THE_FIRST: dict[Verb, str] = {
    "ack": "already_settled",
    "reject": "already_settled",
    "nack": "lease_lost",
    "extend": "",
}
"""How a second attempt is refused if the first one, whose answer was lost, was carried out."""


class AnswerLost(Unavailable):
    """The connection broke after the request was sent: nobody knows whether it has arrived."""


def refused_anew(verb: Verb, refused: list[Refusal]) -> list[Refusal]:
    """Of what a second attempt was refused, that which the first one cannot have caused."""
    return [each for each in refused if each.code != _DONE_BY_THE_FIRST[verb]]
