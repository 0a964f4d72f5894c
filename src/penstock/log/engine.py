"""What keeps the logs of a broker, whichever it is: files of this machine, memory, or a cluster."""

from __future__ import annotations

from typing import Protocol

from penstock.clock import Clock
from penstock.config import LogConfig
from penstock.errors import LogError
from penstock.log.base import PartitionLog
from penstock.log.files import FileSystem


class Engine(Protocol):
    """Opens, lists and removes logs by name. What is in them is the broker's matter.

    A name is a path with `/` between its parts, such as `topics/default/orders/00000/log`. The
    engine belongs to one broker, which closes the logs that it opened before the engine.
    """

    clock: Clock
    """By which messages get their times; the broker's own."""

    files: FileSystem
    """Where the folder lies: for small files that other processes leave there for the broker."""

    folder: str
    """The data folder of this process, also for messages to people."""

    def open(self, name: str, config: LogConfig) -> PartitionLog:
        """Open a log, or make a new one. What a crash left is put in order first."""
        ...

    def names(self, prefix: str) -> list[str]:
        """The next part of each name that begins with these parts, sorted; none: an empty list."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give all logs below a prefix, which are closed, names below another one, at once."""
        ...

    def remove(self, prefix: str) -> None:
        """Remove the log of this name and all below it, durably; they are closed. None is fine."""
        ...

    def is_intact(self) -> bool:
        """Whether what this process alone may write to is still there."""
        ...

    def loss(self) -> LogError:
        """What is told to whoever comes once it is not intact."""
        ...

    def close(self) -> None:
        """Let others have what this process alone was allowed to write to."""
        ...
