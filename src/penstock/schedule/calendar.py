"""The moments at which a schedule fires: cron lines in a time zone, intervals, and single times.

Moments are microseconds since 1970. Nothing is remembered between two questions, so that a newer
time zone database counts from the next question on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from penstock.errors import InvalidInput
from penstock.schedule.definition import EVERY_US_MIN, JITTER_US_MAX, TIME_US_MAX, ScheduleTiming

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOOKED_AT_MAX = 1000


class Calendar:
    """The fires of one schedule."""

    def __init__(self, timing: ScheduleTiming, anchor_us: int, seed: int = 0) -> None:
        """`anchor_us`: from where an interval without a start counts. `seed` makes the jitter of
        two schedules differ."""
        self._timing = timing
        self._anchor_us = anchor_us if timing.start_us is None else timing.start_us
        self._seed = seed

    def next_after(self, after_us: int) -> int | None:
        """The first fire later than a moment; None: there is none."""
        timing = self._timing
        if timing.start_us is not None:
            after_us = max(after_us, timing.start_us - 1)
        found: int | None
        if timing.cron is not None:
            found = self._next_cron(timing.cron, after_us)
        elif timing.every_us is not None:
            steps = (after_us - self._anchor_us) // timing.every_us + 1
            found = self._anchor_us + max(steps, 0) * timing.every_us
        else:
            assert timing.at_us is not None
            found = timing.at_us if timing.at_us > after_us else None
        latest_us = TIME_US_MAX if timing.end_us is None else timing.end_us
        return found if found is not None and found <= latest_us else None

    def last_until(self, until_us: int, after_us: int) -> int | None:
        """The last fire of those after a moment and not later than another."""
        timing = self._timing
        if timing.end_us is not None:
            until_us = min(until_us, timing.end_us)
        found: int | None = None
        if timing.cron is not None:
            found = self._last_cron(timing.cron, until_us)
        elif timing.every_us is not None:
            steps = (until_us - self._anchor_us) // timing.every_us
            found = self._anchor_us + steps * timing.every_us if steps >= 0 else None
        elif timing.at_us is not None and timing.at_us <= until_us:
            found = timing.at_us
        start_us = after_us + 1 if timing.start_us is None else max(after_us + 1, timing.start_us)
        return found if found is not None and found >= start_us else None

    def due_us(self, fire_us: int) -> int:
        """When a fire is made: at its moment, or later by its jitter."""
        jitter_us = self._timing.jitter_us
        if not jitter_us:
            return fire_us
        digest = hashlib.blake2b(f"{self._seed}:{fire_us}".encode(), digest_size=8).digest()
        return fire_us + int.from_bytes(digest, "big") % (jitter_us + 1)

    def after(self, after_us: int) -> Iterator[int]:
        """All fires later than a moment, in order."""
        found = self.next_after(after_us)
        while found is not None:
            yield found
            found = self.next_after(found)

    def _next_cron(self, line: str, after_us: int) -> int | None:
        try:
            for found in CronSim(_expanded(line), self._local(after_us)):
                # In the hour that comes twice a line may be told its first time again.
                if (found_us := _us(found)) > after_us:
                    return found_us
        except OverflowError:  # the end of the calendar
            pass
        return None

    def _last_cron(self, line: str, until_us: int) -> int | None:
        try:
            for found in CronSim(_expanded(line), self._local(until_us), reverse=True):
                last_us = _us(found)
                if last_us <= until_us:
                    break
            else:
                return None
        except OverflowError:
            return None
        # Backwards, a line is told nothing of `until_us` itself nor of some hours that are set.
        for _ in range(_LOOKED_AT_MAX):
            later_us = self._next_cron(line, last_us)
            if later_us is None or later_us > until_us:
                break
            last_us = later_us
        return last_us

    def _local(self, moment_us: int) -> datetime:
        moment = _EPOCH + timedelta(microseconds=moment_us)
        zone = self._timing.timezone
        return moment if zone == "UTC" else moment.astimezone(_zone(zone))


def check_timing(timing: ScheduleTiming) -> None:
    """Raise InvalidInput for what is no timing."""
    given = [
        name
        for name, value in (
            ("cron", timing.cron),
            ("every", timing.every_us),
            ("at", timing.at_us),
        )
        if value is not None
    ]
    if len(given) != 1:
        both = f", not {' and '.join(given)}" if given else ""
        raise InvalidInput(f"say when a schedule fires: give one of cron, every and at{both}")
    _zone(timing.timezone)
    if timing.cron is not None:
        check_cron(timing.cron)
    if timing.every_us is not None and timing.every_us < EVERY_US_MIN:
        raise InvalidInput("every must be 10ms or more")
    for name, moment_us in (
        ("at", timing.at_us),
        ("start", timing.start_us),
        ("end", timing.end_us),
    ):
        if moment_us is not None and not 0 <= moment_us <= TIME_US_MAX:
            raise InvalidInput(f"{name} must be from 1970 to 9999")
    jitter_us_max = JITTER_US_MAX
    if timing.every_us is not None:
        jitter_us_max = min(timing.every_us, JITTER_US_MAX)
    if timing.jitter_us > jitter_us_max:
        raise InvalidInput("jitter must be at most 24h, and no longer than every")


def check_cron(line: str) -> None:
    try:
        CronSim(_expanded(line), _EPOCH)
    except CronSimError as exc:
        raise InvalidInput(
            f"cron is {line!r:.100}: {exc}. A line has five fields (minute, hour, day of the "
            'month, month, day of the week), such as "30 2 * * *", or six with seconds first; '
            f"or is one of {', '.join(ALIASES)}"
        ) from None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not there; a path; a folder
        raise InvalidInput(
            f"timezone is {name!r:.100}; give a name of the IANA database, such as Europe/Berlin"
        ) from None


def _expanded(line: str) -> str:
    return ALIASES.get(line.strip().lower(), line)


def _us(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
