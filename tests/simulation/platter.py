"""What a disk remembers: files and folders with an unsynced past, and what a power cut leaves.

The model is that of a kernel's page cache over a disk. A write changes the cached page; the kernel
writes dirty pages back whenever it likes, in any order, each with the content of that moment. So
after a power cut every page (or, torn, every sector of it) shows the file as it was at some moment
since the last sync, each its own moment, and the length is that of yet another moment. A length
that arrived without its data leaves zeros or garbage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

PAGE_BYTES = 4096
SECTOR_BYTES = 512


class Write(NamedTuple):
    position: int
    data: bytes


class Truncate(NamedTuple):
    size: int


Change = Write | Truncate


@dataclass
class Content:
    """One file's bytes, whatever its name: `cached` is what reads see, `platter` what is safe.

    The two differ by `unsynced`, and by what failed syncs gave up (see `lose_unsynced`).
    """

    cached: bytearray = field(default_factory=bytearray)
    platter: bytearray = field(default_factory=bytearray)
    unsynced: list[Change] = field(default_factory=list)
    before_unsynced: bytes = b""
    """The cached bytes to which `unsynced` was applied."""

    def change(self, change: Change) -> None:
        _apply(change, self.cached)
        self.unsynced.append(change)

    def begin_sync(self) -> ContentSync:
        """What a sync that starts now will cover; `finish_sync` when the disk has answered."""
        return ContentSync(
            changes=len(self.unsynced),
            cached=bytes(self.cached),
            pages=_touched(self.unsynced, PAGE_BYTES),
            shortest=min(self._lengths()),
        )

    def finish_sync(self, sync: ContentSync) -> None:
        del self.platter[sync.shortest :]
        _resize(self.platter, len(sync.cached), b"\0")
        _copy_units(sync.cached, self.platter, sync.pages, PAGE_BYTES)
        self._forget(sync)

    def lose_unsynced(self, sync: ContentSync) -> None:
        """The sync failed: the kernel calls the pages clean all the same.

        Reads go on seeing them, a later sync does not write them unless something dirties the
        same page again, and a power cut takes them.
        """
        self._forget(sync)

    def _forget(self, sync: ContentSync) -> None:
        del self.unsynced[: sync.changes]
        self.before_unsynced = sync.cached

    def copy(self) -> Content:
        return Content(
            bytearray(self.cached),
            bytearray(self.platter),
            list(self.unsynced),
            self.before_unsynced,
        )

    def after_power_cut(self, rng: Random) -> bytes:
        """The file as a power cut may leave it."""
        if not self.unsynced:
            return bytes(self.platter)
        unit_bytes = rng.choice((PAGE_BYTES, SECTOR_BYTES))
        moments, length_moment = _choose_moments(
            rng, sorted(_touched(self.unsynced, unit_bytes)), len(self.unsynced)
        )
        length = len(self.platter) if length_moment == 0 else self._lengths()[length_moment]
        image = bytearray(self.platter)
        _resize(image, length, rng.choice((b"\0", b"\xa5", rng.randbytes(SECTOR_BYTES))))
        then = bytearray(self.before_unsynced)
        for moment, change in enumerate(self.unsynced, start=1):
            _apply(change, then)
            _copy_units(then, image, moments.get(moment, ()), unit_bytes)
        return bytes(image)

    def _lengths(self) -> list[int]:
        """The file's length before each of the unsynced changes, and now."""
        lengths = [len(self.before_unsynced)]
        for change in self.unsynced:
            match change:
                case Write(position, data):
                    lengths.append(max(lengths[-1], position + len(data)))
                case Truncate(size):
                    lengths.append(size)
        return lengths


class ContentSync(NamedTuple):
    """The bytes that one sync covers: writes that come while it runs are not among them."""

    changes: int
    cached: bytes
    pages: set[int]
    shortest: int


class NameChange(NamedTuple):
    """One step of a folder: `content` is known as `new` from now on, no longer as `old`."""

    old: str | None
    new: str | None
    content: Content


