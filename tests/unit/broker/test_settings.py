"""The settings of a topic: how people write them, and how they are stored."""

from __future__ import annotations

import msgspec
import pytest

from penstock.errors import InvalidInput
from penstock.model.settings import (
    DEAD_LETTER_SETTINGS,
    MESSAGE_BYTES_MAX,
    TopicSettings,
    parse_settings,
    parse_ttl_us,
)


def test_settings_are_given_on_top_of_others() -> None:
    first = parse_settings({"visibility": "10s", "retention": None})
    second = parse_settings({"max_retries": None, "backoff": ["2s", 1, "2s"]}, first)
    assert (second.visibility_ms, second.retention_ms) == (10_000, None)
    assert (second.max_retries, second.backoff) == (None, (2_000, 1.0, 2_000))
    assert parse_settings({"retention": "1d"}, second).retention_ms == 86_400_000
    assert first.max_retries == 3


def test_stored_settings_can_be_read_by_a_version_that_knows_fewer_or_more() -> None:
    stored = msgspec.json.encode(parse_settings({"partitions": 3, "visibility": "5s"}))
    newer = stored[:-1] + b',"colour":"red"}'
    assert msgspec.json.decode(newer, type=TopicSettings).partitions == 3
    older = msgspec.json.decode(b'{"partitions":7}', type=TopicSettings)
    assert (older.partitions, older.visibility_ms) == (7, 30_000)


def test_an_unknown_setting_lists_those_that_are_known() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_settings({"retries": 3})
    assert "did you mean 'max_retries'?" in str(caught.value)
    assert "visibility, weights" in str(caught.value)
    with pytest.raises(InvalidInput) as caught:
        parse_settings({"zzz": 3})
    assert "did you mean" not in str(caught.value)
    with pytest.raises(InvalidInput):
        parse_settings({"visibility_ms": 3})  # durations have their unit in the value


def test_what_goes_to_the_log_and_to_delivery() -> None:
    settings = parse_settings(
        {"fsync": "batch", "codec": "zstd", "in_flight_max": 5, "retention_segments": 4}
    )
    assert (settings.log_config().fsync, settings.log_config().codec) == ("batch", "zstd")
    assert settings.log_config(free_bytes_min=7).free_bytes_min == 7
    assert settings.policy().in_flight_max == 5
    assert settings.retention().segments_max == 4


def test_a_dead_letter_may_be_longer_than_any_message() -> None:
    assert DEAD_LETTER_SETTINGS.message_bytes_max > MESSAGE_BYTES_MAX
    with pytest.raises(InvalidInput):
        parse_settings({"message_bytes_max": MESSAGE_BYTES_MAX + 1})
    assert parse_settings({"retention": "1d"}, DEAD_LETTER_SETTINGS).max_retries is None


def test_a_ttl_has_a_limit() -> None:
    assert parse_ttl_us("1s") == 1_000_000
    with pytest.raises(InvalidInput, match=r"ttl is .* at most 12725 days"):
        parse_ttl_us(10**11)
