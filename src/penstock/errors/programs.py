"""Programs on top of the broker: worker handlers, and pipelines on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors.base import PenstockError

if TYPE_CHECKING:
    from datetime import timedelta


class Reject(PenstockError):
    """Raised by a handler: no retry would help, so the message goes to the dead letters."""

    code = "rejected"


class Retry(PenstockError):
    """Raised by a handler: not now. The message comes again, after `delay` if it is given."""

    code = "retry"
    retriable = True

    def __init__(
        self, message: str | None = None, *, delay: str | float | timedelta | None = None
    ) -> None:
        self.delay = delay
        super().__init__(message)


class HandlerFailed(PenstockError):
    """The message whose result is asked for was given up: its handler failed."""

    code = "handler_failed"


class LakeConflict(PenstockError):
    """Somebody else wrote to this lake table at the same time."""

    code = "lake_conflict"
    retriable = True


class JavaMissing(PenstockError):
    """Spark needs Java 17 or newer, and none was found."""

    code = "java_missing"


class SparkFailed(PenstockError):
    """Spark could not do its part."""

    code = "spark_failed"
