"""The spans of a transaction: those that its parts would have if each were a call of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from penstock.errors import InvalidInput
from penstock.model.names import topic_name
from penstock.model.receipts import Receipt
from penstock.model.transactions import BYTES_MAX, StagedTransaction
from penstock.otel import spans


@contextmanager
def traced_transaction(staged: StagedTransaction) -> Iterator[StagedTransaction]:
    """Around a transaction: a span for each topic that it publishes to and each group that it
    settles for, and the messages with the context of theirs."""
    messages = list(staged.messages)
    with ExitStack() as ending:
        by_topic: dict[str, list[int]] = {}
        for nth, each in enumerate(messages):
            by_topic.setdefault(each.topic, []).append(nth)
        for topic, numbers in by_topic.items():
            batches = [messages[nth].batch for nth in numbers]
            count, size = sum(map(len, batches)), sum(batch.payload_bytes for batch in batches)
            span = ending.enter_context(spans.sending(_place(topic, staged.namespace), count, size))
            for nth, batch in zip(numbers, batches, strict=True):
                with_context = spans.injected(batch, span)
                messages[nth] = msgspec.structs.replace(messages[nth], batch=with_context)
        for (verb, topic, group), count_or_none in _settled_by_group(staged).items():
            ending.enter_context(spans.settling(verb, topic, group, count_or_none))
        if sum(each.batch.payload_bytes for each in messages) > BYTES_MAX:
            yield staged  # as long as it may be: nothing can be added
        else:
            yield msgspec.structs.replace(staged, messages=messages)


def _settled_by_group(staged: StagedTransaction) -> dict[tuple[str, str, str], int | None]:
    """How many messages of which topic, by what is done with them; None: whole leases."""
    counts: dict[tuple[str, str, str], int | None] = {}
    for each in staged.settle:
        if each.topic is not None:
            place = _place(each.topic, staged.namespace)
        else:  # receipts, which were parsed when they were given
            place = Receipt.parse(each.receipts[0]).topic if each.receipts else ""
        key = each.verb, place, each.group
        before = counts.get(key, 0)
        named = [len(part.offsets) if part.offsets else None for part in each.leases]
        if before is None or None in named:
            counts[key] = None
        else:
            counts[key] = before + len(each.receipts) + sum(count or 0 for count in named)
    return counts


def _place(topic: str, namespace: str) -> str:
    try:
        return str(topic_name(topic, namespace))
    except InvalidInput:  # which the broker will say
        return topic
