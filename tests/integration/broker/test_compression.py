"""How hard a topic compresses, and from which size on."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.errors import InvalidInput
from tests.integration.broker.world import World

WORDS = [b"order", b"paid", b"sent", b"back", b"Berlin", b"Lagos", b"Lima", b"0", b"1", b"2"]


def text(bytes_about: int) -> bytes:
    chosen = random.Random(7).choices(WORDS, k=bytes_about // 5)
    return b" ".join(chosen)


def stored(ps: Any, topic: str, values: list[bytes], **settings: Any) -> int:
    """How many bytes of log they take; they have to come back as they were."""
    ps.create_topic(topic, **settings)
    before = ps.stats(topic).size_bytes
    for value in values:
        ps.publish(topic, value)
    assert [message.value for message in ps.peek(topic, limit=len(values))] == values
    return int(ps.stats(topic).size_bytes) - before


def test_a_higher_level_takes_less_room(world: World) -> None:
    values = [text(50_000)]
    for codec, low, high in (("gzip", 1, 9), ("zstd", 1, 19), ("lz4", 1, 12)):
        low_bytes = stored(world.ps, f"{codec}-low", values, codec=codec, codec_level=low)
        high_bytes = stored(world.ps, f"{codec}-high", values, codec=codec, codec_level=high)
        assert high_bytes < low_bytes < 40_000


def test_small_messages_are_compressed_if_the_topic_says_so(world: World) -> None:
    values = [b"tell me again " * 20] * 10
    plain = stored(world.ps, "plain", values, codec="zstd")
    small = stored(world.ps, "small", values, codec="zstd", compress_bytes_min=100)
    assert plain > sum(map(len, values))
    assert small < plain / 2
    large = stored(world.ps, "large", [text(50_000)], codec="zstd", compress_bytes_min=1 << 20)
    assert large > 45_000


def test_a_level_can_be_changed(world: World) -> None:
    ps = world.ps
    low = stored(ps, "orders", [text(50_000)], codec="gzip", codec_level=1)
    ps.alter_topic("orders", codec_level=9)
    before = ps.stats("orders").size_bytes
    ps.publish("orders", text(50_000))
    assert ps.stats("orders").size_bytes - before < low


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"codec": "gzip", "codec_level": 10}, "from 1 to 9"),
        ({"codec": "zstd", "codec_level": 0}, "from 1 to 22"),
        ({"codec_level": 3}, "no codec"),
        ({"codec": "gzip", "compress_bytes_min": 0}, "at least 1"),
    ],
)
def test_a_wrong_level_is_refused(world: World, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        world.ps.create_topic("orders", **settings)
