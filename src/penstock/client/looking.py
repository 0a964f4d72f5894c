"""Looking around: messages by what is in them, what needs attention, how things stood."""

from __future__ import annotations

from typing import Any

from penstock.client.arguments import maybe_time, parse_limit, parse_text
from penstock.client.base import AsyncCalls, BaseClient, SyncCalls
from penstock.client.link import Link
from penstock.client.waiting import Steps
from penstock.durations import Duration, Moment
from penstock.model import calls
from penstock.model.overview import HistoryRow, Overview
from penstock.model.positions import Position, place_of
from penstock.model.searches import FoundMessage

_PAGE = 1000


class _LookingRequests(BaseClient):
    """What both clients ask."""

    def _search(
        self, topic: str, at: Position | None, until: Moment | None, limit: int, **wanted: Any
    ) -> Steps[list[FoundMessage]]:
        parse_limit(limit)
        for name in ("key", "value", "header", "pointer", "equals"):
            if wanted[name] is not None:
                parse_text(name, wanted[name])
        fields: dict[str, Any] = {
            **self._topic(topic),
            "at": None if at is None else place_of(at),
            "until": maybe_time(until, "until"),
            **wanted,
        }
        return _pages(self._link, fields, limit)

    def _history(
        self, topic: str | None, since: Moment | None, until: Moment | None, step: Duration
    ) -> calls.Call[Any]:
        between: dict[str, Any] = {
            "since": maybe_time(since, "since"),
            "until": maybe_time(until, "until"),
            "step": step,
        }
        if topic is None:
            return calls.ListAllHistory(namespace=self._namespace, **between)
        return calls.ListHistory(**self._topic(topic), **between)


def _pages(link: Link, fields: dict[str, Any], limit: int) -> Steps[list[FoundMessage]]:
    found: list[FoundMessage] = []
    after: str | None = None
    while len(found) < limit:
        wanted = min(limit - len(found), _PAGE)
        call = calls.SearchMessages(**fields, after=after, limit=wanted)
        page = yield from link.ask(call)
        found += page.found
        after = page.next
        if after is None:
            break
    return found


class Looking(_LookingRequests, SyncCalls):
    def search(
        self,
        topic: str,
        *,
        key: str | None = None,
        value: str | None = None,
        header: str | None = None,
        pointer: str | None = None,
        equals: str | None = None,
        priority: str | None = None,
        partition: int | None = None,
        at: Position | None = None,
        until: Moment | None = None,
        backward: bool = False,
        limit: int = 100,
    ) -> list[FoundMessage]:
        """Look for messages without taking them; all that is given has to fit.

        `key` and `value`: text that is in them; `header`: "name", or "name=text"; `pointer`: a JSON
        pointer, as "/customer/id", to something that is in the value, and `equals` what is there.
        From `at` on, before `until`; or `backward`, the newest first. It reads the topic until
        `limit` messages are found.
        """
        return self._run(
            self._search(
                topic,
                at,
                until,
                limit,
                key=key,
                value=value,
                header=header,
                pointer=pointer,
                equals=equals,
                priority=priority,
                partition=partition,
                backward=backward,
            )
        )

    def overview(self) -> Overview:
        """Everything in the namespace together, and what needs attention."""
        return self._ask(calls.DescribeOverview(namespace=self._namespace))

    def history(
        self,
        topic: str | None = None,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        step: Duration = "1m",
    ) -> list[HistoryRow]:
        """How a topic stood minute by minute, or all of the namespace together: by default in the
        last hour, at most seven days back. Minutes in which nothing changed are left out."""
        rows: list[HistoryRow] = self._ask(self._history(topic, since, until, step)).rows
        return rows


class AsyncLooking(_LookingRequests, AsyncCalls):
    async def search(
        self,
        topic: str,
        *,
        key: str | None = None,
        value: str | None = None,
        header: str | None = None,
        pointer: str | None = None,
        equals: str | None = None,
        priority: str | None = None,
        partition: int | None = None,
        at: Position | None = None,
        until: Moment | None = None,
        backward: bool = False,
        limit: int = 100,
    ) -> list[FoundMessage]:
        """Look for messages without taking them; all that is given has to fit.

        `key` and `value`: text that is in them; `header`: "name", or "name=text"; `pointer`: a JSON
        pointer, as "/customer/id", to something that is in the value, and `equals` what is there.
        From `at` on, before `until`; or `backward`, the newest first. It reads the topic until
        `limit` messages are found.
        """
        return await self._run(
            self._search(
                topic,
                at,
                until,
                limit,
                key=key,
                value=value,
                header=header,
                pointer=pointer,
                equals=equals,
                priority=priority,
                partition=partition,
                backward=backward,
            )
        )

    async def overview(self) -> Overview:
        """Everything in the namespace together, and what needs attention."""
        return await self._ask(calls.DescribeOverview(namespace=self._namespace))

    async def history(
        self,
        topic: str | None = None,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        step: Duration = "1m",
    ) -> list[HistoryRow]:
        """How a topic stood minute by minute, or all of the namespace together: by default in the
        last hour, at most seven days back. Minutes in which nothing changed are left out."""
        rows: list[HistoryRow] = (await self._ask(self._history(topic, since, until, step))).rows
        return rows
