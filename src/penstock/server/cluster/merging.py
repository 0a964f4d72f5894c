"""One answer out of several: to questions about all namespaces, which live at several nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from penstock.errors import InvalidInput, NotInCluster
from penstock.model.calls import (
    Call,
    ListNamespaces,
    Summarize,
    SummarizeDelays,
    TabulatePriorities,
    TabulateTopics,
)
from penstock.model.names import parse_topic
from penstock.model.schedules import ScheduleTotals
from penstock.model.stats import (
    DelayStats,
    PriorityTable,
    QueuePage,
    QueueSummary,
    Summary,
    TopicTable,
)
from penstock.model.topics import Namespaces
from penstock.model.traces import TraceTotals
from penstock.model.transactions import TransactionTotals

S = TypeVar("S", bound=msgspec.Struct)

ROWS_MAX = 10_000
QUEUES_MAX = 200


def part_of(call: Call[Any]) -> Call[Any]:
    """What each has to be asked, so that the answers can be merged."""
    if not isinstance(call, TabulateTopics | TabulatePriorities):
        return call
    rows = call.offset + call.limit
    if rows > ROWS_MAX:
        raise NotInCluster(
            f"the table ends after {ROWS_MAX} rows in a cluster; search, or name a namespace"
        )
    return msgspec.structs.replace(call, offset=0, limit=rows)


def bad_query(error: Exception) -> InvalidInput:
    return InvalidInput(f"query: {error}")


def page_of(query: dict[str, str]) -> tuple[int, int]:
    """Which page, and how long."""
    try:
        page, limit = int(query.get("page", "1")), int(query.get("limit", "50"))
    except ValueError as exc:
        raise bad_query(exc) from None
    if page < 1 or not 1 <= limit <= QUEUES_MAX or page * limit > ROWS_MAX:
        raise InvalidInput(
            f"query: page from 1 on, limit up to {QUEUES_MAX}, {ROWS_MAX} rows in all"
        )
    return page, limit


def merge(call: Call[Any], answers: Sequence[Any]) -> Any:
    match call:
        case ListNamespaces():
            return Namespaces(namespaces=sorted({n for each in answers for n in each.namespaces}))
        case Summarize():
            return summed(Summary, answers)
        case SummarizeDelays():
            due = [each.next_due_us for each in answers if each.next_due_us is not None]
            return DelayStats(
                pending=sum(each.pending for each in answers),
                next_due_us=min(due, default=None),
                delivered=sum(each.delivered for each in answers),
                cancelled=sum(each.cancelled for each in answers),
                expired=sum(each.expired for each in answers),
            )
        case TabulatePriorities():
            topics = [each for answer in answers for each in answer.topics]
            topics.sort(key=lambda each: parse_topic(each.topic))
            return PriorityTable(
                topics=topics[call.offset : call.offset + call.limit],
                total=sum(each.total for each in answers),
            )
        case TabulateTopics():
            return _table(call, answers)
        case _:
            raise NotInCluster(
                f"{type(call).__name__} is answered for a namespace only in a cluster"
            )


def summed(kind: type[S], answers: Sequence[S]) -> S:
    """All fields are numbers."""
    return kind(
        **{field: sum(getattr(each, field) for each in answers) for field in kind.__struct_fields__}
    )


def transaction_totals(answers: Sequence[TransactionTotals]) -> TransactionTotals:
    return summed(TransactionTotals, answers)


def schedule_totals(answers: Sequence[ScheduleTotals]) -> ScheduleTotals:
    return summed(ScheduleTotals, answers)


def trace_totals(answers: Sequence[TraceTotals]) -> TraceTotals:
    return summed(TraceTotals, answers)


def queue_summary(answers: Sequence[QueueSummary]) -> QueueSummary:
    return summed(QueueSummary, answers)


def queue_page(pages: Sequence[QueuePage], page: int, limit: int) -> QueuePage:
    """Of pages of each that hold all rows up to the end of this one."""
    rows = sorted(
        (row for each in pages for row in each.queues), key=lambda row: (row.namespace, row.queue)
    )
    total = sum(each.total for each in pages if each.page == 1)
    return QueuePage(
        queues=rows[(page - 1) * limit : page * limit],
        total=total,
        page=page,
        limit=limit,
        total_pages=-(-total // limit),
    )


def _table(call: TabulateTopics, answers: Sequence[TopicTable]) -> TopicTable:
    rows = [row for each in answers for row in each.topics]
    rows.sort(key=lambda row: (row.namespace, row.topic))
    if call.sort == "topic":
        if call.descending:
            rows.reverse()
    else:
        rows.sort(key=lambda row: getattr(row, call.sort), reverse=call.descending)
    shown = rows[call.offset : call.offset + call.limit]
    details = {str(stats.topic): stats for each in answers for stats in each.details}
    names = [
        row.topic if row.namespace == "default" else f"{row.namespace}/{row.topic}" for row in shown
    ]
    return TopicTable(
        topics=shown,
        total=sum(each.total for each in answers),
        details=[details[name] for name in names if name in details],
    )
