"""`penstock inspect` as a person or a script runs it: real processes on real files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config import LogConfig
from penstock.log.local import LocalLog
from penstock.record.batch import Batch
from penstock.record.writing import FrameProducer

CONFIG = LogConfig(segment_bytes=16 << 10, free_bytes_min=0, codec="zstd")

WRITER = """
import sys, time
from penstock.config import LogConfig
from penstock.log.local import LocalLog
from penstock.record.batch import Batch

config = LogConfig(segment_bytes=64 << 10, free_bytes_min=0, fsync="interval", fsync_interval_ms=20)
log = LocalLog.open(sys.argv[1], config)
batch = Batch.build([b"x" * 100] * 50)
for i in range(1 << 30):
    log.append(batch)
    time.sleep(0.0005)  # leaves the others some of the machine
    if i % 100 == 99:
        log.compact(time.time_ns() // 1000)
        log.trim(max(log.end - 20_000, 0))
    if i == 0:
        log.sync()
        print("ready", flush=True)
"""


def run(*args: object, by: str = "module", **env: str) -> subprocess.CompletedProcess[str]:
    script = [str(Path(sys.executable).with_name("penstock"))]
    command = script if by == "script" else [sys.executable, "-m", "penstock"]
    return subprocess.run(
        [*command, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **env},
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with two logs, closed."""
    for number in range(2):
        with LocalLog.open(tmp_path / "orders" / str(number), CONFIG) as log:
            for i in range(40):
                values = [f'{{"order": {i * 50 + row}, "state": "new"}}' for row in range(50)]
                keys = [f"customer-{row}" for row in range(50)]
                log.append(Batch.build(values, keys=keys), FrameProducer(7, i * 50))
    return tmp_path


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


@pytest.mark.parametrize("by", ["module", "script"])
def test_a_whole_data_folder(data: Path, by: str) -> None:
    done = run("inspect", data, by=by)
    assert (done.returncode, done.stderr) == (0, "")
    assert "offsets 0 up to 2,000" in done.stdout
    assert "zstd" in done.stdout
    assert "7:0 from 50" in done.stdout
    assert "4,000" in done.stdout
    assert "No damage." in done.stdout
    assert not any(line != line.rstrip() for line in done.stdout.splitlines())
    verified = run("inspect", "--verify", data, by=by)
    assert (verified.returncode, verified.stderr) == (0, "")
    assert verified.stdout.count("whole  ") == 2


def test_the_folder_is_named_as_in_other_commands(data: Path) -> None:
    told = run("inspect", data, "--json").stdout
    assert run("inspect", "--data", data, "--json").stdout == told
    assert run("inspect", "--json", PENSTOCK_DATA=str(data)).stdout == told
    both = run("inspect", data, "--data", data)
    assert (both.returncode, "not both" in both.stderr) == (2, True)
    nothing = run("inspect", PENSTOCK_DATA="")
    assert (nothing.returncode, "say what" in nothing.stderr) == (2, True)


def test_json_is_one_document(data: Path) -> None:
    done = run("inspect", data, "--json", "--limit", "-1")
    document = json.loads(done.stdout)
    assert document["ok"] is True
    assert document["totals"]["messages"] == 4000
    assert document["totals"]["compression_ratio"] > 1
    frames = [
        frame
        for log in document["logs"]
        for segment in log["segments"]
        for frame in segment["frames"]
    ]
    assert len(frames) == 80
    assert frames[0]["columns"] == ["key", "value"]
    none = json.loads(run("inspect", data, "--json", "--limit", "0").stdout)
    assert none["totals"] == document["totals"]


def test_one_segment_of_a_log(data: Path) -> None:
    done = run("inspect", segments(data / "orders" / "1")[0], "--limit", "3")
    assert done.returncode == 0
    assert "more" in done.stdout


def test_a_flipped_bit_is_damage(data: Path) -> None:
    path = segments(data / "orders" / "0")[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)
    done = run("inspect", "--verify", data)
    assert done.returncode == 1
    assert f"damage: {path.name} at byte" in done.stdout
    assert "checksum" in done.stdout
    assert done.stdout.count("whole  ") == 1
    shown = run("inspect", data, "--limit", "1")
    assert shown.returncode == 0
    assert "damaged: the checksum does not match" in shown.stdout
    document = run("inspect", data, "--verify", "--json")
    assert document.returncode == 1
    assert json.loads(document.stdout)["ok"] is False


def test_a_torn_tail_is_damage_only_where_it_was_durable(data: Path) -> None:
    last = segments(data / "orders" / "0")[-1]
    with last.open("ab") as file:
        file.write(b"PNSK and no more")
    done = run("inspect", "--verify", data)
    assert done.returncode == 0
    assert "16 bytes behind the durable mark are no whole frame" in done.stdout
    os.truncate(last, last.stat().st_size - 17)
    done = run("inspect", "--verify", data)
    assert done.returncode == 1
    assert "offsets 1,950 up to 2,000 are lost" in done.stdout


def test_a_missing_index_is_a_note_and_a_missing_segment_is_damage(data: Path) -> None:
    log = data / "orders" / "0"
    first = segments(log)[0]
    first.with_suffix(".index").unlink()
    done = run("inspect", "--verify", log)
    assert done.returncode == 0
    assert f"note: {first.stem}.index" in done.stdout
    first.unlink()
    done = run("inspect", "--verify", log)
    assert done.returncode == 1
    assert "offsets 0 up to" in done.stdout


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that appends, rolls, compacts and trims all the time."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "live")], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_a_log_that_is_being_written_is_whole(
    tmp_path: Path, writer: subprocess.Popen[str]
) -> None:
    for _ in range(3):
        done = run("inspect", "--verify", tmp_path / "live")
        assert done.returncode == 0, done.stdout + done.stderr
        assert writer.poll() is None
    assert f"open for writing in process {writer.pid}" in (
        run("inspect", tmp_path / "live", "--limit", "0").stdout
    )
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    done = run("inspect", "--verify", tmp_path / "live")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["inspect"], 2, "PATH"),
        (["inspect", "nowhere"], 3, "there is no file or folder nowhere"),
        (["inspect", "."], 3, "there is no log in . or below it"),
        (["inspect", "--loud", "."], 2, "--loud"),
    ],
)
def test_wrong_usage_is_a_sentence_and_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*args)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_no_segment_has_no_frames(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing of ours\n" * 20)
    done = run("inspect", "--verify", tmp_path / "notes.txt")
    assert done.returncode == 1
    assert "header of the segment is damaged" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_error(data: Path) -> None:
    command = f"{sys.executable} -m penstock inspect {data} --limit -1 | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""


def test_help_teaches_by_example() -> None:
    done = run("inspect", "--help", COLUMNS="100")
    assert done.returncode == 0
    assert "penstock inspect data/ --verify" in done.stdout
    assert run("--version").stdout.startswith("penstock ")


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('No typer', name='typer')")
    done = run("inspect", ".", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "pip install 'penstock[cli]'" in done.stderr
    assert "Traceback" not in done.stderr
