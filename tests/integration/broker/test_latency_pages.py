"""Latencies page by page: all pages together are the whole, and a page reads no more than it needs.

They are asked over HTTP, as any client asks; what is counted is what the log reads of its files.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import latencies, latency_log
from tests.integration.broker.world import QuickFiles, World, take
from tests.integration.server.asking import Http
from tests.integration.server.running import RunningServer

S = 1_000_000
BEGAN_S = 1_699_999_980
"""When the minute began in which a world comes into being."""
Page = dict[str, Any]
Ask = Callable[..., Page]


class CountingFiles(QuickFiles):
    """Knows how much was read of the stored latencies."""

    bytes_read = 0
    reads = 0

    def map(self, path: str, position: int, length: int) -> memoryview:
        found = super().map(path, position, length)
        self._count(path, len(found))
        return found

    def read(self, path: str, length: int = -1, position: int = 0) -> bytes:
        found = super().read(path, length, position)
        self._count(path, len(found))
        return found

    def _count(self, path: str, size_bytes: int) -> None:
        if "latencies" in path:
            self.bytes_read += size_bytes
            self.reads += 1


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "data", files=CountingFiles())
    yield world
    world.close_all()


@contextmanager
def asking(world: World, topic: str = "orders") -> Iterator[Ask]:
    """A page, by the options in its address."""
    with RunningServer(world.broker) as server, Http(server.port) as http:

        def ask(**options: Any) -> Page:
            asked = "&".join(f"{name}={value}" for name, value in options.items())
            answer = http.get(f"/v1/topics/{topic}/latencies?{asked}")
            assert answer.status == 200, answer.json
            page: Page = answer.json
            return page

        yield ask


def pages_from(ask: Ask, since: float, **options: Any) -> list[Page]:
    pages, more = [], since
    while more is not None:
        pages.append(ask(since=more, **options))
        assert pages[-1]["next"] is None or pages[-1]["next"] > more, "it would go on for ever"
        more = pages[-1]["next"]
    return pages


def rows_of(pages: list[Page]) -> list[dict[str, Any]]:
    return [row for page in pages for row in page["rows"]]


def work(world: World, minutes: int, topic: str = "orders", groups: int = 1) -> None:
    """A message for each group in each minute, most of them stored."""
    for _ in range(minutes):
        world.ps.publish(topic, b"x")
        for group in range(groups):
            take(world.ps, topic, f"g{group}")
        world.pass_(60)


def test_a_page_reads_as_little_of_a_long_history_as_of_a_short_one(counted: World) -> None:
    counted.ps.create_topic("orders")
    files = counted.files
    assert isinstance(files, CountingFiles)

    def cost(**options: Any) -> tuple[int, int]:
        with asking(counted) as ask:
            ask(limit=1)
            before = files.bytes_read, files.reads
            assert len(ask(**options)["rows"]) == 5 * 4 * 4  # five minutes of four groups
            return files.bytes_read - before[0], files.reads - before[1]

    def costs() -> list[tuple[int, int]]:
        now_s = counted.clock.wall_ns() / 1e9
        middle_s, last_s = (BEGAN_S + now_s) // 2, now_s - 5 * 60
        return [cost(since=since_s, limit=65) for since_s in (0, middle_s, last_s)]

    work(counted, 300, groups=4)
    short = costs()
    work(counted, 1500, groups=4)
    stored_bytes = sum(path.stat().st_size for path in (counted.folder / "latencies").glob("*.log"))
    for (short_bytes, short_reads), (long_bytes, long_reads) in zip(short, costs(), strict=True):
        assert long_reads <= short_reads + 1
        assert long_bytes <= short_bytes + (128 << 10)  # as much as is mapped at once
        assert long_bytes < stored_bytes / 3


def test_a_page_ends_when_it_has_looked_through_enough(
    counted: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is hardly used, in the log of one that is: there is little to be found."""
    monkeypatch.setattr(latencies, "READS_MAX", 10)
    monkeypatch.setattr(latency_log, "READ_BYTES", 1)  # a batch at a time
    files = counted.files
    assert isinstance(files, CountingFiles)
    for topic in ("orders", "busy"):
        counted.ps.create_topic(topic)
    for _ in range(4):
        work(counted, 1)
        work(counted, 50, "busy")
    with asking(counted) as ask:
        pages, more = [], 0
        while more is not None:
            before = files.reads
            pages.append(ask(since=more, limit=5))
            assert files.reads - before <= 20
            more = pages[-1]["next"]
    assert len(pages) == pytest.approx(204 / 10, abs=3)
    assert any(not page["rows"] and page["next"] for page in pages)
    minutes = [row["minute_us"] // S - BEGAN_S for row in rows_of(pages)]
    assert sorted(set(minutes)) == [n * 51 * 60 for n in range(4)]
    assert len(minutes) == 4 * 4
    assert [row["minute_us"] for row in rows_of(pages)] == [
        row.minute_us for row in counted.ps.latencies("orders", since=0)
    ]


def test_a_full_page_does_not_point_to_where_nothing_is(sync: World) -> None:
    for topic in ("orders", "busy"):
        sync.ps.create_topic(topic)
    work(sync, 2)
    work(sync, 20, "busy")
    with asking(sync) as ask:
        assert [len(page["rows"]) for page in pages_from(ask, 0, limit=4)] == [4, 4]
        assert [len(page["rows"]) for page in pages_from(ask, 0, limit=8)] == [8]


def test_until_ends_the_pages(sync: World) -> None:
    sync.ps.create_topic("orders")
    work(sync, 10)
    with asking(sync) as ask:
        pages = pages_from(ask, BEGAN_S + 120, until=BEGAN_S + 5 * 60, limit=4)
    minutes = [page["rows"][0]["minute_us"] // S - BEGAN_S for page in pages]
    assert (minutes, [len(page["rows"]) for page in pages]) == ([120, 180, 240], [4, 4, 4])


def test_minutes_that_came_by_again_still_add_up_after_a_restart(sync: World) -> None:
    sync.ps.create_topic("orders")
    work(sync, 120)
    sync.clock.jump_wall(-3600)
    work(sync, 120)
    sync.restart()
    with asking(sync) as ask:
        for limit in (1, 50, 10_000):
            rows = rows_of(pages_from(ask, 0, limit=limit))
            waited = [r for r in rows if (r["priority"], r["kind"]) == (None, "waited")]
            assert [((r["minute_us"] // S - BEGAN_S) // 60, r["count"]) for r in waited] == [
                (minute, 2 if 60 <= minute < 120 else 1) for minute in range(180)
            ]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_clock_did_all_pages_are_what_was_counted(
    sync: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Restarts, kills, topics made anew and a clock that is set: what each minute counted is known,
    and every page size tells the same."""
    monkeypatch.setattr(latency_log, "READ_BYTES", 500)
    monkeypatch.setattr(latencies, "READS_MAX", 5)
    chance = random.Random(seed)
    counts: Counter[tuple[int, str]] = Counter()
    for topic in ("orders", "other"):
        sync.ps.create_topic(topic)
    for number in range(250):
        topic = chance.choice(["orders", "orders", "other"])
        group, count = chance.choice("abc"), chance.randint(1, 3)
        sync.ps.publish_batch(topic, [b"x"] * count)
        minute_s = sync.clock.wall_ns() // 1_000_000_000 // 60 * 60
        got = len(take(sync.ps, topic, group))
        if topic == "orders":
            counts[minute_s, group] += got
        sync.pass_(chance.choice([5, 60, 60, 60, 600]))
        match chance.randrange(50):
            case 0 | 1:
                sync.clock.jump_wall(-chance.choice([30, 90, 3600, 6 * 3600]))
            case 2:
                sync.clock.jump_wall(6 * 3600)
            case 3 | 4:
                sync.restart()
            case 5:
                sync.pass_(60)
                sync.pass_(60)
                sync.kill()
            case 6 if number < 125:
                sync.ps.delete_topic("orders")
                sync.ps.create_topic("orders")
                counts.clear()
    assert len(counts) > 10
    with asking(sync) as ask:
        for limit in (1, 10, 10_000):
            pages = pages_from(ask, 0, limit=limit)
            waited = [r for r in rows_of(pages) if (r["priority"], r["kind"]) == (None, "waited")]
            places = [(row["minute_us"] // S, row["group"]) for row in waited]
            assert places == sorted(set(places)), f"seed {seed}, limit {limit}"
            told = dict(zip(places, [row["count"] for row in waited], strict=True))
            assert told == {place: count for place, count in counts.items() if count}
        middle_s = sorted(counts)[len(counts) // 2][0]
        later = [row for row in rows_of(pages) if row["minute_us"] >= middle_s * S]
        assert rows_of(pages_from(ask, middle_s, limit=10)) == later
