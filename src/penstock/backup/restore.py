"""Getting a data folder back: all of it is there, checked and durable, or nothing of it."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from penstock.backup.store import Advance, BackupMade, BackupStore
from penstock.errors import InvalidInput

SUFFIX = ".restoring"


def restore(
    store: BackupStore,
    target: str | os.PathLike[str],
    name: str | None = None,
    advance: Advance = lambda _: None,
) -> BackupMade:
    """Make `target` what a backup holds, by default the latest. It must not be there, or be empty.

    The files are written beside it, synced, and take its name at last: a crash leaves nothing at
    that name. Raises BackupDamaged before that, too.
    """
    name, found = store.load(name)
    target = os.path.abspath(os.fspath(target))
    if os.path.lexists(target) and (not os.path.isdir(target) or os.listdir(target)):
        raise InvalidInput(f"{target} is there and not empty; restore to another folder")
    new = target + SUFFIX
    with suppress(FileNotFoundError):
        shutil.rmtree(new)  # of one that was interrupted
    os.makedirs(new, mode=0o700)
    folders = {new}
    for file in found.files:
        path = os.path.join(new, file.path)
        _make_folder(os.path.dirname(path), folders)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as out:
            for chunk in store.read(file):
                out.write(chunk)
                advance(len(chunk))
            out.flush()
            os.fsync(out.fileno())
    for folder in folders:
        _sync(folder)
    with suppress(FileNotFoundError):
        os.rmdir(target)
    os.rename(new, target)
    _sync(os.path.dirname(target))
    total = sum(file.size_bytes for file in found.files)
    return BackupMade(name=name, files=len(found.files), size_bytes=total, copied_bytes=total)


def _make_folder(folder: str, made: set[str]) -> None:
    """Make a folder and those above it that are not made yet, all of them only for their owner."""
    if folder not in made:
        _make_folder(os.path.dirname(folder), made)
        os.mkdir(folder, 0o700)
        made.add(folder)


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
