"""Errors as gRPC says them: a status, with the code of the error in `google.rpc.ErrorInfo`."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import grpc

from penstock.errors import BrokerClosed, PenstockError, TooManyRequests, Unavailable, storage_error
from penstock.model.problem import problem_of
from penstock.server.grpc.descriptors import message

_logger = logging.getLogger("penstock.server")

DETAILS = "grpc-status-details-bin"
_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    416: grpc.StatusCode.OUT_OF_RANGE,
    421: grpc.StatusCode.UNAVAILABLE,
    422: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_EXISTS = {"topic_exists", "key_exists"}
_Problem = message("Problem")


def told(exc: BaseException) -> PenstockError:
    """What a client is told of something that went wrong."""
    if isinstance(exc, BrokerClosed):
        return Unavailable("the server is stopping")
    if isinstance(exc, OSError) and not isinstance(exc, PenstockError):
        return storage_error(exc)
    if isinstance(exc, PenstockError):
        return exc
    _logger.error("a gRPC call failed", exc_info=exc)
    return PenstockError("something went wrong inside the server; its log says what")


def problem_message(exc: PenstockError) -> Any:
    return _Problem(code=exc.code, detail=str(exc), retriable=exc.retriable)


async def abort(context: Any, exc: PenstockError) -> NoReturn:
    """End a call with an error."""
    problem = problem_of(exc)
    code = _STATUS.get(problem.status, grpc.StatusCode.INTERNAL)
    if problem.code in _EXISTS:
        code = grpc.StatusCode.ALREADY_EXISTS
    status = message("Status", "google.rpc")(code=code.value[0], message=problem.detail)
    fields = {name: str(value) for name, value in (problem.fields or {}).items()}
    info = message("ErrorInfo", "google.rpc")(
        reason=problem.code, domain="penstock", metadata=fields
    )
    status.details.add().Pack(info)
    if isinstance(exc, TooManyRequests):
        retry = message("RetryInfo", "google.rpc")()
        retry.retry_delay.FromMilliseconds(int(exc.retry_after_s * 1000) + 1)
        status.details.add().Pack(retry)
    trailing = ((DETAILS, status.SerializeToString()),)
    await context.abort(code, problem.detail[:4000], trailing)
    raise AssertionError("unreachable")
