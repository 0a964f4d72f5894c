"""What becomes of a message whose handler returned or raised: decided here, done elsewhere."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.delivery.backoff import Backoff
from penstock.delivery.queue import fewer_retries
from penstock.durations import parse_ns
from penstock.errors import Reject, Retry
from penstock.worker.bodies import Undecodable

Verdict = Literal["acked", "retried", "rejected", "given_up"]
"""The last two are dead letters: one no retry would help, and one whose retries are used up."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a consumer deals with failures. None: as the topic says."""

    retries: int | None = None
    backoff: Backoff | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with a message."""

    verdict: Verdict
    error: str = ""
    delay_ns: int | None = None
    """Before the next attempt; None: by the backoff of the topic."""

    @property
    def is_dead_letter(self) -> bool:
        return self.verdict in ("rejected", "given_up")

    @property
    def delay_s(self) -> float | None:
        return None if self.delay_ns is None else self.delay_ns / 1e9


ACKED = Outcome(verdict="acked")


def outcome_of(
    error: BaseException | None,
    delivery_count: int,
    policy: RetryPolicy,
    retries_max: int | None = None,
) -> Outcome:
    """`delivery_count` counts this attempt too. `retries_max` is the limit of the topic."""
    if error is None:
        return ACKED
    if isinstance(error, Reject | Undecodable):
        return Outcome(verdict="rejected", error=str(error))
    text = str(error) if isinstance(error, Retry) else f"{type(error).__name__}: {error}"
    delay_ns = None
    if isinstance(error, Retry) and error.delay is not None:
        delay_ns = parse_ns(error.delay, "delay")
    elif policy.backoff is not None:
        delay_ns = policy.backoff.delay_ms(delivery_count) * 1_000_000
    retries = fewer_retries(policy.retries, retries_max)
    given_up = retries is not None and delivery_count > retries
    # The delay counts in both cases: the topic may have been given more retries meanwhile.
    return Outcome(verdict="given_up" if given_up else "retried", error=text, delay_ns=delay_ns)
