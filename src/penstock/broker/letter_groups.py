"""Dead letters that failed for the same reason with the same error, together."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.clock import Clock
from penstock.model.dead_letters import Letter, LetterGroup, LetterGroups, error_line

LOOK_MS_MAX = 3000
GROUPS_MAX = 1000


def group_letters(letters: Iterable[Letter], clock: Clock) -> LetterGroups:
    """The largest group first. Those that would take too long to look at are not counted."""
    ends_ns = clock.monotonic_ns() + LOOK_MS_MAX * 1_000_000
    found: dict[tuple[str, str, str], LetterGroup] = {}
    counted, complete = 0, True
    for letter in letters:
        if not counted % 100 and clock.monotonic_ns() > ends_ns:
            complete = False
            break
        about = letter.origin.reason, letter.origin.group, error_line(letter.origin.error)
        known = found.get(about)
        if known is None and len(found) >= GROUPS_MAX:
            complete = False
            continue
        counted += 1
        found[about] = _with(known, letter, about)
    groups = sorted(found.values(), key=lambda each: (-each.count, each.reason, each.error))
    return LetterGroups(groups=groups, counted=counted, complete=complete)


def _with(known: LetterGroup | None, letter: Letter, about: tuple[str, str, str]) -> LetterGroup:
    died_us = letter.message.timestamp_us
    if known is None:
        reason, group, error = about
        place = f"{letter.partition}-{letter.message.offset}"
        return LetterGroup(
            reason=reason,
            group=group,
            error=error,
            count=1,
            first_us=died_us,
            last_us=died_us,
            place=place,
        )
    return LetterGroup(
        reason=known.reason,
        group=known.group,
        error=known.error,
        count=known.count + 1,
        first_us=min(known.first_us, died_us),
        last_us=max(known.last_us, died_us),
        place=known.place,
    )
