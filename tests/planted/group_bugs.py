"""Bugs in stream groups: who reads what, and whose commits count.

More of them, as subclasses of the coordinator: `tests/simulation/test_group_planted_bugs.py`.
"""

from __future__ import annotations

from tests.planted.bug import Bug

COORDINATOR = "tests/unit/group/test_coordinator.py"
LIVES = "tests/simulation/test_group_life.py"

GROUP_BUGS = [
    Bug(
        "the commit of a stale generation is accepted",
        "group/coordinator.py",
        "            if generation < claim.since:\n",
        "            if generation < 0:\n",
        f"{COORDINATOR} {LIVES}",
    ),
    Bug(
        "a member that was replaced may go on under its name",
        "group/coordinator.py",
        "        if not session.since <= generation <= self._generation:\n",
        "        if not generation <= self._generation:\n",
        f"{COORDINATOR} {LIVES}",
    ),
    Bug(
        "whoever is a member may commit on any partition",
        "group/coordinator.py",
        "            if claim is None or claim.member_id != member_id:\n",
        "            if claim is None:\n",
        f"{COORDINATOR} {LIVES}",
    ),
    Bug(
        "a partition moves before its owner gave it back",
        "group/coordinator.py",
        "            if partition not in self._claims:\n",
        "            if True:\n",
        f"{COORDINATOR} {LIVES}",
    ),
    Bug(
        "a late commit undoes a newer one",
        "group/coordinator.py",
        "            if number < session.last_commit:\n",
        "            if number < 0:\n",
        f"{COORDINATOR} {LIVES}",
    ),
    Bug(
        "a silent member keeps its partitions",
        "group/coordinator.py",
        "if session.deadline_ns <= now_ns]",
        "if session.deadline_ns < 0]",
        f"{COORDINATOR} {LIVES}",
    ),
    Bug(
        "generations are not reserved, and are handed out again after a restart",
        "group/coordinator.py",
        "return (GenerationsReserved(self.group, self._generation + GENERATIONS_RESERVED),)",
        "return ()",
        f"{COORDINATOR} {LIVES}",
    ),
    Bug(
        "a position past the end of a shortened log stays there",
        "group/coordinator.py",
        "if partition in ends and entry.offset > ends[partition]",
        "if partition not in ends and entry.offset > 1 << 62",
        f"{COORDINATOR} {LIVES}",
    ),
]
