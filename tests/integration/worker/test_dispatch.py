"""Several handlers of one topic and group: by type, by filter, or not at all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import penstock
from penstock.errors import InvalidInput
from tests.integration.worker.conftest import Place, Working, until


class Created(msgspec.Struct, tag=True):
    id: int


class Paid(msgspec.Struct, tag=True):
    id: int
    cents: int


class Cancelled(msgspec.Struct, tag="cancel"):
    id: int


class Kind(msgspec.Struct, tag_field="kind", tag=True):
    id: int


def ledger(app: penstock.App, seen: list[Any]) -> penstock.App:
    @app.consumer("orders", group="ledger")
    def created(event: Created) -> None:
        seen.append(event)

    @app.consumer("orders", group="ledger")
    async def money(event: Paid | Cancelled) -> None:
        seen.append(event)

    return app


def test_the_type_says_which_handler_takes_a_message() -> None:
    seen: list[Any] = []
    app = ledger(penstock.App(), seen)
    events = [Created(1), Paid(1, 990), Cancelled(1)]
    with app.test() as bench:
        for event in events:
            bench.send("orders", event)
        bench.send("orders", {"type": "Lost", "id": 1})
        bench.send("orders", b"nonsense")
        bench.send("orders", {"type": "Paid", "id": 1})  # no cents
        handled = bench.run()
        assert [done.verdict for done in handled] == ["acked"] * 3 + ["rejected"] * 3
        assert seen == events
        errors = [letter.error for letter in bench.dead_letters("orders")]
        assert errors[:2] == ["no handler takes this message"] * 2
        assert "missing required field `cents`" in errors[2]


def test_a_worker_dispatches_too(place: Place) -> None:
    seen: list[Any] = []
    app = ledger(place.app(), seen)
    events = [Created(1), Paid(1, 990), Cancelled(1)]
    with place.connect() as ps:
        ps.create_topic("orders")
        ps.publish_batch("orders", [msgspec.json.encode(event) for event in [*events, {"id": 1}]])
    with place.connect() as ps, Working(app):
        until(lambda: len(seen) == 3 and any(ps.dead_letters("orders").list()))
        (letter,) = ps.dead_letters("orders").list()
        assert letter.error == "no handler takes this message"
    assert sorted(map(repr, seen)) == sorted(map(repr, events))


def test_a_filter_comes_first_and_a_handler_without_one_takes_the_rest() -> None:
    app = penstock.App()

    def is_from(country: str) -> Any:
        return lambda delivery: delivery.headers["country"] == country.encode()

    @app.consumer("orders", group="g", filter=is_from("de"))
    def german(body: str) -> str:
        return f"de {body}"

    @app.consumer("orders", group="g", filter=is_from("it"))
    def italian(body: str) -> str:
        return f"it {body}"

    @app.consumer("orders", group="g")
    def rest(body: str) -> str:
        return f"rest {body}"

    with app.test() as bench:
        for country in ("it", "fr", "de"):
            bench.send("orders", "x", headers={"country": country})
        bench.send("orders", "x")  # the filter fails, as a handler may
        handled = bench.run()
        assert [done.result for done in handled] == ["it x", "rest x", "de x", None]
        assert isinstance(handled[3].error, KeyError)
        assert handled[3].verdict == "retried"


def test_what_a_lone_filter_does_not_take_is_not_lost() -> None:
    app = penstock.App()
    app.consumer("orders", group="g", filter=lambda delivery: False)(lambda body: None)
    with app.test() as bench:
        bench.send("orders", "x")
        assert [done.verdict for done in bench.run()] == ["rejected"]
        assert len(bench.dead_letters("orders")) == 1


def plain(body: bytes) -> None: ...


def many(bodies: list[bytes]) -> None: ...


def paid(event: Paid) -> None: ...


def paid_too(event: Created | Paid) -> None: ...


def other_field(event: Kind) -> None: ...


@pytest.mark.parametrize(
    ("one", "two", "says"),
    [
        ((plain, {}), (plain, {}), "nothing says which one takes a message"),
        ((paid, {}), (paid_too, {}), "nothing says which one takes a message"),
        ((paid, {}), (other_field, {}), "different tag fields"),
        ((plain, {}), (many, {"batch": 2}), "streams and batches have only one"),
        ((paid, {"visibility": "1s"}), (plain, {"visibility": "2s"}), "share their leases"),
    ],
)
def test_two_handlers_that_would_take_from_each_other_are_refused(
    one: Any, two: Any, says: str
) -> None:
    app = penstock.App()
    app.consumer("orders", group="g", **one[1])(one[0])
    with pytest.raises(InvalidInput, match=says):
        app.consumer("orders", group="g", **two[1])(two[0])
    app.consumer("orders", group="other", **two[1])(two[0])  # in a group of its own
    assert len(app.consumers) == 2


def test_two_streams_of_one_group_are_refused() -> None:
    app = penstock.App()
    app.stream("orders", group="g")(plain)
    with pytest.raises(InvalidInput, match="streams and batches have only one"):
        app.stream("orders", group="g")(plain)
