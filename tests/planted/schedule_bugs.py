"""Bugs of recurring schedules: when they fire, and how often."""

from __future__ import annotations

from tests.planted.bug import Bug

LIFE = "tests/simulation/test_schedule_life.py"
SCHEDULES = "tests/integration/broker/test_schedules.py"
CALENDAR = "tests/unit/schedule/test_calendar.py"
CATCH_UP = "tests/unit/schedule/test_catch_up.py"

SCHEDULE_BUGS = [
    Bug(
        "a fire is not durable before its message is published",
        "broker/schedule_fires.py",
        "        self._journal.store(events, durable=bool(fires))\n",
        "        self._journal.store(events)\n",
        LIFE,
    ),
    Bug(
        "a start does not look for the messages of the last fires",
        "broker/schedule_fires.py",
        "        if state.id in self.in_doubt:\n            self.in_doubt.discard(state.id)\n"
        "            self._publish([state], again=True)\n",
        "        if state.id in self.in_doubt:\n            self.in_doubt.discard(state.id)\n",
        LIFE,
    ),
    Bug(
        "a message that a power cut took counts as published",
        "broker/schedule_fires.py",
        "        return any(batch.ids[0].as_py() == fire.ulid for batch in found)\n",
        "        return True\n",
        LIFE,
    ),
    Bug(
        "a fire is confirmed that may not last",
        "broker/schedule_fires.py",
        "                log.ordered()\n",
        "                pass\n",
        LIFE,
    ),
    Bug(
        "a fire that is made again has no call id",
        "broker/schedule_fires.py",
        "                call=CallId(state.id, fire.number),\n",
        "",
        LIFE,
    ),
    Bug(
        "a later fire is published while an earlier one could not be",
        "broker/schedule_fires.py",
        "                    self.in_doubt.add(state.id)\n                    break\n",
        "                    self.in_doubt.add(state.id)\n                    continue\n",
        f"{SCHEDULES}::test_no_fire_is_published_before_an_earlier_one_that_failed",
    ),
    Bug(
        "a checkpoint forgets which fires are not confirmed",
        "schedule/state.py",
        "    while old > 0 and state.fires[0].number <= state.confirmed:\n",
        "    while old > 0:\n",
        LIFE,
    ),
    Bug(
        "a clock that is set back repeats fires",
        "schedule/catch_up.py",
        "    first = calendar.next_after(cursor_us)\n",
        "    first = calendar.next_after(min(cursor_us, now_us - GRACE_US))\n",
        CATCH_UP,
    ),
    Bug(
        "the hour that comes twice fires twice",
        "schedule/calendar.py",
        "                if (found_us := _us(found)) > after_us:\n",
        "                if found_us := _us(found):\n",
        CALENDAR,
    ),
    Bug(
        "what was missed while paused is made up for",
        "broker/schedules.py",
        "    cursor_us = state.cursor_us if paused else max(state.cursor_us, now_us)\n",
        "    cursor_us = state.cursor_us\n",
        SCHEDULES,
    ),
    Bug(
        "to put the same schedule again forgets what was missed",
        "broker/schedules.py",
        "                if definition.timing != known.definition.timing:\n"
        "                    state.anchor_us = now_us\n",
        "                if True:\n                    state.anchor_us = now_us\n",
        SCHEDULES,
    ),
]
