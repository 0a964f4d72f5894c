"""Exit codes that scripts can use, and errors as sentences."""

from __future__ import annotations

from enum import IntEnum

from penstock.errors import (
    DataFolderInUse,
    DeliveryError,
    Forbidden,
    GroupError,
    GroupNotFound,
    InvalidInput,
    KeyExists,
    KeyNotFound,
    KeysUnreadable,
    LogNotFound,
    MissingDriver,
    MissingExtra,
    NotFound,
    OffsetOutOfRange,
    PartitionNotFound,
    PenstockError,
    PortInUse,
    RegistryReadOnly,
    ScheduleNotFound,
    SchemaIncompatible,
    SchemaReferenced,
    StorageError,
    SubjectNotDeleted,
    TopicExists,
    TopicNotFound,
    TransactionNotFound,
    Unauthenticated,
    storage_error,
)


class Exit(IntEnum):
    """What a command ends with."""

    OK = 0
    """It did what was asked."""
    NO = 1
    """It did, and the answer is no: damage was found, nothing came, the lag is too long."""
    USAGE = 2
    """It was called wrongly: an option, a name, a value or a setting is not allowed."""
    NOT_FOUND = 3
    """There is no such topic, group, message, schedule, schema, transaction, key or file."""
    CONFLICT = 4
    """Something stands in the way: it exists already, is in use, or belongs to another."""
    DENIED = 5
    """The API key is missing, wrong, or not good for this."""
    TRY_AGAIN = 6
    """It may work later: no server answers, the disk is full, too many requests."""
    FAILED = 7
    """It went wrong: a disk or a server failed, or Penstock has a bug."""
    INTERRUPTED = 130
    """Ctrl-C. What was printed is acked, what was not is given back."""
    BROKEN_PIPE = 141
    """The reader of the output is gone, as with `| head`."""


def exit_of(error: BaseException) -> Exit:
    """What a command that raised this ends with."""
    match error:
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
        case BrokenPipeError():
            return Exit.BROKEN_PIPE
        case (
            TopicNotFound()
            | GroupNotFound()
            | PartitionNotFound()
            | KeyNotFound()
            | ScheduleNotFound()
            | TransactionNotFound()
            | LogNotFound()
            | NotFound()
            | OffsetOutOfRange()
            | FileNotFoundError()
        ):
            return Exit.NOT_FOUND
        case Unauthenticated() | Forbidden() | KeysUnreadable() | PermissionError():
            return Exit.DENIED
        case PenstockError() if error.retriable:
            return Exit.TRY_AGAIN
        case (
            TopicExists()
            | KeyExists()
            | DataFolderInUse()
            | PortInUse()
            | SchemaIncompatible()
            | SchemaReferenced()
            | SubjectNotDeleted()
            | RegistryReadOnly()
            | GroupError()
            | DeliveryError()
            | FileExistsError()
        ):
            return Exit.CONFLICT
        case InvalidInput() | MissingExtra() | MissingDriver():
            return Exit.USAGE
        case ConnectionError() | TimeoutError():
            return Exit.TRY_AGAIN
        case _:
            return Exit.FAILED


def code_of(error: BaseException) -> str:
    """The stable name of an error, as in the reference of errors."""
    if isinstance(error, PenstockError):
        return error.code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, OSError):
        return "os_error" if _is_plain(error) else storage_error(error).code
    return "bug"


def sentence(error: BaseException) -> str:
    """An error as a person at a shell reads it."""
    if isinstance(error, TopicNotFound) and hasattr(error, "topic"):
        # A server that is older does not say which one is near.
        if getattr(error, "nearest", None):
            return str(error)
        return f"there is no topic {error.topic!r}; `penstock topic create` makes one"
    if isinstance(error, ScheduleNotFound):
        return str(error).replace("schedules() lists", "`penstock schedule list` shows")
    if isinstance(error, TopicExists) and hasattr(error, "topic"):
        return f"topic {error.topic!r} exists already; `penstock topic alter` changes its settings"
    if isinstance(error, DataFolderInUse):
        return (
            f"{error}{' With --url a command goes to its server.' if 'http' in str(error) else ''}"
        )
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C or a signal"
    if code_of(error) == "bug":
        return f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and not _is_plain(error):
        return str(storage_error(error))
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _is_plain(error: OSError) -> bool:
    """Whether nothing more is known of it than what the system says."""
    return type(storage_error(error)) is StorageError
