"""Progress that others leave in the data folder for groups of this broker.

Who reads the folder directly, without a broker of its own, says how far it is by a small file
`progress/<group>.<number>.json`: `{"group": "lake", "offsets": {"orders": {"0": 23}}}`. It is taken
in when somebody asks for groups; nothing polls. The higher number is the newer one.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from penstock.log.files import FileSystem

_logger = logging.getLogger("penstock.broker")

_NAME = re.compile(r".+\.\d{20}\.json")


class Progress(msgspec.Struct, frozen=True):
    group: str
    offsets: dict[str, dict[int, int]]
    incarnations: dict[str, str] = {}
    """Of which topics of these names; of a topic that is another one by now nothing is taken in."""


class ProgressInbox:
    """The files that wait to be taken in."""

    def __init__(self, folder: str, files: FileSystem) -> None:
        self._folder = os.path.join(folder, "progress")
        self._files = files

    def waiting(self) -> Iterator[tuple[str, Progress]]:
        """What was left, oldest first; remove each once it is in the journal."""
        try:
            names = self._files.list(self._folder)
        except FileNotFoundError:
            return
        for name in sorted(filter(_NAME.fullmatch, names), key=lambda n: n[-25:]):
            with suppress(FileNotFoundError):  # replaced by a newer one
                data = self._files.read(os.path.join(self._folder, name))
                try:
                    yield name, msgspec.json.decode(data, type=Progress)
                except msgspec.DecodeError as exc:
                    _logger.error(
                        "%s in %s is not what a reader leaves: %s", name, self._folder, exc
                    )
                    self.remove(name)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.remove(os.path.join(self._folder, name))
