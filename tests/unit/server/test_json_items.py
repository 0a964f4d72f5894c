"""The items of a body, counted without decoding it, are those that a parser finds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.http import json_items
from penstock.server.http.json_items import has_more_items

texts = st.text(st.sampled_from('",[]{}\\:ax\n\u20ac'), max_size=8)
values = st.recursive(
    texts | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(
    items=st.lists(values, max_size=6), beside=st.dictionaries(texts, texts), spaces=st.booleans()
)
def test_items_are_counted_whatever_is_in_them(
    items: list[Any], beside: dict[str, str], spaces: bool
) -> None:
    indent = 1 if spaces else None
    body = {"inner": beside, "more": "x", "messages": items, **beside}
    for around, text in (
        (1, json.dumps(body, indent=indent)),
        (2, json.dumps({"ack": body, "headers": beside}, indent=indent, ensure_ascii=False)),
    ):
        for limit in range(1, 8):
            assert has_more_items(text.encode(), limit, around) == (len(items) > limit), text


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7])
def test_a_long_body_is_counted_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(json_items, "_CHUNK_BYTES", chunk_bytes)
    body = json.dumps({"messages": [{"value": 'a",[{\\'}, {}, {"headers": {"a": "b"}}]}).encode()
    assert has_more_items(body, 2, 1)
    assert not has_more_items(body, 3, 1)


@pytest.mark.parametrize("body", [b"", b",,,", b'"', b"]]],,,", b'{"messages":[', b"\\\\,\\,,"])
def test_what_is_no_json_is_left_to_the_parser(body: bytes) -> None:
    assert not has_more_items(body, 1, 1)
