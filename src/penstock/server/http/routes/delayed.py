"""Messages that wait for their time."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.broker.structs import DelayStats
from penstock.server.http.endpoints import Call, Table
from penstock.wire.messages import DelayedPage, DelayedView, Whole, view
from penstock.wire.topics import Found

table = Table("delayed")


class PageOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: Whole = 0
    """The `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100


@table.add("GET", "/topics/{topic}/delayed", right="look", options=PageOptions, result=DelayedPage)
async def list_delayed(call: Call) -> DelayedPage:
    """Messages that wait, in the order in which they were published, page by page."""
    options: PageOptions = call.options

    def read() -> DelayedPage:
        bytes_max = call.door.config.body_bytes_max
        found = call.broker.delayed(call.topic, options.after, options.limit, bytes_max)
        shown = [
            DelayedView(id=each.id, deliver_at_us=each.deliver_at_us, message=view(each.message))
            for _, each in found
        ]
        is_full = sum(each.message.nbytes for _, each in found) >= bytes_max
        more = found[-1][0] + 1 if len(found) == options.limit or is_full else None
        return DelayedPage(delayed=shown, next=more)

    return await call.door.read_aside(read)


@table.add("GET", "/topics/{topic}/delayed/stats", right="describe", result=DelayStats)
def delay_stats(call: Call) -> DelayStats:
    """How many messages wait, and when the next falls due."""
    return call.broker.delay_stats(call.topic)


@table.add("DELETE", "/topics/{topic}/delayed/{id}", right="publish", result=Found)
async def cancel(call: Call) -> Found:
    """Take back a delayed message; not found: it is delivered or cancelled already."""
    found = await call.door.aside(call.broker.cancel, call.topic, call.parameters["id"])
    return Found(found=found)
