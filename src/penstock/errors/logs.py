"""Frames, logs and data folders: what is on disk."""

from __future__ import annotations

from penstock.errors.base import PenstockError


class FrameError(PenstockError):
    """A frame cannot be read."""

    code = "frame_error"

    def __init__(self, position: int, reason: str) -> None:
        self.position = position
        self.reason = reason
        super().__init__(f"frame at byte {position}: {reason}")


class FrameCorrupt(FrameError):
    """The bytes are not the frame that was written."""

    code = "frame_corrupt"


class FrameTruncated(FrameCorrupt):
    """The frame goes on past the bytes that are there."""

    code = "frame_truncated"


class FrameTooLarge(FrameError):
    """The frame is, or claims to be, larger than is ever written."""

    code = "frame_too_large"


class LogError(PenstockError):
    """A log cannot do what was asked."""

    code = "log_error"


class LogClosed(LogError):
    """The log was closed. Open it again to go on."""

    code = "log_closed"


class LogFailed(LogError):
    """The log stopped after a failed write or fsync. Reopen it to recover what is on disk."""

    code = "log_failed"

    def __init__(self, folder: str, cause: BaseException) -> None:
        super().__init__(
            f"log {folder} stopped accepting writes: {cause}. What was confirmed is safe; "
            "mend the disk, then reopen the log to recover."
        )


class LogNotFound(LogError):
    """There is no log in this folder."""

    code = "log_not_found"


class FormatOutdated(LogError):
    """The data is of an earlier format version. Opening its data folder for writing converts it."""

    code = "format_outdated"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is of an earlier format version. Open its data folder once with this version "
            "of Penstock, with penstock.connect or the server: that converts it."
        )


class FormatUnknown(LogError):
    """The data is of a later format version than this Penstock knows. Use a later one."""

    code = "format_unknown"

    def __init__(self, path: str, version: object) -> None:
        super().__init__(
            f"{path} is of format version {version}, which a later Penstock wrote: use that one"
        )


class OffsetOutOfRange(LogError):
    """The offset is not, or no longer, in the log."""

    code = "offset_out_of_range"

    def __init__(self, offset: int, start: int, end: int) -> None:
        self.offset, self.start, self.end = offset, start, end
        super().__init__(f"offset {offset} is outside this log, which holds {start} up to {end}")


class DataLost(LogError):
    """Messages that were to be read are no longer there, or damaged."""

    code = "data_lost"


class DataFolderInUse(LogError):
    """Another process works on this data folder."""

    code = "data_folder_in_use"

    def __init__(self, folder: str, owner: str) -> None:
        self.folder, self.owner = folder, owner
        super().__init__(
            f"{folder} is in use by {owner or 'another process'}. Connect to that process, "
            "stop it first, or use another folder."
        )


class DataFolderLost(LogError):
    """The data folder was removed, or another one is in its place, while a broker worked on it."""

    code = "data_folder_lost"

    def __init__(self, folder: str) -> None:
        self.folder = folder
        super().__init__(
            f"{folder} was removed, moved or replaced while this process worked on it, which "
            "stopped: nothing more is taken. Put the folder back, then connect or start again."
        )


class BackupFailed(PenstockError):
    """A backup could not be made just now. Nothing of it is there; try again."""

    code = "backup_failed"
    retriable = True


class BackupDamaged(PenstockError):
    """A backup does not hold what was stored. Another one may."""

    code = "backup_damaged"

    def __init__(self, path: str, reason: object) -> None:
        self.path = path
        super().__init__(f"{path} is damaged: {reason}. Restore another backup, or another copy")
