"""Consumers: a handler, where its messages come from, and its policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, TypedDict

import msgspec

from penstock.delivery.backoff import Backoff
from penstock.durations import Duration, parse_ms, parse_ns
from penstock.errors import InvalidInput
from penstock.model.positions import Position
from penstock.worker.dispatch import tags_of
from penstock.worker.handlers import Delivery, Handler, is_async
from penstock.worker.outcomes import RetryPolicy
from penstock.worker.rate_limit import RateLimit
from penstock.worker.results import ResultTopic
from penstock.worker.time_limit import TimeLimit

CONCURRENCY_MAX = 10_000
BATCH_MAX = 10_000


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream is read."""

    start: Position = "earliest"
    commit_every: Duration = "5s"


TraceMode: TypeAlias = Literal["parent", "link"]


class ConsumerOptions(TypedDict, total=False):
    """What `App.consumer` takes beside topic and group, and `App.schedule`, too."""

    concurrency: int
    retries: int | None
    backoff: tuple[Duration, float, Duration] | None
    visibility: Duration | None
    time_limit: Duration | None
    rate_limit: str | Sequence[str] | None
    filter: Callable[[Delivery], bool] | None
    batch: int | None
    processes: int | None
    results: str | bool
    transactional: bool
    trace: TraceMode


class Consumer(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A handler, and how it is to be fed."""

    topic: str
    group: str
    handler: Handler
    concurrency: int = 1
    visibility_ns: int | None = None
    policy: RetryPolicy = RetryPolicy()
    time_limit: TimeLimit | None = None
    rate_limits: tuple[RateLimit, ...] = ()
    filter: Callable[[Delivery], bool] | None = None
    batch: int | None = None
    processes: int | None = None
    results: ResultTopic | None = None
    transactional: bool = False
    """Whether what the handler publishes is stored together with the ack."""
    trace: TraceMode = "parent"
    """Whether a single message's publish is the parent of its handler's span, or a link."""
    stream: StreamOptions | None = None
    """None: a member of a queue group."""

    @property
    def name(self) -> str:
        return f"{self.handler.name} ({self.topic}, {self.group})"

    def check(self) -> None:
        """Options that do not go together."""
        handler, name = self.handler, self.handler.name
        if self.batch is not None and any(limit.per_key for limit in self.rate_limits):
            raise InvalidInput(f"{name} takes batches, whose messages have many keys: no per key")
        if self.batch is not None and self.filter is not None:
            raise InvalidInput(f"{name} takes batches, which are not filtered")
        if self.filter is not None and is_async(self.filter):
            raise InvalidInput(f"the filter of {name} is async; nobody awaits it: make it plain")
        if self.processes is not None and (handler.is_async or handler.wants_client):
            raise InvalidInput(
                f"{name} works in processes of its own: it is no async function, and has no client"
            )


def check_together(consumers: Sequence[Consumer]) -> None:
    """Several handlers of one topic and group share its messages by type or filter, or not at
    all: otherwise one would take what the other waits for."""
    new = consumers[-1]
    same = [c for c in consumers if (c.topic, c.group) == (new.topic, new.group)]
    if len(same) == 1:
        return
    names = " and ".join(c.handler.name for c in same)
    where = f"topic {new.topic}, group {new.group}"
    if any(c.stream is not None or c.batch is not None for c in same):
        raise InvalidInput(f"{names} are handlers of {where}; streams and batches have only one")
    tags = [tag for c in same if c.filter is None for tag in tags_of(c.handler.body_type)]
    plain = [c for c in same if c.filter is None and not tags_of(c.handler.body_type)]
    if len(plain) > 1 or len(tags) > len(set(tags)):
        raise InvalidInput(
            f"{names} are handlers of {where}, and nothing says which one takes a message: give "
            "them a filter, tagged structs, or groups of their own"
        )
    if len({field for field, _ in tags}) > 1:
        raise InvalidInput(f"{names}: their structs have different tag fields")
    if len({c.visibility_ns for c in same if c.visibility_ns is not None}) > 1:
        raise InvalidInput(f"{names} share their leases, so their visibility is the same")


def whole_number(value: object, name: str, least: int, most: int | None = None) -> None:
    if type(value) is not int or value < least or (most is not None and value > most):
        allowed = f"{least} up" if most is None else f"{least} to {most}"
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number from {allowed}")


def failure_policy(
    retries: int | None, backoff: tuple[Duration, float, Duration] | None
) -> RetryPolicy:
    if retries is not None:
        whole_number(retries, "retries", 0)
    return RetryPolicy(retries=retries, backoff=None if backoff is None else _backoff(backoff))


def optional_ns(value: Duration | None, name: str) -> int | None:
    return None if value is None else parse_ns(value, name)


def _backoff(value: tuple[Duration, float, Duration]) -> Backoff:
    try:
        first, factor, longest = value
    except (TypeError, ValueError):
        raise InvalidInput(
            f"backoff is {value!r}; give the first delay, a factor and the longest delay, "
            'such as ("1s", 2.0, "60s")'
        ) from None
    return Backoff(
        first_ms=parse_ms(first, "backoff"),
        factor=float(factor),
        max_ms=parse_ms(longest, "backoff"),
    )
