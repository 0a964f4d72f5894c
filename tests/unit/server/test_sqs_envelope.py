"""Ids, bodies and their checks, which take short ways where they can."""

from __future__ import annotations

import re
import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.server.sqs.envelope import body_of, shown_body, uuid_text
from penstock.server.sqs.problems import SqsProblem

_XML = re.compile("[\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")


@given(st.integers(0, (1 << 128) - 1))
@example((1 << 48) - 1)
@example(1 << 48)
def test_ids_are_uuids(number: int) -> None:
    assert uuid_text(number) == str(uuid.UUID(int=number))
    following = (number + 1) % (1 << 128)  # of the same batch, perhaps with another head
    assert uuid_text(following) == str(uuid.UUID(int=following))


@given(st.text(min_size=1))
@example("\x7f")
@example("\x00")
@example("two\nlines\tand\ra half \x85")
@example("\ufffe")
def test_a_body_is_xml_characters(text: str) -> None:
    if _XML.fullmatch(text):
        assert shown_body(body_of(text)) == (text, False)
        return
    with pytest.raises(SqsProblem, match="outside the allowed set"):
        body_of(text)


@given(st.binary())
def test_what_is_no_such_text_is_shown_as_base64(value: bytes) -> None:
    text, is_base64 = shown_body(value)
    try:
        is_text = _XML.fullmatch(value.decode()) is not None
    except UnicodeDecodeError:
        is_text = False
    assert is_base64 is not is_text
    assert is_base64 or text.encode() == value
