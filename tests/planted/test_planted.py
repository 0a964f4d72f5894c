"""The planted bugs can be planted, and are caught. `make planted` tries them all."""

from __future__ import annotations

import pytest

from tests.planted.__main__ import SOURCE, row, try_bug
from tests.planted.bug import Bug
from tests.planted.bugs import BUGS

QUICK = ("no CRC check of frames", "compaction forgets", "nonce check", "believed before")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_can_still_be_planted(bug: Bug) -> None:
    source = (SOURCE / bug.file).read_text()
    planted = bug.plant(source)
    assert planted != source
    compile(planted, bug.file, "exec")


@pytest.mark.parametrize(
    "bug", [bug for bug in BUGS if any(word in bug.name for word in QUICK)], ids=lambda b: b.name
)
def test_bug_is_caught(bug: Bug) -> None:
    verdict = try_bug(bug)
    assert verdict.failed_test, f"nobody noticed: {bug.name}"


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_every_bug_is_caught() -> None:
    missed = []
    for bug in BUGS:
        verdict = try_bug(bug)
        print(row(bug, verdict), flush=True)
        if not verdict.failed_test:
            missed.append(bug.name)
    print(f"{len(BUGS) - len(missed)} of {len(BUGS)} planted bugs caught")
    assert not missed
