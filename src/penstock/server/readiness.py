"""Whether a server takes work: its logs go on, and its disk has room."""

from __future__ import annotations

import os

from penstock.broker.broker import Broker

_TOLD_MAX = 10


class Readiness:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.disk_was_full = False
        """Whether the last publish was refused for want of room; one that is stored resets it."""

    def reasons(self) -> list[str]:
        """Why publishes are refused now; none if they are not. It looks at every open topic."""
        reasons = [
            f"log {log.folder} has failed: restart the server to recover it"
            for topic in self._broker.open_topics()
            for partition in topic.partitions
            for log in (partition.log, partition.journal.log)
            if log.failure is not None
        ]
        if len(reasons) > _TOLD_MAX:
            reasons[_TOLD_MAX:] = [f"{len(reasons) - _TOLD_MAX} more logs have failed"]
        if self._is_disk_full():
            reasons.append("the disk is full: publishes are refused until there is room")
        return reasons

    def _is_disk_full(self) -> bool:
        try:
            disk = os.statvfs(self._broker.folder)
        except OSError:
            return True
        floor = self._broker.config.free_bytes_min
        return self.disk_was_full or disk.f_bavail * disk.f_frsize < floor
