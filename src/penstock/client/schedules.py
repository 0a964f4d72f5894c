"""Recurring schedules: put, look, pause, resume, trigger, backfill, delete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.client.arguments import Value, maybe_seconds, maybe_time, one_message, seconds
from penstock.client.base import AsyncCalls, BaseClient, SyncCalls
from penstock.durations import Duration, Moment
from penstock.model import calls
from penstock.model.schedules import ScheduleDescription, ScheduleFire, SchedulePage
from penstock.model.values import Time, headers_to_text, to_text
from penstock.record.batch import HeaderMap, Payload
from penstock.schedule.definition import CatchUpPolicy, Overlap

_PAGE = 1000


class _ScheduleRequests(BaseClient):
    """The calls, for threads and event loops."""

    def _put_schedule(
        self,
        name: str,
        value: Value,
        key: Payload,
        headers: HeaderMap | None,
        priority: int | str,
        fields: dict[str, Any],
    ) -> calls.PutSchedule:
        (message,) = one_message(value, key, headers, priority).messages()
        text, base64 = to_text(message.value)
        key_text, key_base64 = to_text(message.key)
        for field in ("ttl", "every", "jitter"):
            fields[field] = maybe_seconds(fields[field], field)
        for field in ("at", "start", "end"):
            fields[field] = maybe_time(fields[field], field)
        fields["catch_up"] = seconds(fields["catch_up"], "catch_up")
        return calls.PutSchedule(
            namespace=self._namespace,
            schedule=name,
            value=text,
            value_base64=base64,
            key=key_text,
            key_base64=key_base64,
            headers=headers_to_text(message.headers),
            priority=message.priority,
            **fields,
        )

    def _schedule(self, name: str) -> dict[str, str]:
        """The fields of a call that name a schedule."""
        return {"namespace": self._namespace, "schedule": name}

    def _schedule_page(self, after: str | None) -> calls.ListSchedules:
        return calls.ListSchedules(namespace=self._namespace, after=after, limit=_PAGE)

    def _backfill(self, name: str, since: Moment, until: Moment) -> calls.BackfillSchedule:
        return calls.BackfillSchedule(
            **self._schedule(name), since=_time(since, "since"), until=_time(until, "until")
        )


class ScheduleCalls(_ScheduleRequests, SyncCalls):
    def schedule(
        self,
        name: str,
        *,
        topic: str,
        value: Value = None,
        key: Payload = None,
        headers: HeaderMap | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        at: Moment | None = None,
        timezone: str = "UTC",
        start: Moment | None = None,
        end: Moment | None = None,
        jitter: Duration | None = None,
        overlap: Overlap = "allow",
        group: str | None = None,
        catch_up: Duration = "1d",
        catch_up_policy: CatchUpPolicy = "last",
        paused: bool | None = None,
    ) -> ScheduleDescription:
        """Publish a message again and again: exactly one for each fire.

        Give one of `cron` ("30 2 * * *" in `timezone`), `every` (from 10ms up, counted from `start`
        or from now) and `at`. A schedule of that name is changed, and goes on counting its fires;
        one that is asked for just as it is stays as it is.

        `overlap`: while `group` has not settled the message of the last fire, "allow" fires all the
        same, "skip" leaves the fire out, and "buffer_one" makes one when it is settled. `catch_up`
        and `catch_up_policy`: which fires are made up for that were missed while the broker was
        down: the "last", "all" or "none". `paused=None` leaves that as it is.
        """
        return self._ask(
            self._put_schedule(
                name,
                value,
                key,
                headers,
                priority,
                {
                    "topic": topic,
                    "ttl": ttl,
                    "cron": cron,
                    "every": every,
                    "at": at,
                    "timezone": timezone,
                    "start": start,
                    "end": end,
                    "jitter": jitter,
                    "overlap": overlap,
                    "group": group,
                    "catch_up": catch_up,
                    "catch_up_policy": catch_up_policy,
                    "paused": paused,
                },
            )
        )

    def schedules(self) -> Iterator[ScheduleDescription]:
        """By name, each with its next and its last fire."""
        after: str | None = None
        while True:
            page: SchedulePage = self._ask(self._schedule_page(after))
            yield from page.schedules
            after = page.next
            if after is None:
                return

    def describe_schedule(self, name: str) -> ScheduleDescription:
        """With its next 10 and its last 20 fires. Raises ScheduleNotFound."""
        return self._ask(calls.DescribeSchedule(**self._schedule(name)))

    def pause_schedule(self, name: str) -> ScheduleDescription:
        """No fires until it is resumed; those in between are not made up for."""
        return self._ask(calls.PauseSchedule(**self._schedule(name)))

    def resume_schedule(self, name: str) -> ScheduleDescription:
        """Go on with the next fire after now."""
        return self._ask(calls.ResumeSchedule(**self._schedule(name)))

    def trigger_schedule(self, name: str) -> ScheduleFire:
        """Fire once now, paused or not, whatever `overlap` says."""
        return self._ask(calls.TriggerSchedule(**self._schedule(name)))

    def backfill_schedule(self, name: str, since: Moment, until: Moment) -> int:
        """Make all fires from one moment to another, both included, that is not later than now; how
        many. All or none, and at most 1,000."""
        return self._ask(self._backfill(name, since, until)).count

    def delete_schedule(self, name: str) -> bool:
        """It fires no more; False if there is none. Messages that it has published stay."""
        return self._ask(calls.DeleteSchedule(**self._schedule(name))).found


class AsyncScheduleCalls(_ScheduleRequests, AsyncCalls):
    async def schedule(
        self,
        name: str,
        *,
        topic: str,
        value: Value = None,
        key: Payload = None,
        headers: HeaderMap | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        at: Moment | None = None,
        timezone: str = "UTC",
        start: Moment | None = None,
        end: Moment | None = None,
        jitter: Duration | None = None,
        overlap: Overlap = "allow",
        group: str | None = None,
        catch_up: Duration = "1d",
        catch_up_policy: CatchUpPolicy = "last",
        paused: bool | None = None,
    ) -> ScheduleDescription:
        """Publish a message again and again: exactly one for each fire.

        Give one of `cron` ("30 2 * * *" in `timezone`), `every` (from 10ms up, counted from `start`
        or from now) and `at`. A schedule of that name is changed, and goes on counting its fires;
        one that is asked for just as it is stays as it is.

        `overlap`: while `group` has not settled the message of the last fire, "allow" fires all the
        same, "skip" leaves the fire out, and "buffer_one" makes one when it is settled. `catch_up`
        and `catch_up_policy`: which fires are made up for that were missed while the broker was
        down: the "last", "all" or "none". `paused=None` leaves that as it is.
        """
        return await self._ask(
            self._put_schedule(
                name,
                value,
                key,
                headers,
                priority,
                {
                    "topic": topic,
                    "ttl": ttl,
                    "cron": cron,
                    "every": every,
                    "at": at,
                    "timezone": timezone,
                    "start": start,
                    "end": end,
                    "jitter": jitter,
                    "overlap": overlap,
                    "group": group,
                    "catch_up": catch_up,
                    "catch_up_policy": catch_up_policy,
                    "paused": paused,
                },
            )
        )

    async def schedules(self) -> Sequence[ScheduleDescription]:
        """By name, each with its next and its last fire."""
        page = await self._ask(self._schedule_page(None))
        found = page.schedules
        while page.next is not None:
            page = await self._ask(self._schedule_page(page.next))
            found += page.schedules
        return found

    async def describe_schedule(self, name: str) -> ScheduleDescription:
        """With its next 10 and its last 20 fires. Raises ScheduleNotFound."""
        return await self._ask(calls.DescribeSchedule(**self._schedule(name)))

    async def pause_schedule(self, name: str) -> ScheduleDescription:
        """No fires until it is resumed; those in between are not made up for."""
        return await self._ask(calls.PauseSchedule(**self._schedule(name)))

    async def resume_schedule(self, name: str) -> ScheduleDescription:
        """Go on with the next fire after now."""
        return await self._ask(calls.ResumeSchedule(**self._schedule(name)))

    async def trigger_schedule(self, name: str) -> ScheduleFire:
        """Fire once now, paused or not, whatever `overlap` says."""
        return await self._ask(calls.TriggerSchedule(**self._schedule(name)))

    async def backfill_schedule(self, name: str, since: Moment, until: Moment) -> int:
        """Make all fires from one moment to another, both included, that is not later than now; how
        many. All or none, and at most 1,000."""
        return (await self._ask(self._backfill(name, since, until))).count

    async def delete_schedule(self, name: str) -> bool:
        """It fires no more; False if there is none. Messages that it has published stay."""
        return (await self._ask(calls.DeleteSchedule(**self._schedule(name)))).found


def _time(moment: Moment, name: str) -> Time:
    time = maybe_time(moment, name)
    assert time is not None
    return time
