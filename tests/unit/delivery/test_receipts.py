from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DeliveryError, InvalidReceipt
from penstock.model.receipts import NONCE_BITS, Receipt

receipts = st.builds(
    Receipt,
    topic=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,248}", fullmatch=True),
    partition=st.integers(0, 9999),
    offset=st.integers(0, 2**62),
    delivery_count=st.integers(1, 10**6),
    nonce=st.integers(0, 2**NONCE_BITS - 1),
)


def test_a_receipt_reads_as_documented() -> None:
    receipt = Receipt("orders", 3, 1041, 2, 0xABC)

    assert str(receipt) == "orders:3:1041:2:000000000000abc"


@given(receipts)
def test_what_was_given_out_is_what_comes_back(receipt: Receipt) -> None:
    assert Receipt.parse(str(receipt)) == receipt


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "orders:0:1:1",
        "orders:0:1:1:",
        "orders:0:1:1:abc",
        "orders:0:1:1:0000000000000abc",
        "orders:0:1:1:00000000000000abc",
        ":0:1:1:000000000000abc",
        "orders:-1:1:1:000000000000abc",
        "orders:0:+1:1:000000000000abc",
        "orders:0:01:1:000000000000abc",
        "orders:0:1_0:1:000000000000abc",
        "orders:0:1:0:000000000000abc",
        "orders:0:1:1:000000000000ABC",
        "orders:0:1:1:000000000000abc\n",
        "or:ders:0:1:1:000000000000abc",
        "orders:0:\u0661:1:000000000000abc",
        "orders:0:" + "9" * 5000 + ":1:000000000000abc",
        None,
        7,
        b"orders:0:1:1:000000000000abc",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidReceipt) as caught:
        Receipt.parse(text)

    assert isinstance(caught.value, DeliveryError)
    assert caught.value.code == "invalid_receipt"
    assert len(str(caught.value)) < 500


@given(st.text())
def test_no_text_brings_down_the_parser(text: str) -> None:
    with suppress(InvalidReceipt):
        assert str(Receipt.parse(text)) == text
        assert Receipt.is_receipt(text)
