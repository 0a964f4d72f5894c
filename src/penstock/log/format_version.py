"""Which version a data folder has, of its layout and of the format of its logs.

The file `VERSION` holds the number as text. It is written when a folder is made, before anything
else is in it. Folders of version 1 have no such file.
"""

from __future__ import annotations

import os

from penstock.errors import FormatOutdated, FormatUnknown, LogError
from penstock.log.files import FileSystem, write_durably

VERSION_FILE = "VERSION"
FORMAT_VERSION = 2


def read_version(files: FileSystem, folder: str) -> int | None:
    """The version of a data folder; None where there is nothing yet.

    Raises FormatUnknown if it is later than this.
    """
    try:
        text = files.read(os.path.join(folder, VERSION_FILE))
    except FileNotFoundError:
        return 1 if "catalog" in files.list(folder) else None
    try:
        version = int(text)
    except ValueError:
        raise LogError(f"{folder}: {VERSION_FILE} is damaged: it holds no number") from None
    if version > FORMAT_VERSION:
        raise FormatUnknown(folder, version)
    return version


def write_version(files: FileSystem, folder: str) -> None:
    """Say durably that a data folder is of this version."""
    write_durably(files, os.path.join(folder, VERSION_FILE), b"%d\n" % FORMAT_VERSION)


def check_version(files: FileSystem, folder: str) -> None:
    """Raise FormatOutdated or FormatUnknown if this version cannot read a data folder as it is."""
    if read_version(files, folder) not in (None, FORMAT_VERSION):
        raise FormatOutdated(folder)
