"""How many functions of ours a call passes, counted where nothing but the call decides.

On a real clock some calls pass more than others: an id begins a millisecond, a lease ran out, a
commit has to be planned, a message is one of those that are traced, a rate of the minute begins. So
the broker stands still: a clock that nobody moves, no threads, random numbers from a seed. What is
left over is work that comes again and again by count or by bytes (a block of an index, a look
whether a checkpoint is due) and caches that other tests may have filled; the median leaves it out.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import penstock
from penstock.broker.broker import Broker
from penstock.log.commit import ManualCommitter
from penstock.log.files import FileSystem
from penstock.log.local_engine import LocalEngine
from penstock.randomness import own_random

SRC = str(Path(penstock.__file__).parent)

_CALLS = 15


class StillClock:
    """As the machine's clock, whose methods are none of ours to pass; but it stands."""

    def wall_ns(self) -> int:
        return 1_700_000_000_000_000_000

    def monotonic_ns(self) -> int:
        return 0


@contextmanager
def still_broker(folder: Path | str, files: FileSystem | None = None) -> Iterator[Broker]:
    """A broker for which no time passes, and for which all random numbers are the same again."""
    clock, before = StillClock(), own_random.getstate()
    own_random.seed(1)
    try:
        engine = LocalEngine(folder, clock=clock, files=files, committer=ManualCommitter(clock))
        with Broker(engine, housekeeping=False) as broker:
            yield broker
    finally:
        own_random.setstate(before)


def usual_path(prepare: Callable[[], Callable[[], Any]]) -> list[str]:
    """The path of the median length among some calls, each of which is prepared anew."""
    return sorted((path_of(prepare()) for _ in range(_CALLS)), key=len)[_CALLS // 2]


def path_of(call: Callable[[], Any]) -> list[str]:
    """The functions in `src/penstock` that a call enters, in order; comprehensions are none."""
    entered: list[FrameType] = []  # kept alive, so that a generator that goes on is known again

    def enter(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_ours = code.co_filename.startswith(SRC) and code.co_name[0] != "<"
        if event == "call" and is_ours and not any(frame is each for each in entered):
            entered.append(frame)

    collects, before = gc.isenabled(), sys.getprofile()
    gc.disable()  # it would call what objects of other tests want to say at their end
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return [
        f"{each.f_code.co_filename[len(SRC) + 1 :]}: {each.f_code.co_qualname}" for each in entered
    ]


def show(path: list[str]) -> str:
    return f"{len(path)} functions:\n" + "\n".join(path)


def differs(passed: int, path: list[str]) -> str:
    """What a failed comparison says."""
    return f"{passed} were passed before; write a smaller count down. Now {show(path)}"
