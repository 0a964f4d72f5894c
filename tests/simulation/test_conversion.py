"""A data folder of the first version is converted, and the process or the power fails meanwhile."""

from __future__ import annotations

import errno
from random import Random

import pytest

from penstock.broker.convert import prepare_folder
from penstock.config import LogConfig
from penstock.errors import DiskFull, LogError
from penstock.log.first_version import convert_log
from penstock.log.format_version import read_version
from penstock.record.batch import Message
from penstock.record.frame import HEADER_BYTES
from penstock.record.salt import PLAIN
from tests.first_version import OldLog, load
from tests.integration.log.image import open_log
from tests.simulation.disk import SimulatedFiles
from tests.simulation.model import read_all
from tests.unit.log.reading import messages, values

DATA = "data"
LOGS = (
    "catalog",
    "groups",
    "topics/default/orders/00000/log",
    "topics/default/orders/00000/ledger",
    "topics/default/orders/00001/log",
    "topics/default/orders/delays/log",
    "topics/default/orders/delays/journal",
    "topics/default/orders.dlq/00000/log",
    "topics/default/prices/00000/log",
    "topics/eu/orders/00000/log",
)
CONFIG = LogConfig(fsync="never", free_bytes_min=0)
Contents = dict[str, dict[int, Message]]


def folder_of_old(name: str) -> SimulatedFiles:
    files = SimulatedFiles()
    load(name, files, DATA)
    return files


def contents(files: SimulatedFiles) -> Contents:
    """What every log holds, none of it damaged."""
    found: Contents = {}
    for name in LOGS:
        with open_log(f"{DATA}/{name}", CONFIG, files) as log:
            assert log.damage == [], name
            found[name] = read_all(log)
    return found


@pytest.fixture(scope="module", params=["closed", "killed"])
def converted(request: pytest.FixtureRequest) -> tuple[str, Contents]:
    files = folder_of_old(request.param)
    prepare_folder(files, DATA)
    return request.param, contents(files)


def test_conversion_that_is_cut_short_at_any_operation_goes_on(
    converted: tuple[str, Contents],
) -> None:
    name, whole = converted
    assert len(whole["topics/default/orders/00000/log"]) == 24
    files = folder_of_old(name)
    rng = Random(7)
    left: list[SimulatedFiles] = []
    count = 0

    def look(kind: str, path: str) -> None:
        nonlocal count
        count += 1
        # Every crash would be the same for each of so many segments: those of one log in full.
        if "orders/00000/log" in path or count % 7 == 0:
            left.extend((files.kill(), files.crash(rng), files.crash(rng)))

    files.before_operation = look
    prepare_folder(files, DATA)
    files.before_operation = None
    assert count > 200
    for survivor in left:
        prepare_folder(survivor, DATA)
        assert read_version(survivor, DATA) == 2
        assert contents(survivor) == whole


def test_version_is_noted_only_when_everything_is_converted() -> None:
    files = folder_of_old("closed")
    versions = []

    def look(kind: str, path: str) -> None:
        for survivor in (files.kill(), files.crash(Random(1))):
            versions.append(read_version(survivor, DATA))
            if versions[-1] == 2:
                contents(survivor)

    files.before_operation = look
    prepare_folder(files, DATA)
    assert set(versions) <= {1, 2}
    assert versions[0] == 1


def test_converted_log_survives_a_power_cut_before_anybody_synced_again(
    converted: tuple[str, Contents],
) -> None:
    name, whole = converted
    files = folder_of_old(name)
    prepare_folder(files, DATA)
    for seed in range(10):
        assert contents(files.crash(Random(seed))) == whole


def test_conversion_twice_changes_nothing() -> None:
    files = folder_of_old("closed")
    prepare_folder(files, DATA)
    before = {name: files.read(f"{DATA}/{name}/{_first(files, name)}") for name in LOGS}
    files.remove(f"{DATA}/VERSION")
    prepare_folder(files, DATA)
    assert before == {name: files.read(f"{DATA}/{name}/{_first(files, name)}") for name in LOGS}


def test_conversion_without_room_goes_on_when_there_is_some() -> None:
    whole = folder_of_old("closed")
    writes: list[str] = []
    whole.before_operation = lambda kind, path: writes.append(path) if kind == "append" else None
    prepare_folder(whole, DATA)
    assert len(writes) > 50
    for nth in range(1, len(writes) + 1, 5):
        files = folder_of_old("closed")
        files.fail("append", nth=nth, error=errno.ENOSPC)
        with pytest.raises(DiskFull, match="open it again"):
            prepare_folder(files, DATA)
        prepare_folder(files, DATA)
        assert contents(files) == contents(whole)


