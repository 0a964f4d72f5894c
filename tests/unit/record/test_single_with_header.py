from __future__ import annotations

import pytest

from penstock.record.batch import Batch
from penstock.record.single_with_header import SingleWithHeader
from penstock.record.writing import encode


@pytest.mark.parametrize("value", [b"", b"v", b"seven..", b"eight...", b"x" * 1000])
@pytest.mark.parametrize("header", [b"", b"1", b"an-id-of-17-bytes", b"y" * 300])
def test_it_is_laid_down_as_arrow_would(value: bytes, header: bytes) -> None:
    by_arrow = Batch.build([value], headers=[{"name": header}], timestamps_us=5)
    single = SingleWithHeader(value, "name", header, timestamp_us=5)

    assert single.body() == bytes(by_arrow.data.serialize())
    assert b"".join(encode(single, 7, 1 << 24).buffers) == b"".join(
        map(bytes, encode(by_arrow, 7, 1 << 24).buffers)
    )
    assert single == by_arrow
    assert single.messages() == by_arrow.messages()
    assert len(single) == 1


def test_it_can_be_given_a_time() -> None:
    single = SingleWithHeader(b"v", "name", b"header", priority=1)

    assert single.stamped(9) == Batch.build(
        [b"v"], headers=[{"name": b"header"}], priority=1, timestamps_us=9
    )
