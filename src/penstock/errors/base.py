"""The root of all errors, and what any part of Penstock may raise."""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """Something went wrong in Penstock."""

    code: ClassVar[str] = "error"
    retriable: ClassVar[bool] = False
    repeated: bool = False
    """Whether an earlier attempt, whose answer was lost, may have been carried out."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class InvalidInput(PenstockError, ValueError):
    """A value handed to Penstock is not allowed."""

    code = "invalid_input"


class MessageTooLarge(InvalidInput):
    """A message is longer than the limit of its topic."""

    code = "message_too_large"


class InvalidPayload(PenstockError, ValueError):
    """The value of a message cannot be read as what was asked for."""

    code = "invalid_payload"


class MissingExtra(PenstockError, ImportError):
    """An optional part of Penstock is not installed."""

    code = "missing_extra"

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs an extra: pip install 'penstock[{extra}]'")


class MissingDriver(PenstockError, ImportError):
    """The driver of a database is not installed."""

    code = "missing_driver"

    def __init__(self, package: str) -> None:
        super().__init__(f"the driver of this database is missing: pip install '{package}'")


class ReadOnly(PenstockError):
    """The client was connected to look, and not to change anything."""

    code = "read_only"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(
            message or "this client is connected with read_only=True: connect without it to write"
        )


class BrokerClosed(PenstockError):
    """The broker was closed. Connect again to go on."""

    code = "broker_closed"
