"""Which logs a shard has: their names, and the numbers under which they are in the stream.

A log that is removed and made again is another log, with another number. Numbers only ascend.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class DirectoryState(msgspec.Struct, frozen=True, kw_only=True):
    """A directory, to be kept in a file."""

    next_number: int = 1
    names: dict[str, int] = {}


class Directory:
    def __init__(self, state: DirectoryState | None = None) -> None:
        state = state or DirectoryState()
        self.next_number = state.next_number
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._below: dict[str, dict[str, int]] = {}
        """By prefix: the next parts of names, and how many names have each."""
        for name, number in state.names.items():
            self._add(name, number)

    def state(self) -> DirectoryState:
        return DirectoryState(next_number=self.next_number, names=dict(self._numbers))

    def number(self, name: str) -> int | None:
        return self._numbers.get(name)

    def numbers(self) -> Mapping[int, str]:
        """All logs, by number."""
        return self._names

    def __contains__(self, number: int) -> bool:
        return number in self._names

    def below(self, prefix: str) -> list[str]:
        """The next part of each name that begins with these parts, sorted."""
        return sorted(self._below.get(prefix, ()))

    def under(self, prefix: str) -> list[int]:
        """The log of this name, and all whose names begin with it."""
        found = [self._numbers[prefix]] if prefix in self._numbers else []
        for part in self._below.get(prefix, ()):
            found += self.under(f"{prefix}/{part}")
        return found

    def create(self, number: int, name: str) -> bool:
        """Whether it is a log that was not there before: when a stream is read again, it was."""
        if number < self.next_number:
            return False
        self.next_number = number + 1
        self._add(name, number)
        return True

    def remove(self, numbers: list[int]) -> list[int]:
        """Those of them that were there."""
        gone = [number for number in numbers if number in self._names]
        for number in gone:
            name = self._names.pop(number)
            del self._numbers[name]
            self._count(name, -1)
        return gone

    def rename(self, old: str, new: str) -> None:
        for number in self.under(old):
            name = self._names[number]
            self._count(name, -1)
            del self._numbers[name]
            self._add(new + name.removeprefix(old), number)

    def _add(self, name: str, number: int) -> None:
        self._numbers[name] = number
        self._names[number] = name
        self._count(name, 1)

    def _count(self, name: str, by: int) -> None:
        prefix = ""
        for part in name.split("/"):
            parts = self._below.setdefault(prefix, {})
            parts[part] = parts.get(part, 0) + by
            if not parts[part]:
                del parts[part]
                if not parts:
                    del self._below[prefix]
            prefix = f"{prefix}/{part}" if prefix else part
