"""Decompression bombs: small frames never become large ones."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.record.frame import BODY_BYTES_MAX

ROOT = Path(__file__).parents[3]
MEGABYTE = 1 << 20


def explode(name: str) -> tuple[str, int, int]:
    """What became of a bomb, how much memory it took, and how long its frame was."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.record.bombs", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcome, grown_bytes, frame_bytes = done.stdout.split()
    return outcome, int(grown_bytes), int(frame_bytes)


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_a_frame_that_admits_to_be_a_bomb_is_too_large(codec: str) -> None:
    outcome, grown_bytes, frame_bytes = explode(f"{codec} honest")
    assert outcome == "FrameTooLarge"
    assert frame_bytes < 2 * MEGABYTE
    assert grown_bytes < 8 * MEGABYTE


@pytest.mark.parametrize("codec", ["lz4", "zstd", "gzip"])
def test_a_frame_that_hides_a_bomb_is_stopped_at_the_length_it_claims(codec: str) -> None:
    outcome, grown_bytes, _ = explode(f"{codec} modest")
    assert outcome == "FrameCorrupt"
    assert grown_bytes < 32 * MEGABYTE


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_frame_that_goes_to_the_limit_and_beyond_is_stopped_there(codec: str) -> None:
    outcome, grown_bytes, _ = explode(f"{codec} limit")
    assert outcome == "FrameCorrupt"
    assert grown_bytes < BODY_BYTES_MAX + 32 * MEGABYTE


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("arrow", "FrameCorrupt"),
        ("rows", "FrameCorrupt"),
        ("rows beyond", "FrameCorrupt"),
        ("short", "FrameCorrupt"),
    ],
)
def test_a_frame_that_makes_arrow_expect_much_gets_nothing(name: str, expected: str) -> None:
    outcome, grown_bytes, _ = explode(name)
    assert outcome == expected
    assert grown_bytes < 32 * MEGABYTE
