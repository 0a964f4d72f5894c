"""A batch was stored, and its producer does not hear of it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client import waiting
from penstock.errors import DiskFull
from tests.integration.broker.world import World, values


def test_a_batch_whose_answer_was_lost_is_stored_once(
    sync: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync.ps.create_topic("orders")
    publish, answers = sync.broker.publish, iter([DiskFull("lost"), DiskFull("lost again")])

    def unheard(*arguments: Any, **options: Any) -> Any:
        placed = publish(*arguments, **options)
        for lost in answers:
            raise lost
        return placed

    monkeypatch.setattr(sync.broker, "publish", unheard)
    monkeypatch.setattr(waiting.time, "sleep", lambda seconds: None)
    with sync.ps.producer("orders", linger="1h") as out:
        sent = [out.send(b"one"), out.send(b"two")]
    assert [each.result() for each in sent] == [0, 1]
    with sync.ps.producer("orders", linger="1h") as out:
        out.send(b"three")
    assert values(sync.ps.receive("orders", "g", 10)) == [b"one", b"two", b"three"]
