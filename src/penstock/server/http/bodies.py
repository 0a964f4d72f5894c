"""Bodies of requests: read within limits of size, time and memory, and decoded."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.types import Receive

from penstock.errors import InvalidInput, PenstockError, RequestTooLarge
from penstock.server.gate import ByteBudget
from penstock.server.http.endpoints import Endpoint
from penstock.server.http.json_items import has_more_items, too_many
from penstock.server.waiting import WaitingCalls

_COUNTED_BYTES = 1 << 20  # what a shorter body holds takes little memory, whatever it is

_decoders: dict[str, msgspec.json.Decoder[Any]] = {}


class ClientGone(Exception):
    """The client hung up: there is nobody to answer."""


async def read_body(
    receive: Receive,
    bytes_max: int,
    buffers: ByteBudget,
    waits: WaitingCalls,
    *,
    is_complete: bool = False,
) -> bytes:
    """All of it, counted in the budget, which the caller gives it back to. `is_complete`: it has
    come already, so that there is nothing to wait for.

    Raises RequestTooLarge, RequestTimeout, Unavailable (the budget is used up) or ClientGone.
    """
    if is_complete:
        return await _read(receive, bytes_max, buffers)
    task = asyncio.current_task()
    assert task is not None
    wait = waits.for_body(task)
    try:
        return await _read(receive, bytes_max, buffers)
    except asyncio.CancelledError:
        if wait.reason is None:
            raise
        task.uncancel()
        raise wait.reason from None
    finally:
        waits.leave(wait)


async def _read(receive: Receive, bytes_max: int, buffers: ByteBudget) -> bytes:
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")  # most come in one piece
        if len(body) > bytes_max:
            raise body_too_large(bytes_max)
        buffers.take(len(body))
        return body
    return await _read_parts(message, receive, bytes_max, buffers)


async def _read_parts(message: Any, receive: Receive, bytes_max: int, buffers: ByteBudget) -> bytes:
    body = bytearray()
    try:
        while True:
            if message["type"] != "http.request":
                raise ClientGone
            part = message.get("body", b"")
            if len(body) + len(part) > bytes_max:
                raise body_too_large(bytes_max)
            buffers.take(len(part))
            body += part
            if not message.get("more_body"):
                return bytes(body)
            message = await receive()
    except BaseException:
        buffers.give_back(len(body))
        raise


def body_too_large(bytes_max: int) -> PenstockError:
    return RequestTooLarge(f"the body is longer than {bytes_max} bytes")


def decode_json(endpoint: Endpoint, body: bytes, items_max: int) -> Any:
    """The struct that the endpoint names. On the event loop only if the body is short."""
    if len(body) > _COUNTED_BYTES:
        for objects_around in range(1, endpoint.items_in + 1):
            if has_more_items(body, items_max, objects_around):
                raise too_many(items_max)
    decoder = _decoders.get(endpoint.name)
    if decoder is None:
        decoder = _decoders[endpoint.name] = msgspec.json.Decoder(endpoint.body)
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidInput(f"body: {exc}") from None
