"""A bug that somebody could write, as a small change to the source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    name: str
    file: str
    """Below src/penstock."""
    old: str
    new: str
    caught_by: str
    """Tests, each of which may notice it; they run up to the first that does."""

    def plant(self, source: str) -> str:
        if source.count(self.old) != 1:
            raise ValueError(
                f"{self.name!r}: {self.file} holds {source.count(self.old)} times\n{self.old}"
            )
        return source.replace(self.old, self.new)
