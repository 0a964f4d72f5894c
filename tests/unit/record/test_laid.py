"""Messages that came laid down are what they would be if they had been built here."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.record.plain import WORTH_IT_MAX, Laid, Plain

PAYLOADS = st.lists(st.binary(max_size=30), min_size=1, max_size=WORTH_IT_MAX)


@settings(deadline=None)
@given(PAYLOADS)
def test_a_body_is_read_as_it_was_laid(payloads: list[bytes]) -> None:
    plain = Plain(payloads)
    laid = Laid.of_body(plain.body())
    assert laid is not None
    assert len(laid) == len(payloads)
    assert laid.body() == plain.body()
    assert laid.payloads == payloads
    assert laid.data.equals(plain.data)
    assert laid.messages() == plain.messages()
    assert laid.slice(1).payloads == payloads[1:]


@settings(deadline=None)
@given(PAYLOADS, st.data())
def test_a_body_that_differs_in_a_byte_is_refused_or_has_other_values(
    payloads: list[bytes], data: st.DataObject
) -> None:
    body = bytearray(Plain(payloads).body())
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    laid = Laid.of_body(bytes(body))
    if laid is not None:
        assert sum(map(len, laid.payloads)) == sum(map(len, payloads))
        laid.data.validate(full=True)


def test_a_body_that_is_cut_or_longer_is_refused() -> None:
    body = Plain([b"abc", b"", b"defgh"]).body()
    for wrong in (b"", body[:-1], body[:50], body + bytes(8)):
        assert Laid.of_body(wrong) is None
    assert Laid.of_body(Plain([b"x"] * (WORTH_IT_MAX + 1)).body()) is None
