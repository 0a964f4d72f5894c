"""Errors as SQS tells them, in its newer protocol and in the older one."""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import (
    BrokerClosed,
    DiskFull,
    Forbidden,
    InvalidInput,
    MessageTooLarge,
    PenstockError,
    RequestTimeout,
    RequestTooLarge,
    TooManyRequests,
    TopicExists,
    TopicNotFound,
    Unauthenticated,
    Unavailable,
)
from penstock.model.problem import STATUS


class _Kind(NamedTuple):
    """How an error is called: by the model of the newer protocol, and by the older one."""

    shape: str
    code: str
    status: int = 400


_PREFIX = "AWS.SimpleQueueService."
_KINDS = {
    kind.shape: kind
    for kind in (
        _Kind("QueueDoesNotExist", f"{_PREFIX}NonExistentQueue"),
        _Kind("QueueNameExists", "QueueAlreadyExists"),
        _Kind("PurgeQueueInProgress", f"{_PREFIX}PurgeQueueInProgress", 403),
        _Kind("OverLimit", "OverLimit", 403),
        _Kind("ResourceNotFoundException", "ResourceNotFoundException", 404),
        _Kind("RequestThrottled", "RequestThrottled", 403),
        _Kind("AccessDeniedException", "AccessDenied", 403),
        _Kind("InvalidClientTokenId", "InvalidClientTokenId", 403),
        _Kind("SignatureDoesNotMatch", "SignatureDoesNotMatch", 403),
        _Kind("MissingAuthenticationToken", "MissingAuthenticationToken", 403),
        _Kind("RequestExpired", "RequestExpired", 400),
        _Kind("RequestEntityTooLarge", "RequestEntityTooLarge", 413),
        _Kind("RequestTimeout", "RequestTimeout", 408),
        _Kind("InternalError", "InternalError", 500),
        _Kind("ServiceUnavailable", "ServiceUnavailable", 503),
        *(
            _Kind(shape, _PREFIX + shape)
            for shape in (
                "BatchEntryIdsNotDistinct",
                "BatchRequestTooLong",
                "EmptyBatchRequest",
                "InvalidBatchEntryId",
                "MessageNotInflight",
                "TooManyEntriesInBatchRequest",
                "UnsupportedOperation",
            )
        ),
    )
}


class SqsProblem(Exception):
    """What a caller of the SQS API is told. `shape` is the name of the error in its model."""

    def __init__(self, shape: str, message: str) -> None:
        super().__init__(message)
        self.shape = shape

    @property
    def code(self) -> str:
        """As the older protocol calls it, and what clients look at."""
        return _KINDS.get(self.shape, _Kind(self.shape, self.shape)).code

    @property
    def status(self) -> int:
        return _KINDS.get(self.shape, _Kind(self.shape, self.shape)).status

    @property
    def fault(self) -> str:
        return "Receiver" if self.status >= 500 else "Sender"


def invalid(parameter: str, value: object, reason: str) -> SqsProblem:
    return SqsProblem(
        "InvalidParameterValue",
        f"Value {value!r:.200} for parameter {parameter} is invalid. Reason: {reason}",
    )


def missing(parameter: str) -> SqsProblem:
    return SqsProblem("MissingParameter", f"The request must contain the parameter {parameter}.")


def no_queue() -> SqsProblem:
    return SqsProblem("QueueDoesNotExist", "The specified queue does not exist.")


def problem_of_error(error: PenstockError) -> SqsProblem:
    """What Penstock refuses, in the words of SQS."""
    for kinds, shape in _SHAPES:
        if isinstance(error, kinds):
            return SqsProblem(shape, str(error))
    status = STATUS.get(error.code, 500)
    if status < 500:
        return SqsProblem(_BY_STATUS.get(status, "InvalidParameterValue"), str(error))
    return SqsProblem("InternalError" if not error.retriable else "ServiceUnavailable", str(error))


_BY_STATUS = {403: "AccessDeniedException", 404: "QueueDoesNotExist", 429: "RequestThrottled"}


_SHAPES: tuple[tuple[tuple[type[PenstockError], ...], str], ...] = (
    ((TopicNotFound,), "QueueDoesNotExist"),
    ((TopicExists,), "QueueNameExists"),
    ((TooManyRequests,), "RequestThrottled"),
    ((Unauthenticated,), "InvalidClientTokenId"),
    ((Forbidden,), "AccessDeniedException"),
    ((RequestTooLarge,), "RequestEntityTooLarge"),
    ((RequestTimeout,), "RequestTimeout"),
    ((Unavailable, BrokerClosed, DiskFull), "ServiceUnavailable"),
    ((MessageTooLarge, InvalidInput), "InvalidParameterValue"),
)
