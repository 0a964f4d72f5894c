"""What is in a message: its body and attributes as SQS has them, and as Penstock stores them.

A body is text of XML characters, and is stored as the value. A message attribute is a header of
its name; where it is not text, or of a type of its own, one more header says which type. So what is
sent here is read by any other consumer, and the reverse: a value that is not such text comes as
base64, which an attribute says.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import md5
from struct import pack
from typing import Any

import msgspec

from penstock.server.sqs.problems import SqsProblem, invalid
from penstock.server.sqs.requests import AttributeValue

OWN_PREFIX = "penstock-"
TYPES_HEADER = "penstock-sqs-types"
TRACE_HEADER = "penstock-sqs-trace"
ENCODING = "penstock-encoding"
ATTRIBUTES_MAX = 10

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"(?!\.)(?!(?i:aws\.|amazon\.|penstock-))(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_TYPE = re.compile(r"(String|Number|Binary)(\.[^\x00-\x1f]{1,248})?")
_NUMBER = re.compile(r"[+-]?(?:\d{1,128})?(?:\.\d{0,128})?(?:[eE][+-]?\d{1,3})?")

_EMPTY_MD5 = md5(usedforsecurity=False)
_UUID_TAIL = (1 << 48) - 1

Headers = dict[str, bytes | None]
_types_decoder = msgspec.json.Decoder(dict[str, str])


def body_of(text: str) -> bytes:
    """The value of a message; raises InvalidMessageContents."""
    if text and is_plain(text):
        return text.encode()
    if not text:
        raise SqsProblem("MissingParameter", "The request must contain the parameter MessageBody.")
    try:
        value = text.encode()
    except UnicodeEncodeError:
        value = b""
    if not value or _NOT_XML.search(text):
        raise SqsProblem(
            "InvalidMessageContents",
            "The message contains characters outside the allowed set: #x9, #xA, #xD, #x20 to "
            "#xD7FF, #xE000 to #xFFFD, #x10000 to #x10FFFF.",
        )
    return value


def shown_body(value: bytes | None) -> tuple[str, bool]:
    """A value as text, and whether it had to be base64."""
    try:
        text = (value or b"").decode()
    except UnicodeDecodeError:
        text = "\x00"
    if not is_plain(text) and _NOT_XML.search(text):
        return base64.b64encode(value or b"").decode(), True
    return text, False


def is_plain(text: str) -> bool:
    """Whether it is one line of ASCII, as most are: that is known sooner than what XML allows."""
    return text.isascii() and text.isprintable()


def headers_of(attributes: Mapping[str, AttributeValue]) -> Headers:
    """Message attributes as headers; raises SqsProblem."""
    if len(attributes) > ATTRIBUTES_MAX:
        raise SqsProblem(
            "InvalidParameterValue",
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum "
            f"[{ATTRIBUTES_MAX}].",
        )
    headers: Headers = {}
    types: dict[str, str] = {}
    for name, attribute in attributes.items():
        if not _NAME.fullmatch(name):
            raise invalid("MessageAttributes", name, "It is no name of a message attribute.")
        headers[name] = _bytes_of(name, attribute)
        if attribute.data_type != "String":
            types[name] = attribute.data_type
    if types:
        headers[TYPES_HEADER] = msgspec.json.encode(types)
    return headers


def trace_of(attributes: Mapping[str, AttributeValue]) -> Headers:
    """The one system attribute that can be sent, as a header."""
    headers: Headers = {}
    for name, attribute in attributes.items():
        if name != "AWSTraceHeader" or attribute.data_type != "String":
            raise invalid("MessageSystemAttributes", name, "Only AWSTraceHeader, a String, is.")
        headers[TRACE_HEADER] = _bytes_of(name, attribute)
    return headers


def shown_attributes(
    headers: Mapping[str, bytes | None], wanted: Iterable[str], *, is_base64: bool
) -> dict[str, dict[str, Any]]:
    """Headers as message attributes, those of the names, or prefixes, that are wanted."""
    names = list(wanted)
    if not names or not (headers or is_base64):
        return {}
    all_of_them = "All" in names or ".*" in names
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    types: dict[str, str] = {}
    if TYPES_HEADER in headers:
        types = _types(headers[TYPES_HEADER])
    found: dict[str, dict[str, Any]] = {}
    for name, value in headers.items():
        is_wanted = all_of_them or name in names or (prefixes and name.startswith(prefixes))
        if is_wanted and not name.startswith(OWN_PREFIX):
            found[name] = _shown(value or b"", types.get(name, "String"))
    if is_base64 and (all_of_them or ENCODING in names):
        found[ENCODING] = {"DataType": "String", "StringValue": "base64"}
    return found


def uuid_text(number: int) -> str:
    """A number of 128 bits as the standard library shows a UUID, which takes ten times as long."""
    return f"{_uuid_head(number >> 48)}{number & _UUID_TAIL:012x}"


@lru_cache(maxsize=16)
def _uuid_head(number: int) -> str:
    """All but the last 12 digits: the messages of a batch have that in common."""
    digits = f"{number:020x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:]}-"


def body_md5(body: str | bytes) -> str:
    digest = _EMPTY_MD5.copy()  # making one anew takes three times as long
    digest.update(body.encode() if isinstance(body, str) else body)
    return digest.hexdigest()


def attributes_md5(attributes: Mapping[str, Mapping[str, Any]]) -> str:
    """Over the names, types and values, sorted by name, each after its length."""
    digest = md5(usedforsecurity=False)
    for name in sorted(attributes):
        attribute = attributes[name]
        data_type: str = attribute["DataType"]
        if data_type.startswith("Binary"):
            kind, value = b"\2", bytes(attribute["BinaryValue"])
        else:
            kind, value = b"\1", attribute["StringValue"].encode()
        for part in (name.encode(), data_type.encode()):
            digest.update(pack(">I", len(part)) + part)
        digest.update(kind + pack(">I", len(value)) + value)
    return digest.hexdigest()


def sent_md5(attributes: Mapping[str, AttributeValue]) -> str:
    return attributes_md5(
        {
            name: {
                "DataType": each.data_type,
                "StringValue": each.string_value or "",
                "BinaryValue": each.binary_value or b"",
            }
            for name, each in attributes.items()
        }
    )


def _bytes_of(name: str, attribute: AttributeValue) -> bytes:
    kind = _TYPE.fullmatch(attribute.data_type)
    if kind is None or len(attribute.data_type) > 256:
        raise invalid(
            name, attribute.data_type, "The type of an attribute is String, Number or Binary."
        )
    if kind[1] == "Binary":
        if not attribute.binary_value:
            raise invalid(name, "", "A Binary attribute must have a BinaryValue.")
        return attribute.binary_value
    text = attribute.string_value
    if not text:
        raise invalid(name, "", f"A {kind[1]} attribute must have a StringValue.")
    if kind[1] == "Number" and not (_NUMBER.fullmatch(text) and any(map(str.isdigit, text))):
        raise invalid(name, text, "It is not a number.")
    return body_of(text)


def _shown(value: bytes, data_type: str) -> dict[str, Any]:
    if not data_type.startswith("Binary"):
        text, is_base64 = shown_body(value)
        if not is_base64:
            return {"StringValue": text, "DataType": data_type}
        data_type = "Binary"
    return {"BinaryValue": value, "DataType": data_type}


def _types(data: bytes | None) -> dict[str, str]:
    try:
        return _types_decoder.decode(data or b"{}")
    except msgspec.DecodeError:
        return {}
