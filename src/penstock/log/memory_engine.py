"""An engine that leaves nothing behind: the logs of one machine, on files in memory."""

from __future__ import annotations

from penstock.clock import Clock
from penstock.log.commit import Committer
from penstock.log.local_engine import LocalEngine
from penstock.log.memory import MemoryFiles


class MemoryEngine(LocalEngine):
    """The same code as on a disk, segments and recovery included, so that a test tries the real
    thing. All is gone when nobody holds the engine any more."""

    def __init__(self, *, clock: Clock | None = None, committer: Committer | None = None) -> None:
        super().__init__("/memory", clock=clock, files=MemoryFiles(), committer=committer)