@dataclass
class Folder:
    """The names in one folder: `cached` is what `list` sees, `platter` what is safe."""

    cached: dict[str, Content] = field(default_factory=dict)
    platter: dict[str, Content] = field(default_factory=dict)
    unsynced: list[NameChange] = field(default_factory=list)

    def change(self, change: NameChange) -> None:
        _rename(change, self.cached)
        self.unsynced.append(change)

    def sync(self) -> None:
        for change in self.unsynced:
            _rename(change, self.platter)
        self.unsynced.clear()

    def copy(self, copies: dict[int, Content]) -> Folder:
        """A twin whose files are twins too; `copies` knows the twin of a file by its identity."""

        def twin(content: Content) -> Content:
            if id(content) not in copies:
                copies[id(content)] = content.copy()
            return copies[id(content)]

        return Folder(
            {name: twin(content) for name, content in self.cached.items()},
            {name: twin(content) for name, content in self.platter.items()},
            [NameChange(old, new, twin(content)) for old, new, content in self.unsynced],
        )

    def after_power_cut(self, rng: Random) -> dict[str, Content]:
        """The names as a power cut may leave them: a journal keeps a prefix of the changes, an
        older file system any of them. Each one happened or did not."""
        names = dict(self.platter)
        if rng.random() < 0.5:
            kept = self.unsynced[: rng.randint(0, len(self.unsynced))]
        else:
            kept = [change for change in self.unsynced if rng.random() < 0.5]
        for change in kept:
            _rename(change, names)
        return names


def _choose_moments(rng: Random, units: list[int], last: int) -> tuple[dict[int, list[int]], int]:
    """Which units reached the disk as they were after which change (those not named: none), and
    after how many changes the length did."""
    match rng.choice(("none", "all", "prefix", "torn prefix", "any", "any")):
        case "none":
            return {}, 0
        case "all":
            return {last: units}, last
        case "prefix":
            moment = rng.randint(0, last)
            return {moment: units}, moment
        case "torn prefix":
            moment = rng.randint(0, last)
            return {moment: rng.sample(units, rng.randint(0, len(units)))}, moment
    moments: dict[int, list[int]] = {}
    for unit in units:
        moments.setdefault(rng.randint(0, last), []).append(unit)
    return moments, rng.randint(0, last)


def _apply(change: Change, content: bytearray) -> None:
    match change:
        case Write(position, data):
            if position > len(content):
                content += bytes(position - len(content))
            content[position : position + len(data)] = data
        case Truncate(size):
            _resize(content, size, b"\0")


def _touched(changes: list[Change], unit_bytes: int) -> set[int]:
    """The numbers of the pages (or sectors) that these changes made dirty."""
    touched: set[int] = set()
    for change in changes:
        match change:
            case Write(position, data) if data:
                last_byte = position + len(data) - 1
                touched.update(range(position // unit_bytes, last_byte // unit_bytes + 1))
            case Truncate(size):
                touched.add(size // unit_bytes)  # the page of the cut is zeroed behind it
    return touched


def _resize(content: bytearray, length: int, fill: bytes) -> None:
    missing = length - len(content)
    if missing > 0:
        content += (fill * (missing // len(fill) + 1))[:missing]
    else:
        del content[length:]


def _copy_units(
    source: bytes | bytearray, target: bytearray, units: Iterable[int], unit_bytes: int
) -> None:
    """Copy some units of a file, as far as the target goes; past its end a page holds zeros."""
    for unit in units:
        begin = unit * unit_bytes
        end = min(begin + unit_bytes, len(target))
        if begin < end:
            target[begin:end] = source[begin:end].ljust(end - begin, b"\0")


def _rename(change: NameChange, names: dict[str, Content]) -> None:
    # By identity: a rename that follows one which never reached the disk leaves no second name.
    for name in [name for name, content in names.items() if content is change.content]:
        del names[name]
    if change.new is not None:
        names[change.new] = change.content
