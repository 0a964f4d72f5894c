"""A request and its answer, as every handler sees them, whoever brought them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from penstock.errors import MethodNotAllowed, PenstockError, TooManyRequests
from penstock.model.problem import PROBLEM_TYPE, problem_of

JSON_TYPE = "application/json"

_encoder = msgspec.json.Encoder()


class Request(msgspec.Struct, gc=False):
    """What was asked, complete with its body."""

    method: str
    path: str
    """Without percent-encoding, with the prefix under which the application is mounted."""
    query: str
    headers: dict[bytes, bytes]
    """Names in lower case; of a header that came twice, the last."""
    body: bytes
    client: str
    """The address that it came from."""
    root: str = ""
    """The prefix under which the application is mounted."""
    secure: bool = False
    """Whether it came by TLS."""

    def content_type(self) -> str:
        """Without parameters, in lower case; empty if there is none."""
        return _media_type(self.headers.get(b"content-type", b""))

    def accepts(self, kind: str) -> bool:
        return kind in _accepted(self.headers.get(b"accept", b""))


class Answer(msgspec.Struct, frozen=True, gc=False):
    status: int
    content_type: str = ""
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    code: str = ""
    """Of the problem, if it is one; for the log."""


NOTHING = Answer(204)


def json_answer(result: Any, status: int = 200) -> Answer:
    return Answer(status, JSON_TYPE, _encoder.encode(result))


def problem_answer(error: PenstockError, path: str) -> Answer:
    problem = problem_of(error, path)
    headers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, TooManyRequests):
        headers = (("retry-after", str(max(1, math.ceil(error.retry_after_s)))),)
    elif problem.status == 503:
        headers = (("retry-after", "1"),)
    elif problem.status == 401:
        headers = (("www-authenticate", "Bearer"),)
    elif isinstance(error, MethodNotAllowed):
        headers = (("allow", error.allow),)
    return Answer(problem.status, PROBLEM_TYPE, _encoder.encode(problem), headers, problem.code)


@lru_cache(maxsize=256)
def _accepted(value: bytes) -> str:
    return value.decode("latin-1").lower().replace(" ", "")


@lru_cache(maxsize=256)
def _media_type(value: bytes) -> str:
    return value.decode("latin-1").partition(";")[0].strip().lower()


def parse_query(query: str) -> dict[str, str]:
    """The parameters; of one that comes twice, the last. Bytes that are no UTF-8 are kept apart."""
    found: dict[str, str] = {}
    for part in query.split("&"):
        if part:
            name, _, value = part.partition("=")
            found[decode(name.replace("+", " "))] = decode(value.replace("+", " "))
    return found


def decode(text: str) -> str:
    """Without percent-encoding; what is no UTF-8 becomes a character that no name has."""
    if "%" not in text:
        return text
    return unquote_to_bytes(text).decode("utf-8", "replace")
