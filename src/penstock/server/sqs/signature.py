"""Signature Version 4: who signed a request, in its head or in its query. Pure.

The secret of a key is derived from what is stored of it (`keys.sqs_secret`), since whoever checks a
signature has to know the secret. The body is always part of what is signed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from calendar import timegm
from collections.abc import Mapping
from functools import lru_cache
from time import strptime
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from penstock.server.sqs.problems import SqsProblem

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW_S_MAX = 300
EXPIRES_S_MAX = 7 * 86_400
_TIME = "%Y%m%dT%H%M%SZ"
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_SIGNED_HEADERS_MAX = 50
_CREDENTIAL = re.compile(r"Credential=([^/,]+)/[0-9]{8}/([a-z0-9-]{1,64})/sqs/aws4_request")


class SignedRequest(NamedTuple):
    """What of a request a signature is about. `query` and `raw_path` as they came."""

    method: str
    raw_path: str
    query: str
    headers: Mapping[bytes, bytes]
    body: bytes


class Signature(NamedTuple):
    """What a request says about its signature."""

    key_id: str
    date: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    signature: str
    time: str
    expires_s: int | None
    """Of one in the query."""


def signature_of(request: SignedRequest, query: Mapping[str, str]) -> Signature | None:
    """None: the request is not signed. `query`: its parameters, decoded."""
    given = request.headers.get(b"authorization", b"").decode("latin-1")
    if given.startswith(ALGORITHM):
        fields = dict(
            part.strip().partition("=")[::2] for part in given[len(ALGORITHM) :].split(",")
        )
        time = request.headers.get(b"x-amz-date", b"").decode("latin-1")
        return _signature(
            fields.get("Credential", ""),
            fields.get("SignedHeaders", ""),
            fields.get("Signature", ""),
            time,
            None,
        )
    if query.get("X-Amz-Algorithm") == ALGORITHM:
        expires = query.get("X-Amz-Expires", "")
        if not expires.isascii() or not expires.isdigit() or len(expires) > 6:
            raise _incomplete("X-Amz-Expires is not a number of seconds")
        return _signature(
            query.get("X-Amz-Credential", ""),
            query.get("X-Amz-SignedHeaders", ""),
            query.get("X-Amz-Signature", ""),
            query.get("X-Amz-Date", ""),
            int(expires),
        )
    return None


def region_of(headers: Mapping[bytes, bytes], query: Mapping[str, str]) -> str | None:
    """The region that a request names, whoever checks its signature."""
    found = _credential_of(headers, query)
    return None if found is None else found[2]


def key_id_of(headers: Mapping[bytes, bytes], query: Mapping[str, str]) -> str | None:
    """Who a request says has signed it."""
    found = _credential_of(headers, query)
    return None if found is None else found[1]


def _credential_of(
    headers: Mapping[bytes, bytes], query: Mapping[str, str]
) -> re.Match[str] | None:
    given = headers.get(b"authorization", b"").decode("latin-1")
    return _CREDENTIAL.search(given) or _CREDENTIAL.search(
        f"Credential={query.get('X-Amz-Credential', '')}"
    )


def check(signature: Signature, request: SignedRequest, secret: str, now_s: float) -> None:
    """Raise SqsProblem unless the secret made this signature, for this request, just now."""
    _check_time(signature, now_s)
    if "host" not in signature.signed_headers:
        raise _incomplete("'host' has to be one of the signed headers")
    scope = f"{signature.date}/{signature.region}/{signature.service}/aws4_request"
    hashed = hashlib.sha256(canonical(signature, request)).hexdigest()
    to_sign = f"{ALGORITHM}\n{signature.time}\n{scope}\n{hashed}"
    key = _signing_key(secret, signature.date, signature.region, signature.service)
    expected = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected, signature.signature):
        raise SqsProblem(
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided. "
            "The secret is the one that `penstock key create` shows for SQS.",
        )


def canonical(signature: Signature, request: SignedRequest) -> bytes:
    """The request as it is signed."""
    path = quote(request.raw_path or "/", safe="/~")  # what is encoded is encoded once more
    pairs = []
    for part in request.query.split("&"):
        if part:
            name, _, value = part.partition("=")
            if name != "X-Amz-Signature":
                pairs.append((_encoded(name), _encoded(value)))
    query = "&".join(f"{name}={value}" for name, value in sorted(pairs))
    headers = "".join(
        f"{name}:{' '.join(_header(request.headers, name).split())}\n"
        for name in signature.signed_headers
    )
    names = ";".join(signature.signed_headers)
    body = hashlib.sha256(request.body).hexdigest()
    return f"{request.method}\n{path}\n{query}\n{headers}\n{names}\n{body}".encode()


@lru_cache(maxsize=256)
def _signing_key(secret: str, date: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _signature(
    credential: str, signed_headers: str, signature: str, time: str, expires_s: int | None
) -> Signature:
    parts = credential.split("/")
    if len(parts) != 5 or parts[4] != "aws4_request" or parts[3] != "sqs":
        raise _incomplete("the credential is not <key id>/<date>/<region>/sqs/aws4_request")
    if not _SIGNATURE.fullmatch(signature):
        raise _incomplete("the signature is not 64 hexadecimal digits")
    names = tuple(signed_headers.lower().split(";"))
    if len(names) > _SIGNED_HEADERS_MAX:
        raise _incomplete("there are too many signed headers")
    key_id, date, region, service, _ = parts
    return Signature(key_id, date, region, service, names, signature, time, expires_s)


def _check_time(signature: Signature, now_s: float) -> None:
    try:
        signed_s = timegm(strptime(signature.time, _TIME))
    except ValueError:
        raise _incomplete("X-Amz-Date is not a time such as 20260102T030405Z") from None
    if not signature.time.startswith(signature.date):
        raise _incomplete("the date of the credential is not that of X-Amz-Date")
    valid_s = SKEW_S_MAX
    if signature.expires_s is not None:
        if signature.expires_s > EXPIRES_S_MAX:
            raise _incomplete("X-Amz-Expires is more than seven days")
        valid_s = signature.expires_s
    if signed_s - now_s > SKEW_S_MAX or now_s - signed_s > valid_s:
        raise SqsProblem(
            "RequestExpired",
            f"The request was signed at {signature.time}, which is too far from the time of the "
            "server, or it has expired.",
        )


def _encoded(text: str) -> str:
    return quote(unquote_to_bytes(text.replace("+", " ")), safe="-_.~")


def _header(headers: Mapping[bytes, bytes], name: str) -> str:
    return headers.get(name.encode("latin-1", "replace"), b"").decode("latin-1")


def _incomplete(reason: str) -> SqsProblem:
    return SqsProblem("IncompleteSignature", f"The signature cannot be read: {reason}.")
