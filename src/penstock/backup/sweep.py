"""What a data folder holds at one moment, as far as a `kill -9` at that moment would leave it.

Every log is a folder of segments that only grow, so its state at a moment is a list of files with
their sizes: what comes later lies behind. A sweep takes those lists in the order that a crash could
leave them in. What lets a message go (ledgers, journals of delays, groups) comes first, what has
taken it over (delay logs, messages) after that. The journal of transactions is the last: what is
committed there is done again at a start, as far as it is missing, so it must drop nothing
meanwhile. Nor may the catalog change: then the sweep is made again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import BackupFailed, InvalidInput

_SWEEPS_MAX = 50
_LISTINGS_MAX = 100
_SEGMENT = re.compile(r"\d{20}(\.g\d+)?\.log")
_DURABLE, _START = "durable", "start"
_CATALOG, _TRANSACTIONS = "catalog", "transactions/journal"

_LEFT_OUT = {"LOCK", "SOCKET", "activity"}
"""Of a running broker. Without `activity/` the next start looks at every topic."""


class SweptFile(NamedTuple):
    """A file, as far as it counts."""

    path: str
    """Below the data folder."""
    size_bytes: int
    inode: int
    content: bytes | None = None
    """Of a small file that is replaced, as it was."""

    @property
    def only_grows(self) -> bool:
        return self.content is None


def sweep(folder: str) -> list[SweptFile]:
    """Raises BackupFailed if topics are made, deleted or changed all the time."""
    if not os.path.isfile(os.path.join(folder, "VERSION")):
        raise InvalidInput(f"{folder} is not a data folder: there is no VERSION in it")
    for _ in range(_SWEEPS_MAX):
        catalog = list(_log(folder, _CATALOG))
        committed = list(_log(folder, _TRANSACTIONS))
        found = list(_sweep_once(folder))
        after = list(_log(folder, _TRANSACTIONS))
        dropped = _segments(committed) - _segments(after)
        if not dropped and list(_log(folder, _CATALOG)) == catalog:
            return [*found, *catalog, *after]
    raise BackupFailed(f"{folder}: topics are made or changed all the time; try again later")


def _segments(log: list[SweptFile]) -> set[tuple[str, int]]:
    return {(file.path, file.inode) for file in log if file.only_grows}


def _sweep_once(folder: str) -> Iterator[SweptFile]:
    """All but the catalog and the journal of transactions."""
    logs = sorted(_logs(folder), key=_order)
    for path in logs:
        yield from _log(folder, path)
    for path in _small_files(folder):
        try:
            data, inode = _read(os.path.join(folder, path))
        except FileNotFoundError:
            continue
        yield SweptFile(path, len(data), inode, data)


def _order(path: str) -> tuple[int, str]:
    """Before whatever has taken over what this log lets go."""
    if not path.startswith("topics/"):
        return 0, path
    if path.endswith("/delays/log"):
        return 2, path
    return (3 if path.endswith("/log") else 1), path


def _logs(folder: str) -> Iterator[str]:
    for root, folders, files in os.walk(folder):
        path = os.path.relpath(root, folder)
        if path == ".":
            folders[:] = [name for name in folders if name not in _LEFT_OUT]
        elif path in (_CATALOG, _TRANSACTIONS):
            continue
        elif any(_SEGMENT.fullmatch(name) for name in files):
            yield path


def _log(folder: str, path: str) -> Iterator[SweptFile]:
    """Its segments, as one moment has them, and its marks.

    How far it is durable is read before them, so that they hold all that it claims. Where it starts
    is read between two listings with the same segments, and their sizes are those of the second:
    they begin at or before it, as after a crash in the middle of a trim, and end behind it.
    """
    where = os.path.join(folder, path)
    for _ in range(_LISTINGS_MAX):
        durable = _mark(where, _DURABLE)
        try:
            listed = _listing(where)
            start = _mark(where, _START)
            again = _listing(where)
        except FileNotFoundError:
            if os.path.isdir(where):
                continue  # a segment was dropped just now
            return  # the topic was deleted
        if {(file.path, file.inode) for file in listed} == {(f.path, f.inode) for f in again}:
            for file in [*durable, *start, *again]:
                yield file._replace(path=f"{path}/{file.path}")
            return
    raise BackupFailed(f"{where} changes all the time; try again later")


def _mark(where: str, name: str) -> list[SweptFile]:
    """A mark of a log; none if the log has no such mark yet."""
    try:
        data, inode = _read(os.path.join(where, name))
    except FileNotFoundError:
        return []
    return [SweptFile(name, len(data), inode, data)]


def _listing(where: str) -> list[SweptFile]:
    found = []
    for name in sorted(os.listdir(where)):
        if _SEGMENT.fullmatch(name):
            status = os.stat(os.path.join(where, name))
            found.append(SweptFile(name, status.st_size, status.st_ino))
    return found


def _small_files(folder: str) -> Iterator[str]:
    """Files that are not of a log, such as keys and positions; each is replaced as a whole."""
    for root, folders, files in os.walk(folder):
        path = os.path.relpath(root, folder)
        if path == ".":
            folders[:] = [name for name in folders if name not in {*_LEFT_OUT, "topics"}]
            path = ""
        if any(_SEGMENT.fullmatch(name) for name in files):
            continue
        for name in files:
            where = os.path.join(root, name)
            left_out = name in _LEFT_OUT or name.endswith((".tmp", ".index"))
            if not left_out and os.path.isfile(where) and not os.path.islink(where):
                yield os.path.join(path, name)


def _read(path: str) -> tuple[bytes, int]:
    with open(path, "rb") as file:
        return file.read(), os.fstat(file.fileno()).st_ino
