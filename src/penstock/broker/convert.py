"""How data folders of older versions become folders of this one.

A folder is converted under its lock, before anything in it is opened: the steps of each version
one after the other, then the new version is noted. A crash in between starts them again. So a step
must be able to go on where it was interrupted, and must not mind what is converted already.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from penstock.errors import DiskFull, LogError
from penstock.log.files import FileSystem, is_out_of_room
from penstock.log.first_version import convert_log, logs_in
from penstock.log.format_version import FORMAT_VERSION, read_version, write_version

_logger = logging.getLogger("penstock.broker")

Step = Callable[[FileSystem, str], None]
"""Gets the file system and the data folder."""


def prepare_folder(files: FileSystem, folder: str) -> None:
    """See to it that a data folder is of this version. The caller holds its lock.

    Raises FormatUnknown if it is of a later one, DiskFull if there is no room to convert it: the
    conversion then goes on when the folder is opened again.
    """
    version = read_version(files, folder)
    if version == FORMAT_VERSION:
        return
    try:
        if version is not None:
            _convert(files, folder, version)
        write_version(files, folder)
    except OSError as exc:
        error = DiskFull if is_out_of_room(exc) else LogError
        raise error(
            f"{folder} could not be brought to format version {FORMAT_VERSION}: {exc}. "
            "Nothing is lost; open it again to go on."
        ) from exc


def _convert(files: FileSystem, folder: str, version: int) -> None:
    _logger.info("%s: converting from format version %d to %d", folder, version, FORMAT_VERSION)
    for earlier in range(version, FORMAT_VERSION):
        for step in STEPS[earlier]:
            step(files, folder)


def _salt_segments(files: FileSystem, folder: str) -> None:
    """Give each segment a header with a salt, under which its frames are written again."""
    for part in ("catalog", "groups", "latencies", "topics"):
        for log in logs_in(files, os.path.join(folder, part)):
            convert_log(files, log)


STEPS: dict[int, tuple[Step, ...]] = {1: (_salt_segments,)}
"""By version, what makes a folder of it one of the next version."""
