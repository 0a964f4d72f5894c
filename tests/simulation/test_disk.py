"""The model of a disk is itself on trial: a proof is worth what its crash model is worth."""

from __future__ import annotations

import errno
from random import Random

import pytest

from penstock.errors import DataFolderInUse
from tests.simulation.disk import SimulatedCrash, SimulatedFile, SimulatedFiles
from tests.simulation.platter import PAGE_BYTES, SECTOR_BYTES

SEEDS = range(300)


@pytest.fixture
def files() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder("d")
    return files


def durable_file(files: SimulatedFiles, path: str, data: bytes = b"") -> SimulatedFile:
    file = files.create(path)
    file.append([data])
    file.sync()
    files.sync_folder("d")
    return file


def images(files: SimulatedFiles, path: str) -> set[bytes | None]:
    """All that a file can be after a power cut, as far as the seeds show; None: it is gone."""
    seen: set[bytes | None] = set()
    for seed in SEEDS:
        left = files.crash(Random(seed))
        name = path.rpartition("/")[2]
        seen.add(left.read(path) if name in left.list("d") else None)
    return seen


# What is safe.


def test_synced_bytes_under_a_synced_name_survive_every_power_cut(files: SimulatedFiles) -> None:
    durable_file(files, "d/a", b"kept")

    assert images(files, "d/a") == {b"kept"}


def test_unsynced_name_may_be_gone_although_its_bytes_were_synced(files: SimulatedFiles) -> None:
    file = files.create("d/a")
    file.append([b"x"])
    file.sync()

    assert images(files, "d/a") == {None, b"x"}


def test_kill_keeps_what_was_written_and_a_later_power_cut_can_still_take_it(
    files: SimulatedFiles,
) -> None:
    durable_file(files, "d/a", b"old").append([b"new"])

    left = files.kill()

    assert left.read("d/a") == b"oldnew"
    assert {b"old", b"oldnew"} <= images(left, "d/a")


def test_a_crash_leaves_the_original_untouched(files: SimulatedFiles) -> None:
    file = durable_file(files, "d/a", b"old")
    left = files.kill()
    file.append([b"new"])
    left.open("d/a").append([b"other"])

    assert files.read("d/a") == b"oldnew"
    assert left.read("d/a") == b"oldother"


def test_the_same_seed_gives_the_same_crash(files: SimulatedFiles) -> None:
    file = durable_file(files, "d/a")
    file.append([Random(1).randbytes(3 * PAGE_BYTES)])
    files.create("d/b")

    one, other = files.crash(Random(7)), files.crash(Random(7))

    assert one.list("d") == other.list("d")
    assert one.read("d/a") == other.read("d/a")


# What is lost, and how.


def test_unsynced_append_is_lost_kept_or_half_there(files: SimulatedFiles) -> None:
    new = bytes([1]) * PAGE_BYTES + bytes([2]) * PAGE_BYTES
    durable_file(files, "d/a").append([new])

    seen = images(files, "d/a")

    assert {b"", new} <= seen
    zeroed_page = bytes(PAGE_BYTES)
    assert new[:PAGE_BYTES] + zeroed_page in seen, "a length that grew without its data"
    assert zeroed_page + new[PAGE_BYTES:] in seen, "the second page before the first"
    assert any(image and 0xA5 in image for image in seen), "garbage where data never came"


def test_pages_can_be_torn_at_sectors_and_nowhere_else(files: SimulatedFiles) -> None:
    durable_file(files, "d/a", b"o" * PAGE_BYTES).overwrite(0, b"n" * PAGE_BYTES)

    seen = images(files, "d/a")

    assert any(image and b"on" in image for image in seen), "some page is torn"
    for image in seen:
        assert image is not None
        for begin in range(0, PAGE_BYTES, SECTOR_BYTES):
            assert len(set(image[begin : begin + SECTOR_BYTES])) == 1


def test_later_write_can_arrive_before_an_earlier_one(files: SimulatedFiles) -> None:
    file = durable_file(files, "d/a", b"o" * 2 * PAGE_BYTES)
    file.overwrite(0, b"1" * PAGE_BYTES)
    file.overwrite(PAGE_BYTES, b"2" * PAGE_BYTES)

    assert b"o" * PAGE_BYTES + b"2" * PAGE_BYTES in images(files, "d/a")


def test_every_moment_of_a_page_can_be_the_one_that_stays(files: SimulatedFiles) -> None:
    file = durable_file(files, "d/a", b"0")
    for digit in (b"1", b"2", b"3"):
        file.overwrite(0, digit)

    assert images(files, "d/a") == {b"0", b"1", b"2", b"3"}


def test_unsynced_truncate_may_be_undone(files: SimulatedFiles) -> None:
    durable_file(files, "d/a", b"long").truncate(1)

    assert {b"long", b"l"} <= images(files, "d/a")


