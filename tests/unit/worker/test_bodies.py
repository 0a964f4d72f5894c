"""Bodies: from bytes to what a handler is annotated with, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, TypedDict

import msgspec
import pytest

from penstock.errors import InvalidInput
from penstock.worker.bodies import Undecodable, decoder, to_publish

pydantic = pytest.importorskip("pydantic")


class Order(msgspec.Struct):
    what: str
    count: int


@dataclass
class Parcel:
    weight_g: int


class Note(TypedDict):
    text: str


class Invoice(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    total: int


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        (bytes, b"\xff\x00", b"\xff\x00"),
        (str, "zwölf", "zwölf".encode()),
        (dict, {"a": [1, None]}, b'{"a":[1,null]}'),
        (dict[str, int], {"a": 1}, b'{"a":1}'),
        (list[int], [1, 2], b"[1,2]"),
        (int, 7, b"7"),
        (Order, Order("apples", 12), b'{"what":"apples","count":12}'),
        (Parcel, Parcel(100), b'{"weight_g":100}'),
        (Note, {"text": "x"}, b'{"text":"x"}'),
        (Invoice, Invoice(total=3), b'{"total":3}'),
        (bytes | None, None, None),
        (Optional[Order], None, None),  # noqa: UP045 - people write it
        (Order | None, Order("x", 1), b'{"what":"x","count":1}'),
    ],
)
def test_a_body_goes_there_and_back(kind: Any, body: object, value: bytes | None) -> None:
    published = to_publish(body, {})
    given = published["value"]
    assert (given.encode() if isinstance(given, str) else given) == value
    assert decoder(kind)(value) == body
    is_json = kind not in (bytes, str) and value is not None
    assert published.get("headers") == ({"content-type": b"application/json"} if is_json else None)


def test_headers_of_ones_own_stay_and_so_does_the_body_as_it_was() -> None:
    own = {"Content-Type": "application/vnd.order"}
    order = Order("apples", 12)
    published = to_publish(order, {"headers": own, "key": "c-17"})
    order.count = 0
    assert published == {"value": b'{"what":"apples","count":12}', "headers": own, "key": "c-17"}


def test_nothing_is_the_empty_value_where_none_is_not_wanted() -> None:
    assert decoder(bytes)(None) == b""
    assert decoder(str)(None) == ""
    assert decoder(Any)(None) is None
    with pytest.raises(Undecodable):
        decoder(Order)(None)


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (Order, b"nonsense", "the body is no Order: "),
        (Order, b'{"what": "x"}', "missing required field `count`"),
        (Order, b'{"what": "x", "count": "many"}', r"Expected `int`, got `str` - at `\$.count`"),
        (Invoice, b'{"total": "many"}', "the body is no Invoice: "),
        (Parcel, b"{}", "the body is no Parcel: "),
        (dict, b"[1]", "the body is no dict: "),
        (str, b"\xff", "the body is no text: "),
    ],
)
def test_what_is_not_of_the_type_says_why(kind: Any, value: bytes, says: str) -> None:
    with pytest.raises(Undecodable, match=says):
        decoder(kind)(value)


def test_types_that_no_body_has_are_refused_when_the_app_is_made() -> None:
    with pytest.raises(InvalidInput, match="is no type of a body"):
        decoder(Order | Parcel | int)
    with pytest.raises(InvalidInput, match="object is not JSON"):
        to_publish(object(), {})
