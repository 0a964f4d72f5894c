"""One process writes to a folder. A second one is told who that is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import DataFolderInUse, LogFailed
from penstock.log.local import LocalLog
from penstock.record.batch import Batch
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import values

SECOND_OPENER = """
import sys
from penstock.errors import DataFolderInUse
from penstock.log.local import LocalLog
try:
    with LocalLog.open(sys.argv[1]) as log:
        print("opened with", log.end)
except DataFolderInUse as exc:
    print(exc.code, exc)
"""


def open_elsewhere(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SECOND_OPENER, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_another_process_is_refused_and_told_who_has_the_folder(
    open_log: Opener, folder: Path
) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    answer = open_elsewhere(folder)
    assert answer.startswith("data_folder_in_use")
    assert f"{folder} is in use by process {os.getpid()} on " in answer
    assert "stop it first, or use another folder" in answer
    log.close()
    assert open_elsewhere(folder) == "opened with 1\n"


def test_the_same_process_cannot_open_a_folder_twice_either(open_log: Opener, folder: Path) -> None:
    log = open_log()
    with pytest.raises(DataFolderInUse) as caught:
        open_log()
    assert caught.value.folder == str(folder)
    assert caught.value.owner.startswith(f"process {os.getpid()}")
    log.append(Batch.build(["a"]))  # the first one is not disturbed
    log.close()
    assert values(open_log()) == [b"a"]


def test_a_killed_process_leaves_no_lock_behind(folder: Path, open_log: Opener) -> None:
    program = (
        "import os, signal, sys\n"
        "from penstock.log.local import LocalLog\n"
        "from penstock.record.batch import Batch\n"
        "log = LocalLog.open(sys.argv[1])\n"
        "log.append(Batch.build(['a']))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], timeout=60, check=False)
    assert done.returncode == -9
    assert values(open_log()) == [b"a"]


def test_a_log_that_could_not_be_opened_does_not_keep_the_folder(
    open_log: Opener, folder: Path
) -> None:
    open_log().close()
    durable = folder / "durable"
    durable.unlink()
    durable.mkdir()
    for _ in range(2):
        with pytest.raises(LogFailed):
            open_log()
    durable.rmdir()
    assert open_log().end == 0


def test_whoever_locks_the_folder_above_can_open_logs_without_a_lock(folder: Path) -> None:
    with LocalLog.open(folder, lock=False) as log:
        log.append(Batch.build(["a"]))
        assert not (folder / "LOCK").exists()