def test_synced_truncate_leaves_nothing_behind_when_the_file_grows_again(
    files: SimulatedFiles,
) -> None:
    file = durable_file(files, "d/a", b"x" * 2 * PAGE_BYTES)
    file.truncate(1)
    file.truncate(2 * PAGE_BYTES)
    file.sync()

    assert images(files, "d/a") == {b"x" + bytes(2 * PAGE_BYTES - 1)}


def test_emptying_a_file_by_creating_it_again_may_be_undone(files: SimulatedFiles) -> None:
    durable_file(files, "d/a", b"old")
    files.create("d/a").append([b"new"])

    assert {b"old", b"new", b""} <= images(files, "d/a")


def test_rename_happens_or_does_not(files: SimulatedFiles) -> None:
    durable_file(files, "d/a", b"old")
    durable_file(files, "d/a.tmp", b"new")
    files.rename("d/a.tmp", "d/a")

    for seed in SEEDS:
        left = files.crash(Random(seed))
        if "a.tmp" in left.list("d"):
            assert left.read("d/a") == b"old"
        else:
            assert left.read("d/a") == b"new"
    assert images(files, "d/a") == {b"old", b"new"}


def test_remove_may_be_undone_until_the_folder_is_synced(files: SimulatedFiles) -> None:
    durable_file(files, "d/a", b"x")
    files.remove("d/a")
    assert images(files, "d/a") == {b"x", None}

    files.sync_folder("d")
    assert images(files, "d/a") == {None}


def test_names_can_arrive_in_any_order(files: SimulatedFiles) -> None:
    files.create("d/a")
    files.create("d/b")

    seen = {tuple(files.crash(Random(seed)).list("d")) for seed in SEEDS}

    assert seen == {(), ("a",), ("b",), ("a", "b")}


def test_a_file_never_has_two_names(files: SimulatedFiles) -> None:
    durable_file(files, "d/a", b"x")
    files.rename("d/a", "d/b")
    files.rename("d/b", "d/c")

    assert {tuple(files.crash(Random(seed)).list("d")) for seed in SEEDS} == {
        ("a",),
        ("b",),
        ("c",),
    }


# Syncs that fail.


def test_failed_sync_calls_pages_clean_and_a_second_sync_saves_nothing(
    files: SimulatedFiles,
) -> None:
    file = durable_file(files, "d/a", b"o" * PAGE_BYTES)
    files.fail("sync")
    file.append([b"n" * PAGE_BYTES])
    with pytest.raises(OSError) as raised:
        file.sync()
    file.sync()

    assert raised.value.errno == errno.EIO
    assert files.read("d/a").endswith(b"n"), "reads still see it"
    assert images(files, "d/a") == {b"o" * PAGE_BYTES + bytes(PAGE_BYTES)}


def test_killed_process_leaves_lost_pages_visible_to_the_next(files: SimulatedFiles) -> None:
    file = durable_file(files, "d/a")
    files.fail("sync")
    file.append([b"n"])
    with pytest.raises(OSError):
        file.sync()

    left = files.kill()
    assert left.read("d/a") == b"n"
    left.open("d/a").sync()
    assert left.crash(Random(1)).read("d/a") == b"\0"


def test_writing_lost_bytes_again_makes_their_page_dirty_and_saves_it(
    files: SimulatedFiles,
) -> None:
    file = durable_file(files, "d/a")
    files.fail("sync")
    file.append([b"lost"])
    with pytest.raises(OSError):
        file.sync()
    file.overwrite(3, b"t")
    file.sync()

    assert images(files, "d/a") == {b"lost"}


def test_names_stay_unsynced_when_a_folder_sync_fails(files: SimulatedFiles) -> None:
    files.fail("sync_folder")
    files.create("d/a")
    with pytest.raises(OSError):
        files.sync_folder("d")
    assert images(files, "d/a") == {None, b""}

    files.sync_folder("d")
    assert images(files, "d/a") == {b""}


def test_sync_does_not_cover_what_is_written_while_it_runs(files: SimulatedFiles) -> None:
    file = durable_file(files, "d/a")
    file.append([b"1"])
    files.during_sync = lambda path: file.append([b"2"])
    file.sync()

    assert images(files, "d/a") >= {b"1", b"12"}


# Other faults.


@pytest.mark.parametrize("kind", ["append", "overwrite"])
def test_failing_write_leaves_a_part_of_its_bytes(files: SimulatedFiles, kind: str) -> None:
    file = durable_file(files, "d/a")
    files.fail(kind, error=errno.ENOSPC, partial=0.5)

    with pytest.raises(OSError) as raised:
        file.append([b"ab", b"cd"]) if kind == "append" else file.overwrite(0, b"abcd")

    assert raised.value.errno == errno.ENOSPC
    assert files.read("d/a") == b"ab"


