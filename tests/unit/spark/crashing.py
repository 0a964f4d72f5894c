"""A process that dies before its n-th step on the disk, for every n."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

STEPS = ("pwritev", "pwrite", "fdatasync", "fsync", "replace", "unlink", "rename", "rmdir")
"""What the code calls to change files; before each of them the process may end."""

CRASHED, FAILED = 77, 78


def die_at(step: int, work: Callable[[], None]) -> bool:
    """Run `work` in a process of its own that dies before step `step`; whether it got that far."""
    child = os.fork()
    if child == 0:
        _live_and_die(step, work)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, CRASHED), f"the process ended with {code} on its own"
    return code == CRASHED


def _live_and_die(step: int, work: Callable[[], None]) -> None:
    left = step

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(CRASHED)
            return call(*args, **kwargs)

        return counted

    try:
        for name in STEPS:
            setattr(os, name, counting(getattr(os, name)))
        work()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - nothing may come back into the parent's test
        traceback.print_exc()
        os._exit(FAILED)
