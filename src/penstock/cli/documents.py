"""JSON as `penstock publish` reads it: documents that are messages, or values.

A document is a line, an element of an array, or spread over lines. Lines go out as they come; the
rest is read as a whole.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TypeVar, cast

import msgspec

from penstock.errors import InvalidInput
from penstock.model.messages import NewMessage

# What `consume` and `peek` say about where a message was; a new message has a place of its own.
_PLACE = ("topic", "partition", "offset", "id", "timestamp_us", "delivery_count", "receipt")
_ALWAYS = {"topic", "partition", "offset", "id", "timestamp_us"}

T = TypeVar("T")

_SPACE = re.compile(r"\s*")

_WHICH = (
    "--format jsonl takes each line, or each element of an array, as a message with its fields, "
    "such as key; --format json takes each as a value"
)


def documents(lines: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """JSON texts: line by line if the first line is one, else the parts of the whole."""
    for first in lines:
        first[0] = first[0].removeprefix(BOM_UTF8)  # as some editors begin a file
        if not first[0].lstrip().startswith(b"[") and _is_json(first[0]):
            yield from chain([first], lines)
        else:
            yield _parts(_joined(first, lines))


def lines_or_elements(lines: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Lines or, where they begin an array, its elements. No message begins with a bracket."""
    for first in lines:
        first[0] = first[0].removeprefix(BOM_UTF8)
        if first[0].lstrip().startswith(b"["):
            yield _parts(_joined(first, lines))
        else:
            yield from chain([first], lines)


def as_messages(batches: Iterable[list[bytes]]) -> Iterator[list[NewMessage]]:
    """Each text is a message, with its key, headers and so on."""
    return _each(batches, _message)


def as_values(batches: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    """Each text is a value; a string is what it says, without its quotes."""
    return _each(batches, lambda text, number: _value(text, _decoded(text, number)))


def by_content(batches: Iterable[list[bytes]]) -> Iterator[list[NewMessage] | list[bytes]]:
    """Messages if they are such as `consume` writes, else values; all of them the same."""
    kinds: set[type] = set()

    def of_one_kind(text: bytes, number: int) -> NewMessage | bytes:
        found = _either(text, number)
        kinds.add(type(found))
        if len(kinds) > 1:
            raise InvalidInput(
                f"message {number}: some are messages as `consume` writes them, others are "
                f"not. Say what is meant: {_WHICH}"
            )
        return found

    return cast("Iterator[list[NewMessage] | list[bytes]]", _each(batches, of_one_kind))


def _each(batches: Iterable[list[bytes]], parse: Callable[[bytes, int], T]) -> Iterator[list[T]]:
    """What the texts are, each told its number; those without anything in them are passed over."""
    number = 0
    for texts in batches:
        found = []
        for text in texts:
            number += 1
            if text.strip():
                found.append(parse(text, number))
        if found:
            yield found


def _either(text: bytes, number: int) -> NewMessage | bytes:
    fields = _decoded(text, number)
    if isinstance(fields, dict):
        consumed = fields.keys() >= _ALWAYS
        is_text = isinstance(fields.get("value", ""), str | None)
        if consumed or (is_text and ("value" in fields or "value_base64" in fields)):
            with suppress(msgspec.ValidationError):
                message = _of_fields(fields)
                if consumed:
                    return message
                raise InvalidInput(
                    f"message {number}: this can be a message, or a value that is JSON itself. "
                    f"Say what is meant: {_WHICH}"
                )
    return _value(text, fields)


def _message(text: bytes, number: int) -> NewMessage:
    try:
        return _of_fields(msgspec.json.decode(text))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidInput) as exc:
        raise InvalidInput(
            f"message {number}: {exc}. Each line is a message such as "
            '{"value": "12 apples", "key": "c-17"}; for lines that are values as they are, '
            "use --format lines"
        ) from None


_messages = msgspec.json.Decoder(NewMessage)


def _of_fields(fields: object) -> NewMessage:
    if not isinstance(fields, dict):
        raise InvalidInput("an object is wanted")
    if "offset" in fields:  # one that was consumed, and is published again
        fields = {k: v for k, v in fields.items() if k not in (*_PLACE, "expires_at_us")}
    elif "value" not in fields and "value_base64" not in fields:
        raise InvalidInput("there is no field 'value' or 'value_base64'")
    # A message keeps the JSON of its value as it stands.
    return _messages.decode(msgspec.json.encode(fields))


def _value(text: bytes, decoded: object) -> bytes:
    if isinstance(decoded, str):
        return decoded.encode()
    text = text.strip()
    return msgspec.json.format(text, indent=-1) if b"\n" in text else text


def _decoded(text: bytes, number: int) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidInput(
            f"message {number} is not JSON: {exc}. For lines that are values as they are, use "
            "--format lines; for a file that is one message, --format whole"
        ) from None


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _joined(first: list[bytes], others: Iterator[list[bytes]]) -> bytes:
    return b"\n".join(chain(first, *others))


def _parts(whole: bytes) -> list[bytes]:
    """The elements of an array, or documents one below the other."""
    try:
        if whole.lstrip().startswith(b"["):
            return [bytes(each) for each in msgspec.json.decode(whole, type=list[msgspec.Raw])]
        text, found, end = whole.decode().rstrip(), [], 0
        while end < len(text):
            start = _SPACE.match(text, end).end()  # type: ignore[union-attr]  # it may be empty
            _, end = json.JSONDecoder().raw_decode(text, start)
            found.append(text[start:end].encode())
        return found
    except (ValueError, RecursionError) as exc:  # also msgspec's
        raise InvalidInput(
            f"this is not a JSON array, nor JSON documents one below the other: {exc}. For lines "
            "that are values as they are, use --format lines; for a file that is one message, "
            "--format whole"
        ) from None
