"""What becomes of a message whose handler returned or raised: decided here, done elsewhere."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.delivery.backoff import Backoff
from penstock.durations import parse_ns
from penstock.errors import Reject, Retry
from penstock.worker.bodies import Undecodable

Verdict = Literal["acked", "retried", "rejected"]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How a consumer deals with failures. None: as the topic says."""

    retries: int | None = None
    backoff: Backoff | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with a message."""

    verdict: Verdict
    error: str = ""
    delay_ns: int | None = None
    """Before the next attempt; None: by the backoff of the topic."""


ACKED = Outcome(verdict="acked")


def outcome_of(error: BaseException | None, delivery_count: int, policy: Policy) -> Outcome:
    """`delivery_count` counts this attempt too."""
    if error is None:
        return ACKED
    if isinstance(error, Reject | Undecodable):
        return Outcome(verdict="rejected", error=str(error))
    text = str(error) if isinstance(error, Retry) else f"{type(error).__name__}: {error}"
    if policy.retries is not None and delivery_count > policy.retries:
        return Outcome(
            verdict="rejected", error=f"given up after {delivery_count} attempts: {text}"
        )
    delay_ns = None
    if isinstance(error, Retry) and error.delay is not None:
        delay_ns = parse_ns(error.delay, "delay")
    elif policy.backoff is not None:
        delay_ns = policy.backoff.delay_ms(delivery_count) * 1_000_000
    return Outcome(verdict="retried", error=text, delay_ns=delay_ns)
