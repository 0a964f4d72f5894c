"""Stream mode: how members and other readers read on."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.model.deliveries import poll_seconds
from penstock.model.groups import Fetch, Fetched
from penstock.model.names import parse_topic
from penstock.server.http.answers import Answer, json_answer
from penstock.server.http.endpoints import HttpRequest, Table
from penstock.wire.columns import ARROW_TYPE, encode_read
from penstock.wire.json_forms import FetchedView, fetched_view

table = Table("streams")

# What a fetch may read on the event loop; more is read beside it.
_LOOP_BYTES = 1 << 20
_LOOP_JSON_BYTES = 64 << 10
_LOOP_POSITIONS = 100


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

    def read(max_bytes: int = body.max_bytes) -> Fetched:
        return call.api.fetch(
            body.positions,
            max_bytes,
            namespace=call.namespace,
            group=body.group,
            member_id=body.member_id,
            generation=body.generation,
        )

    def read_news() -> Fetched | None:
        fetched = read()
        return fetched if fetched.woken or fetched.has_moved(body.positions) else None

    def is_news() -> bool | None:
        fetched = read(0)  # where the logs are, without their messages
        return fetched.woken or fetched.is_elsewhere(body.positions) or None

    def poll(ready: Callable[[], Any], answer: Callable[[Any], Any]) -> Future[Any]:
        poll = call.door.polls.wait(names, object(), ready, answer, wait_s)
        if body.group is not None and body.member_id is not None:
            poll.end_when(call.api, call.namespace, body.group, body.member_id)
        return poll.future

    async def fetch_aside() -> Answer:
        """Beside the event loop: it would take long."""
        await call.door.opened(names)
        if wait_s and not is_news() and not call.door.stopping:
            await poll(call.while_good(is_news), lambda found: found)
        return await call.door.read_aside(lambda: _fetched(call, read()))

    on_loop_bytes = _LOOP_BYTES if call.request.accepts(ARROW_TYPE) else _LOOP_JSON_BYTES
    is_long = body.max_bytes > on_loop_bytes or len(body.positions) > _LOOP_POSITIONS
    if is_long or not all(map(call.api.is_open, names)):
        return fetch_aside()
    fetched = read()
    if fetched.woken or fetched.has_moved(body.positions) or not wait_s or call.door.stopping:
        return _fetched(call, fetched)
    return poll(call.while_good(read_news), lambda fetched: _fetched(call, fetched or read()))


def _fetched(call: HttpRequest, fetched: Fetched) -> Answer:
    if not call.request.accepts(ARROW_TYPE):
        return json_answer(fetched_view(fetched))
    about = msgspec.json.encode(fetched_view(fetched, with_messages=False))
    batches = [batch for part in fetched.parts for batch in part.batches]
    return Answer(200, ARROW_TYPE, encode_read(batches, about))
