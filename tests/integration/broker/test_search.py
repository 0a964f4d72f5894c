"""Looking for messages by what is in them: forward and backward, over partitions, page by page."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.client.waiting import run
from penstock.errors import InvalidInput, TopicNotFound
from penstock.model import calls, searches
from tests.integration.broker.world import World


def found(ps: Any, **wanted: Any) -> list[bytes]:
    return [each.message.value for each in ps.search("orders", **wanted)]


def places(pages: list[searches.FoundPage]) -> list[tuple[int, int]]:
    return [(each.partition, each.message.offset) for page in pages for each in page.found]


def all_pages(world: World, **wanted: Any) -> list[searches.FoundPage]:
    """Page by page, as the dashboard asks for them; by the broker itself."""
    pages: list[searches.FoundPage] = []
    after: str | None = None
    while not pages or after is not None:
        call = calls.SearchMessages(topic="orders", after=after, **wanted)
        pages.append(run(world.ps.link.ask(call)))
        after = pages[-1].next
    return pages


def test_each_filter_finds_what_it_says(ps: Any) -> None:
    ps.create_topic("orders")
    ps.publish("orders", {"id": 7, "who": {"name": "Ada"}, "lines": [{"sku": "x"}]}, key="c-1")
    ps.publish("orders", "plain text", key="c-2", headers={"type": "note"})
    ps.publish("orders", b"\xff\xfe raw", headers={"type": "raw data"}, priority="high")
    ps.publish("orders", {"id": "7", "who": None})
    everything = found(ps)
    ada, plain, raw, other = everything
    assert found(ps, value="plain") == [plain]
    assert found(ps, key="c-") == [ada, plain]
    assert found(ps, header="type") == [plain, raw]
    assert found(ps, header="type=raw") == [raw]
    assert found(ps, priority="high") == [raw]
    assert found(ps, pointer="/who/name") == [ada]
    assert found(ps, pointer="/who/name", equals="Ada") == [ada]
    assert found(ps, pointer="/who/name", equals='"Ada"') == [ada]
    assert found(ps, pointer="/lines/0/sku", equals="x") == [ada]
    assert found(ps, pointer="/id", equals="7") == [ada, other]  # the number, and the text
    assert found(ps, pointer="/who", equals="null") == [other]
    assert found(ps, pointer="/id", equals="8") == found(ps, key="c-1", value="plain") == []
    assert found(ps, backward=True, limit=2) == [other, raw]
    assert found(ps, at=2) == [raw, other]
    assert found(ps, at=2, backward=True) == [plain, ada]


def test_messages_of_all_partitions_come_in_the_order_of_time(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=3)
    for number in range(60):
        ps.publish("orders", b"%d" % number, partition=number * 7 % 3)
        world.clock.advance(0.001)
    numbers = [b"%d" % number for number in range(60)]
    assert found(ps) == numbers
    assert found(ps, backward=True) == numbers[::-1]
    assert found(ps, partition=1) == [each for each in numbers if int(each) * 7 % 3 == 1]


def test_a_time_bounds_a_search_in_both_directions(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2)
    moments = []
    for number in range(10):
        ps.publish("orders", b"%d" % number, partition=number % 2)
        moments.append(datetime.fromtimestamp(world.clock.wall_ns() / 1e9, UTC))
        world.clock.advance(1)
    assert found(ps, at=moments[3], until=moments[6]) == [b"3", b"4", b"5"]
    assert found(ps, at=moments[6], until=moments[3], backward=True) == [b"5", b"4", b"3"]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("limit", [1, 7, 50])
def test_pages_give_every_message_once(sync: World, backward: bool, limit: int) -> None:
    sync.ps.create_topic("orders", partitions=3)
    for number in range(100):
        sync.ps.publish("orders", b"%d" % number)
        sync.clock.advance(0.001)
    seen = places(all_pages(sync, backward=backward, limit=limit))
    assert len(seen) == len(set(seen)) == 100


@pytest.mark.parametrize("backward", [False, True])
def test_a_page_ends_when_enough_was_read_and_the_next_goes_on(
    sync: World, backward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.search.SCAN_BYTES_MAX", 200_000)
    sync.ps.create_topic("orders", partitions=2)
    sync.ps.publish("orders", "needle", partition=0)
    for _ in range(10):
        sync.ps.publish_batch("orders", [b"x" * 1000] * 100)
    sync.ps.publish("orders", "needle", partition=1)
    pages = all_pages(sync, value="needle", backward=backward)
    assert len(places(pages)) == 2
    assert len(pages) >= 3
    assert all(page.scanned_bytes < 500_000 for page in pages)
    assert sum(page.scanned for page in pages) >= 1002


def test_long_messages_are_read_backward_one_by_one(sync: World) -> None:
    sync.ps.create_topic("orders")
    for number in range(30):
        sync.ps.publish("orders", b"%02d" % number + b"x" * 1_000_000)
    page = all_pages(sync, backward=True, limit=3)[0]
    assert [each.message.value[:2] for each in page.found] == [b"29", b"28", b"27"]
    assert page.scanned_bytes < 20 << 20


def test_redriven_letters_for_a_group_are_not_messages_twice(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("orders", max_retries=0)
    ps.publish("orders", "x")
    ps.receive("orders", "g")[0].reject("no")
    ps.dead_letters("orders").redrive()
    assert len(found(ps)) == len(ps.peek("orders", partition=None))


@pytest.mark.parametrize(
    "wanted",
    [
        {"pointer": "id"},
        {"equals": "7"},
        {"priority": "urgent"},
        {"limit": -1},
        {"value": 5},
        {"key": b"k"},
        {"header": 5},
    ],
)
def test_what_cannot_be_looked_for_is_refused(ps: Any, wanted: dict[str, Any]) -> None:
    ps.create_topic("orders")
    with pytest.raises(InvalidInput, match=next(iter(wanted))):
        ps.search("orders", **wanted)


@pytest.mark.parametrize("after", ["x", "f", "f0", "f0:x", "b1:1;2:2", "f0:" + "9" * 19])
def test_a_cursor_of_a_stranger_does_no_harm(sync: World, after: str) -> None:
    sync.ps.create_topic("orders")
    sync.ps.publish("orders", "x")
    try:
        page = run(sync.ps.link.ask(calls.SearchMessages(topic="orders", after=after)))
    except InvalidInput:
        return
    assert page.found == []
    assert after == "f0:" + "9" * 19


def test_a_topic_that_is_not_there(ps: Any) -> None:
    with pytest.raises(TopicNotFound):
        ps.search("orders")


def test_values_that_name_a_schema_are_told_as_json(ps: Any) -> None:
    avro = pytest.importorskip("fastavro")
    fields = [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    ps.create_topic("orders")
    id_ = ps.schemas.register("orders-value", json.dumps(schema), "avro").id
    written = io.BytesIO()
    avro.schemaless_writer(written, schema, {"id": 7, "who": "Ada"})
    prefix = b"\0" + id_.to_bytes(4, "big")
    ps.publish("orders", prefix + written.getvalue())
    ps.publish("orders", prefix + b"\xff")  # does not fit
    ps.publish("orders", b"\0\0\0\xff\xff of no schema")
    ps.publish("orders", "text")
    good, bad, unknown, text = ps.search("orders")
    assert (good.schema_id, json.loads(good.decoded)) == (id_, {"id": 7, "who": "Ada"})
    assert (bad.schema_id, bad.decoded) == (id_, None)
    assert (unknown.schema_id, text.schema_id) == (None, None)
    ps.publish("orders", '{"who": "Ada"}')
    by_pointer = ps.search("orders", pointer="/who", equals="Ada")
    assert [each.message.offset for each in by_pointer] == [0, 4]
    assert found(ps, pointer="/id") == [good.message.value]
