"""What an answer of a receiver means, when to try again, and when to leave it alone for a while."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Literal, NamedTuple

from penstock.model.settings import TopicSettings
from penstock.model.webhooks import STANDARD_SCHEDULE_S, WebhookSettings
from penstock.randomness import own_random

Verdict = Literal["taken", "failed", "throttled", "gone", "aborted"]

FAILING_S_MAX = 5 * 24 * 3600
"""A receiver that fails for so long is disabled."""
_THROTTLES = (429, 502, 503, 504)
_RETRY_AFTER_S_MAX = 3600.0
_FAILURES_MAX = 5
_PAUSE_S, _PAUSE_S_MAX = 1.0, 60.0


class WebhookOutcome(NamedTuple):
    verdict: Verdict
    status: int | None
    error: str
    response: str = ""
    retry_after_s: float = 0.0


def outcome_of(
    status: int, headers: Mapping[str, str], response: bytes, now_s: float
) -> WebhookOutcome:
    text = response.decode("utf-8", "replace")
    if 200 <= status < 300:
        return WebhookOutcome("taken", status, "", text)
    error = f"the receiver answered {status}"
    if headers.get("webhook-delivery", "").lower() == "abort-message":
        return WebhookOutcome("aborted", status, f"{error} and wants no retry", text)
    if status == 410:
        return WebhookOutcome("gone", status, f"{error}: it is gone", text)
    if status in _THROTTLES:
        return WebhookOutcome("throttled", status, error, text, retry_after_s(headers, now_s))
    if 300 <= status < 400:
        error += "; redirects are not followed"
    return WebhookOutcome("failed", status, error, text)


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float:
    """What the receiver asks for: seconds, or a date; an hour at the most."""
    given = headers.get("retry-after", "").strip()
    try:
        wanted = (
            float(given) if given.isdigit() else parsedate_to_datetime(given).timestamp() - now_s
        )
    except (TypeError, ValueError):
        return 0.0
    return min(max(wanted, 0.0), _RETRY_AFTER_S_MAX)


def pause_before(attempt: int, settings: WebhookSettings, topic: TopicSettings) -> float | None:
    """How long to wait after a failed attempt, counted from 1; None: that was the last."""
    if settings.retries == "standard":
        if attempt > len(STANDARD_SCHEDULE_S):
            return None
        return STANDARD_SCHEDULE_S[attempt - 1] * own_random.uniform(0.9, 1.1)
    if topic.max_retries is not None and attempt > topic.max_retries:
        return None
    return topic.policy().backoff.delay_ms(attempt) / 1000


class ReceiverBreaker:
    """After some failures in a row, only one request is let through now and then."""

    def __init__(self) -> None:
        self._failures = 0
        self._open_until_s = 0.0
        self._probing = False

    def wait_s(self, now_s: float) -> float:
        """How long nothing may be sent; 0: something may."""
        if now_s < self._open_until_s:
            return self._open_until_s - now_s
        if self._failures >= _FAILURES_MAX and self._probing:
            return 0.05  # what becomes of the one that was let through?
        return 0.0

    def began(self) -> None:
        self._probing = self._failures >= _FAILURES_MAX

    def ended(self, outcome: WebhookOutcome, now_s: float) -> None:
        self._probing = False
        if outcome.verdict in ("taken", "aborted"):
            self._failures, self._open_until_s = 0, 0.0
            return
        self._failures += 1
        pause_s = outcome.retry_after_s
        if self._failures >= _FAILURES_MAX:
            over = min(self._failures - _FAILURES_MAX, 10)
            pause_s = max(pause_s, min(_PAUSE_S * 2**over, _PAUSE_S_MAX))
        self._open_until_s = max(self._open_until_s, now_s + pause_s)
