"""Settings are checked when they are made, so that a wrong one is found at the door."""

from typing import Any

import pytest

from penstock.config import DAY_MS, LogConfig, Retention
from penstock.errors import InvalidInput


def test_the_defaults_are_those_that_the_docs_promise() -> None:
    config = LogConfig()
    assert config.segment_bytes == 64 << 20
    assert config.segment_age_ms == 7 * DAY_MS
    assert config.index_interval_bytes == 4096
    assert (config.fsync, config.fsync_interval_ms, config.codec) == ("interval", 1000, "none")
    assert config.message_bytes_max == 10 << 20
    assert config.free_bytes_min == 100 << 20
    retention = Retention()
    assert (retention.age_ms, retention.segments_min) == (7 * DAY_MS, 1)
    assert (retention.bytes_max, retention.segments_max) == (None, None)


def test_a_setting_cannot_change_under_a_log_that_uses_it() -> None:
    config = LogConfig()
    with pytest.raises(AttributeError):
        config.fsync = "never"  # type: ignore[misc]


def test_the_smallest_settings_that_make_sense_are_taken() -> None:
    config = LogConfig(
        segment_bytes=4096,
        segment_age_ms=1,
        index_interval_bytes=1,
        fsync_interval_ms=1,
        fsync_batch_writes=1,
        message_bytes_max=1,
        free_bytes_min=0,
    )
    assert config.free_bytes_min == 0
    assert Retention(age_ms=0, bytes_max=0, segments_max=0).bytes_max == 0
    assert Retention(age_ms=None).age_ms is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_bytes", 4095),
        ("segment_bytes", 1 << 32),
        ("segment_bytes", "64MB"),
        ("segment_bytes", 1e6),
        ("segment_age_ms", 0),
        ("index_interval_bytes", 0),
        ("fsync_interval_ms", 0),
        ("fsync_batch_writes", True),
        ("message_bytes_max", None),
        ("free_bytes_min", -1),
    ],
)
def test_a_log_setting_out_of_range_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        LogConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("age_ms", -1), ("bytes_max", -1), ("segments_max", 1.5), ("segments_min", 0)],
)
def test_a_retention_limit_out_of_range_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{name} is"):
        Retention(**{name: value})


def test_a_wrong_choice_is_answered_with_the_right_ones() -> None:
    with pytest.raises(InvalidInput, match="fsync is 'sometimes'; allowed: always, interval"):
        LogConfig(fsync="sometimes")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="codec is 'brotli'; allowed: none, lz4, zstd, gzip"):
        LogConfig(codec="brotli")  # type: ignore[arg-type]
