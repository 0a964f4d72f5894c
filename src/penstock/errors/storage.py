"""What the operating system refuses: room, open files, permissions."""

from __future__ import annotations

import errno

from penstock.errors.base import PenstockError
from penstock.errors.logs import LogError


class DiskFull(LogError):
    """There is no room for the write. Nothing of it was stored; it can be tried again."""

    code = "disk_full"
    retriable = True


class TooManyOpenFiles(LogError, OSError):
    """The process has no file descriptor left. Nothing of the call happened; it can be tried again.

    An OSError too, so that it passes for the operating system's own where one is expected.
    """

    code = "too_many_open_files"
    retriable = True

    def __init__(self, path: str = "") -> None:
        super().__init__(
            f"{path or 'a file'} cannot be opened: this process has as many open files and "
            "connections as it may (ulimit -n). Close some or raise the limit, then try again."
        )
        self.errno = errno.EMFILE


class StorageError(LogError, OSError):
    """The operating system refused something about files.

    An OSError too, with its `errno`, as are those below.
    """

    code = "storage_error"

    def __init__(self, message: str | None = None, number: int = 0) -> None:
        super().__init__(message)
        self.errno = number


class AccessDenied(StorageError):
    """The user of this process may not read or write a file or folder."""

    code = "access_denied"


class ReadOnlyFileSystem(StorageError):
    """The file system takes no writes."""

    code = "read_only_file_system"


class PathTooLong(StorageError):
    """The path of a file is longer than the operating system allows."""

    code = "path_too_long"


class DiskFailed(StorageError):
    """The disk cannot read or write."""

    code = "disk_failed"


_STORAGE_ERRORS: dict[int, tuple[type[StorageError], str]] = {
    errno.EACCES: (AccessDenied, "give the user of this process the right to it"),
    errno.EPERM: (AccessDenied, "give the user of this process the right to it"),
    errno.EROFS: (
        ReadOnlyFileSystem,
        "mount it for writing, or connect with read_only=True to look",
    ),
    errno.ENAMETOOLONG: (PathTooLong, "take a data folder with a shorter path"),
    errno.EIO: (DiskFailed, "look for errors of the disk in the system's log"),
}


def storage_error(error: OSError, what: str = "") -> PenstockError:
    """What the operating system says, as an error with a code; `what` could not be done."""
    if isinstance(error, PenstockError):
        return error
    number, where = error.errno or 0, str(error.filename or "")
    said = f"{what or where or 'a file'}: {error.strerror or error}"
    if what and where and f"{where} " not in f"{what} ":
        said = f"{what}: {where}: {error.strerror or error}"
    if number in (errno.EMFILE, errno.ENFILE):
        return TooManyOpenFiles(where)
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull(f"{said}. Nothing of the call happened; it can be tried again.")
    kind, advice = _STORAGE_ERRORS.get(number, (StorageError, ""))
    return kind(f"{said}; {advice}." if advice else said, number)
