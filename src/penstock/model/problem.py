"""Errors over the wire: RFC 9457 problem details, and the exceptions that come of them again."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock import errors
from penstock.errors import DeliveryError, PenstockError, RefusedItem
from penstock.model.deliveries import Refusal

PROBLEM_TYPE = "application/problem+json"

STATUS = {
    "invalid_input": 400,
    "invalid_receipt": 400,
    "invalid_config": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "read_only": 403,
    "not_found": 404,
    "topic_not_found": 404,
    "partition_not_found": 404,
    "group_not_found": 404,
    "unknown_member": 404,
    "key_not_found": 404,
    "webhook_not_found": 404,
    "schedule_not_found": 404,
    "transaction_forgotten": 409,
    "transaction_not_found": 404,
    "subject_not_found": 404,
    "schema_version_not_found": 404,
    "schema_not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "topic_exists": 409,
    "topic_recreated": 409,
    "key_exists": 409,
    "lease_lost": 409,
    "already_settled": 409,
    "producer_fenced": 409,
    "transaction_refused": 409,
    "out_of_order_sequence": 409,
    "group_not_empty": 409,
    "namespace_not_empty": 409,
    "stale_generation": 409,
    "stale_commit": 409,
    "partition_not_owned": 409,
    "schema_incompatible": 409,
    "schema_referenced": 409,
    "subject_not_deleted": 409,
    "registry_read_only": 409,
    "message_too_large": 413,
    "request_too_large": 413,
    "unsupported_media_type": 415,
    "offset_out_of_range": 416,
    "not_owner": 421,
    "not_in_cluster": 501,
    "invalid_schema": 422,
    "schema_mismatch": 422,
    "too_many_requests": 429,
    "quota_exceeded": 429,
    "rate_quota_exceeded": 429,
    "broker_closed": 503,
    "unavailable": 503,
    "keys_unreadable": 503,
    "too_many_open_files": 503,
    "data_folder_lost": 503,
    "shard_lost": 503,
    "store_damaged": 503,
    "disk_full": 507,
    "storage_quota_exceeded": 507,
}
"""The status of each code; 500 for the others, which tell of trouble on the server."""

_TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    416: "Range Not Satisfiable",
    421: "Misdirected Request",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    507: "Insufficient Storage",
}

_CLASSES: dict[str, type[PenstockError]] = {
    error.code: error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, PenstockError)
}

Field = str | int | float | bool | None


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong, as RFC 9457 writes it, with the code by which programs decide."""

    code: str
    """Stable; the codes are those of `penstock.errors`."""
    status: int
    title: str
    detail: str
    """For a person: what happened, and what to do."""
    type: str = "about:blank"
    instance: str | None = None
    """The path of the request."""
    retriable: bool = False
    """Whether the same request may succeed later."""
    fields: dict[str, Field] | None = None
    """What the error is about: a topic, an offset ..."""
    reasons: list[RefusedItem] | None = None
    """What of a transaction cannot be done."""


def problem_of(error: PenstockError, instance: str | None = None) -> Problem:
    status = STATUS.get(error.code, 500)
    fields = {k: v for k, v in vars(error).items() if isinstance(v, Field)}
    return Problem(
        code=error.code,
        status=status,
        title=_TITLES[status],
        detail=str(error),
        instance=instance,
        retriable=error.retriable,
        fields=fields or None,
        reasons=getattr(error, "reasons", None),
    )


def error_of(problem: Problem) -> PenstockError:
    """The exception that an embedded client would have raised."""
    fields: dict[str, Any] = dict(problem.fields or {})
    if problem.reasons is not None:
        fields["reasons"] = problem.reasons
    return make_error(problem.code, problem.detail, fields)


def make_error(code: str, detail: str, fields: dict[str, Any]) -> PenstockError:
    kind = _CLASSES.get(code, PenstockError)
    error = kind.__new__(kind)
    Exception.__init__(error, detail)
    error.__dict__.update(fields)
    return error


def refusal_error(refusal: Refusal) -> DeliveryError:
    """Why a message could not be settled, as the exception."""
    error = make_error(refusal.code, refusal.detail, {"offset": refusal.offset})
    assert isinstance(error, DeliveryError)
    return error
