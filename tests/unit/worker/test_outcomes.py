"""What becomes of a message whose handler failed."""

from __future__ import annotations

import pytest

from penstock.delivery.backoff import Backoff
from penstock.errors import Reject, Retry
from penstock.worker.bodies import Undecodable
from penstock.worker.outcomes import ACKED, Outcome, RetryPolicy, outcome_of

PLAIN = RetryPolicy()
SECOND = 1_000_000_000


def test_what_went_well_is_acked() -> None:
    assert outcome_of(None, 7, RetryPolicy(retries=0)) == ACKED


def test_an_error_is_retried_as_the_topic_says() -> None:
    assert outcome_of(ValueError("no bank"), 1, PLAIN) == Outcome(
        verdict="retried", error="ValueError: no bank", delay_ns=None
    )


@pytest.mark.parametrize("error", [Reject("no such thing"), Undecodable("no such thing")])
def test_what_no_retry_would_help_is_rejected_at_once(error: Exception) -> None:
    policy = RetryPolicy(retries=5, backoff=Backoff())
    assert outcome_of(error, 1, policy) == Outcome(verdict="rejected", error="no such thing")


def test_the_own_limit_of_retries_counts_deliveries_after_the_first() -> None:
    policy = RetryPolicy(retries=2)
    verdicts = [outcome_of(ValueError(), count, policy).verdict for count in (1, 2, 3)]
    assert verdicts == ["retried", "retried", "given_up"]
    assert outcome_of(ValueError("x"), 3, policy).error == "ValueError: x"
    assert outcome_of(ValueError(), 1, RetryPolicy(retries=0)).verdict == "given_up"


def test_the_lower_of_the_own_limit_and_that_of_the_topic_counts() -> None:
    assert outcome_of(ValueError(), 2, PLAIN, retries_max=1).verdict == "given_up"
    assert outcome_of(ValueError(), 2, RetryPolicy(retries=2), retries_max=1).verdict == "given_up"
    assert outcome_of(ValueError(), 2, RetryPolicy(retries=1), retries_max=2).verdict == "given_up"
    assert outcome_of(ValueError(), 2, PLAIN, retries_max=2).verdict == "retried"


def test_the_own_backoff_grows_and_the_handler_may_say_when() -> None:
    policy = RetryPolicy(backoff=Backoff(first_ms=1000, factor=3.0, max_ms=5000))
    delays = [outcome_of(ValueError(), count, policy).delay_ns for count in (1, 2, 3)]
    assert delays == [SECOND, 3 * SECOND, 5 * SECOND]
    later = outcome_of(Retry("busy", delay="1m"), 2, policy)
    assert (later.delay_ns, later.error) == (60 * SECOND, "busy")
    assert outcome_of(Retry(delay=0), 1, policy).delay_ns == 0
    assert outcome_of(Retry(), 1, PLAIN).delay_ns is None
    assert outcome_of(Retry(), 4, RetryPolicy(retries=3)).verdict == "given_up"
