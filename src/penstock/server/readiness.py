"""Whether a server takes work: its logs go on, and its disk has room."""

from __future__ import annotations

from penstock.broker.api import Api

_TOLD_MAX = 10


class Readiness:
    def __init__(self, api: Api) -> None:
        self._api = api
        self.disk_was_full = False
        """Whether the last publish was refused for want of room; one that is stored resets it."""

    def reasons(self) -> list[str]:
        """Why publishes are refused now; none if they are not. It looks at every open topic."""
        if self._api.is_lost():
            return ["the data folder was removed, moved or replaced: put it back, then restart"]
        reasons = [
            f"log {folder} has failed: restart the server to recover it"
            for folder in self._api.failed_logs()
        ]
        if len(reasons) > _TOLD_MAX:
            reasons[_TOLD_MAX:] = [f"{len(reasons) - _TOLD_MAX} more logs have failed"]
        if self._is_disk_full():
            reasons.append("the disk is full: publishes are refused until there is room")
        return reasons

    def _is_disk_full(self) -> bool:
        return self.disk_was_full or not self._api.has_room()