def test_conversion_on_a_disk_that_fails_is_an_error_and_goes_on_later() -> None:
    files = folder_of_old("closed")
    files.fail("sync", nth=20)
    with pytest.raises(LogError, match="Nothing is lost"):
        prepare_folder(files, DATA)
    prepare_folder(files, DATA)
    contents(files)


# Damage that was there before.


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("at", [0, 4, 17, 120])
def test_damage_of_old_costs_what_it_hit_and_is_told(indexed: bool, at: int) -> None:
    files = SimulatedFiles()
    old = OldLog(files, "log")
    path = old.segment(*([b"%02d" % number * 300] for number in range(20)), indexed=indexed)
    old.segment([b"last"], indexed=False)
    old.mark_durable()
    frame_bytes = files.size(path) // 20
    before = _flip(files, path, 5 * frame_bytes + at)
    convert_log(files, "log")
    for _ in range(2):
        with open_log("log", CONFIG, files) as log:
            found = {message.offset: message for message in messages(log)}
            lost = set(range(21)) - found.keys()
            assert 5 in lost
            # Without an index, and where the frame does not say how long it is, nobody can tell a
            # frame of the log from one in a message: then it costs the rest of the segment.
            assert len(lost) == (15 if not indexed and at in (0, 17) else 1)
            told = {o for d in log.damage for o in range(d.first_offset, d.next_offset)}
            assert told == lost
            assert found[20].value == b"last"
    assert files.read(path + ".damaged") == before


def test_what_old_indexes_say_is_durable_stays_so() -> None:
    files = SimulatedFiles()
    old = OldLog(files, "log")  # without a mark, as a power cut may leave it
    path = old.segment([b"one"], [b"two"], [b"three"])
    old.segment([b"four"])
    _flip(files, path, files.size(path) // 2)
    left: list[SimulatedFiles] = []
    files.before_operation = lambda kind, path: left.append(files.kill())
    convert_log(files, "log")
    for survivor in (*left, files):
        survivor.before_operation = None
        convert_log(survivor, "log")
        with open_log("log", CONFIG, survivor) as log:
            assert values(log) == [b"one", b"three", b"four"]
            assert [d[2:4] for d in log.damage] == [(1, 2)]


@pytest.mark.parametrize("indexed", [True, False])
def test_frame_in_a_message_of_old_is_no_message_after_the_conversion(indexed: bool) -> None:
    files = SimulatedFiles()
    forger = OldLog(files, "forged")
    forged = files.read(forger.segment(*([b"phantom"] for _ in range(40))))
    old = OldLog(files, "log")
    path = old.segment([b"one"], [forged], [b"three"], indexed=indexed)
    old.segment([b"four"], indexed=False)
    old.mark_durable()
    _flip(files, path, files.size(forger.segment([b"one"])) + 17)
    convert_log(files, "log")
    with open_log("log", CONFIG, files) as log:
        assert b"phantom" not in values(log)
        assert values(log)[-1] == b"four"


def test_torn_tail_of_old_is_cut_and_no_damage() -> None:
    for torn_bytes in (1, 40, HEADER_BYTES, HEADER_BYTES + 20, 250):
        files = SimulatedFiles()
        old = OldLog(files, "log")
        old.segment([b"one"], [b"two"])
        old.mark_durable()
        path = old.segment([b"three"], [b"x" * 200], indexed=False)
        files.open(path).truncate(files.size(path) - torn_bytes)
        convert_log(files, "log")
        with open_log("log", CONFIG, files) as log:
            assert log.damage == []
            assert values(log) == [b"one", b"two", b"three"]


def test_frames_of_old_have_another_salt_afterwards() -> None:
    files = SimulatedFiles()
    path = OldLog(files, "log").segment([b"one"], indexed=False)
    assert files.read(path).startswith(PLAIN.magic)
    convert_log(files, "log")
    assert PLAIN.magic not in files.read(path)


def _first(files: SimulatedFiles, name: str) -> str:
    return next(n for n in files.list(f"{DATA}/{name}") if n.endswith(".log"))


def _flip(files: SimulatedFiles, path: str, position: int) -> bytes:
    files.rot(path, position * 8)
    return files.read(path)
