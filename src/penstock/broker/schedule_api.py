"""The calls of the API that are about schedules."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from penstock.broker.api_part import ApiPart, namespace_of
from penstock.broker.schedule_views import definition_of, described, fire_view
from penstock.durations import parse_us
from penstock.errors import ScheduleNotFound
from penstock.model import calls
from penstock.model.names import schedule_name, topic_name
from penstock.model.schedules import ScheduleDescription, ScheduleFire, SchedulePage
from penstock.model.topics import Count, Found
from penstock.model.values import parse_time
from penstock.schedule.state import ScheduleName


class ScheduleApi(ApiPart):
    """Schedules, as doors see them."""

    def list_schedules(self, call: calls.ListSchedules) -> SchedulePage:
        found = self._broker.schedules.page(
            topic_name("any", call.namespace).namespace, call.after, call.limit
        )
        return SchedulePage(
            schedules=[described(state, in_full=False) for state in found],
            next=found[-1].name.name if len(found) == call.limit else None,
        )

    def put_schedule(self, call: calls.PutSchedule) -> ScheduleDescription:
        if self._broker.tenants.limited and not self._has_schedule(call):
            self._broker.tenants.check(call.namespace, "schedules", 1)
        state = self._broker.schedules.put(_schedule(call), definition_of(call), call.paused)
        return described(state, in_full=True)

    def describe_schedule(self, call: calls.DescribeSchedule) -> ScheduleDescription:
        return described(self._broker.schedules.find(_schedule(call)), in_full=True)

    def delete_schedule(self, call: calls.DeleteSchedule) -> Found:
        return Found(found=self._broker.schedules.delete(_schedule(call)))

    def pause_schedule(self, call: calls.PauseSchedule) -> ScheduleDescription:
        return described(self._broker.schedules.pause(_schedule(call), True), in_full=True)

    def resume_schedule(self, call: calls.ResumeSchedule) -> ScheduleDescription:
        return described(self._broker.schedules.pause(_schedule(call), False), in_full=True)

    def trigger_schedule(self, call: calls.TriggerSchedule) -> ScheduleFire:
        return fire_view(self._broker.schedules.trigger(_schedule(call)))

    def backfill_schedule(self, call: calls.BackfillSchedule) -> Count:
        since_us = parse_us(parse_time(call.since, "since"), "since")
        until_us = parse_us(parse_time(call.until, "until"), "until")
        return Count(count=self._broker.schedules.backfill(_schedule(call), since_us, until_us))

    def _has_schedule(self, call: calls.PutSchedule) -> bool:
        with suppress(ScheduleNotFound):
            self._broker.schedules.find(_schedule(call))
            return True
        return False


def _schedule(call: calls.ScheduleCall[Any]) -> ScheduleName:
    return ScheduleName(namespace_of(call), schedule_name(call.schedule))
