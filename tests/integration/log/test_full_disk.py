"""A disk that is really full: a tmpfs of a few pages, where that can be mounted.

Elsewhere the simulated disk stands in alone: `tests/simulation/test_failing_disk.py`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from penstock.config import FsyncPolicy, LogConfig
from penstock.errors import DiskFull
from penstock.log.local import LocalLog
from penstock.record.batch import Batch
from tests.integration.log.doomed import WatchedDisk
from tests.integration.log.image import open_log
from tests.simulation.disk import SimulatedFiles
from tests.simulation.life import LogLife, small_segments, told
from tests.simulation.model import read_all

DISK_BYTES = 256 << 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"no tmpfs can be mounted here ({exc}); the simulated disk was full instead")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_full_disk_refuses_reads_on_and_resumes_without_reopening(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(DISK_BYTES // 2))
    config = LogConfig(segment_bytes=32 << 10, free_bytes_min=0)
    log = open_log(small_disk / "log", config)
    with pytest.raises(DiskFull):
        fill(log)

    appended = log.end
    assert appended > 50
    assert len(read_all(log)) == appended

    ballast.unlink()
    assert log.append(Batch.build([b"there is room"])).first_offset == appended
    log.close()
    with open_log(small_disk / "log", config) as log:
        assert log.damage == []
        assert len(read_all(log)) == appended + 1


def test_log_on_a_full_disk_can_be_opened_and_read(small_disk: Path) -> None:
    config = LogConfig(segment_bytes=32 << 10, free_bytes_min=0)
    log = open_log(small_disk / "log", config)
    with pytest.raises(DiskFull):
        fill(log)
    appended = log.end
    log.close()

    with open_log(small_disk / "log", config) as log:
        assert len(read_all(log)) == appended


def fill(log: LocalLog) -> None:
    for _ in range(DISK_BYTES // 1000):
        log.append(Batch.build([bytes(1000)]))


@pytest.mark.parametrize("policy", ["always", "interval"])
def test_life_on_a_disk_that_is_often_full(
    policy: FsyncPolicy, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (small_disk / "ballast").write_bytes(bytes(DISK_BYTES - (64 << 10)))
    monkeypatch.chdir(small_disk)
    life = LogLife(
        9, small_segments(policy, segment_bytes=8192), files=cast(SimulatedFiles, WatchedDisk())
    )
    with told(life):
        life.run(400)
        assert life.disk_was_full > 3
        (small_disk / "ballast").unlink()
        life.append()
        life.check()
        life.reopen()