def test_next_append_begins_where_the_failed_one_began(files: SimulatedFiles) -> None:
    file = durable_file(files, "d/a")
    files.fail("append")
    with pytest.raises(OSError):
        file.append([b"abcd"])
    file.append([b"x"])

    assert files.read("d/a") == b"xb"


@pytest.mark.parametrize("kind", ["create", "truncate", "rename", "remove"])
def test_failing_operation_on_names_or_lengths_does_nothing(
    files: SimulatedFiles, kind: str
) -> None:
    file = durable_file(files, "d/a", b"abc")
    files.fail(kind)
    act = {
        "create": lambda: files.create("d/b"),
        "truncate": lambda: file.truncate(1),
        "rename": lambda: files.rename("d/a", "d/b"),
        "remove": lambda: files.remove("d/a"),
    }

    with pytest.raises(OSError):
        act[kind]()

    assert files.list("d") == ["a"]
    assert files.read("d/a") == b"abc"


def test_fault_strikes_the_nth_call_on_a_matching_path_and_as_often_as_asked(
    files: SimulatedFiles,
) -> None:
    a, b = durable_file(files, "d/a"), durable_file(files, "d/b")
    files.fail("sync", nth=2, times=2, path="/a")
    outcomes = []
    for file in (a, b, a, b, a, a):
        try:
            file.sync()
            outcomes.append("ok")
        except OSError:
            outcomes.append("error")

    assert outcomes == ["ok", "ok", "error", "ok", "error", "ok"]


def test_full_disk_takes_what_fits_and_goes_on_when_there_is_room() -> None:
    files = SimulatedFiles(capacity_bytes=10)
    files.make_folder("d")
    file = durable_file(files, "d/a", b"12345678")
    with pytest.raises(OSError) as raised:
        file.append([b"abcd"])

    assert raised.value.errno == errno.ENOSPC
    assert files.read("d/a") == b"12345678ab"
    assert files.free_bytes("d") == 0

    file.truncate(8)
    files.capacity_bytes = 20
    file.append([b"abcd"])
    assert files.read("d/a") == b"12345678abcd"
    assert files.free_bytes("d") == 8


def test_rot_flips_a_bit_for_good_and_back(files: SimulatedFiles) -> None:
    durable_file(files, "d/a", b"\0\0")
    files.rot("d/a", 9)
    assert images(files, "d/a") == {b"\0\2"}
    assert files.read("d/a") == b"\0\2"

    files.rot("d/a", 9)
    assert images(files, "d/a") == {b"\0\0"}


# Crashing on the spot.


@pytest.mark.parametrize(("after", "kept"), [(False, b""), (True, b"x")])
def test_crash_point_ends_the_process_before_or_after_an_operation(
    files: SimulatedFiles, after: bool, kept: bytes
) -> None:
    file = durable_file(files, "d/a")
    files.crash_at(1, after=after)
    with pytest.raises(SimulatedCrash):
        file.append([b"x"])

    with pytest.raises(SimulatedCrash):
        file.sync()
    with pytest.raises(SimulatedCrash):
        files.list("d")
    assert files.kill().read("d/a") == kept


def test_every_operation_is_counted_so_that_every_boundary_can_be_visited(
    files: SimulatedFiles,
) -> None:
    boundaries = []
    files.before_operation = lambda kind, path: boundaries.append((kind, path))
    file = durable_file(files, "d/a", b"x")
    file.overwrite(0, b"y")
    file.truncate(0)
    files.rename("d/a", "d/b")
    files.remove("d/b")

    assert [kind for kind, _ in boundaries] == [
        "create",
        "append",
        "sync",
        "sync_folder",
        "overwrite",
        "truncate",
        "rename",
        "remove",
    ]
    assert files.operations == len(boundaries) == sum(files.counts.values())


def test_folders_are_made_listed_and_removed_with_all_that_is_in_them() -> None:
    files = SimulatedFiles()
    files.make_folder("a")
    files.make_folder("a/b")
    files.make_folder("a/b/c")
    files.create("a/b/c/file")
    files.create("a/b/file")

    assert files.list("a") == ["b"]
    assert files.list("a/b") == ["c", "file"]

    files.remove_folder("a/b")
    assert files.list("a") == []
    with pytest.raises(FileNotFoundError):
        files.list("a/b/c")


def test_lock_is_exclusive_and_ends_with_the_process(files: SimulatedFiles) -> None:
    lock = files.lock("d", "me")
    with pytest.raises(DataFolderInUse, match="me"):
        files.lock("d", "you")
    files.kill().lock("d", "you")
    files.crash(Random(0)).lock("d", "you")
    lock.release()
    files.lock("d", "you")
