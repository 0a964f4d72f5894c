"""Stream mode: how members and other readers read on."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.model.deliveries import poll_seconds
from penstock.model.groups import Fetch, Fetched
from penstock.model.names import parse_topic
from penstock.server.endpoints import HttpRequest, Table
from penstock.server.http import Answer, json_answer
from penstock.wire.columns import ARROW_TYPE, encode_read
from penstock.wire.json_forms import FetchedView, fetched_view

table = Table("streams")


@table.add(
    "POST",
    "/fetch",
    right="look",
    body=Fetch,
    result=FetchedView,
    result_types=(ARROW_TYPE,),
)
def fetch(call: HttpRequest) -> Any:
    """Read several partitions on from where the reader is; waits for the first message if there
    are none. Messages that have expired are left out."""
    body: Fetch = call.body
    wait_s = poll_seconds(body.wait)
    names = list(dict.fromkeys(parse_topic(position.topic) for position in body.positions))
    for name in names:
        call.check("look", name.namespace)

    def read() -> Fetched:
        return call.api.fetch(
            body.positions,
            body.max_bytes,
            namespace=call.namespace,
            group=body.group,
            member_id=body.member_id,
            generation=body.generation,
        )

    def read_news() -> Fetched | None:
        fetched = read()
        return fetched if fetched.woken or fetched.has_moved(body.positions) else None

    fetched = read()
    if fetched.woken or fetched.has_moved(body.positions) or not wait_s or call.door.stopping:
        return _fetched(call, fetched)
    poll = call.door.polls.wait(
        names,
        object(),
        read_news,
        lambda fetched: _fetched(call, fetched or read()),
        wait_s,
    )
    if body.group is not None and body.member_id is not None:
        poll.end_when(call.api, call.namespace, body.group, body.member_id)
    return poll.future


def _fetched(call: HttpRequest, fetched: Fetched) -> Answer:
    if not call.request.accepts(ARROW_TYPE):
        return json_answer(fetched_view(fetched))
    about = msgspec.json.encode(fetched_view(fetched, with_messages=False))
    batches = [batch for part in fetched.parts for batch in part.batches]
    return Answer(200, ARROW_TYPE, encode_read(batches, about))
