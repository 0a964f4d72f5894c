"""Bad rows of a flow as dead letters, each with what is wrong with it.

They are published before the round is committed, by an idempotent producer: the flow is the
producer, the round its epoch, so a round that is repeated leaves each letter once. A letter names
no group, so one that is redriven comes back to the topic for every reader: the flow reads it again,
and the row lands in the table.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import TopicExists
from penstock.model.dead_letters import ORIGIN_HEADER, Origin
from penstock.record.batch import Batch
from penstock.record.schema import HEADERS
from penstock.spark.flows.definition import Flow

REASON = "quarantined"
_PIECE_ROWS = 5000


def quarantine(client: Any, flow: Flow, round_number: int, bad: pa.Table) -> int:
    """Leave rows among the dead letters of the flow's topic; how many."""
    if not len(bad):
        return 0
    bad = bad.sort_by([("_partition", "ascending"), ("_offset", "ascending")])
    settings = client.describe_topic(flow.source.topic)
    name = flow.source.topic + settings.dead_letter_suffix
    try:
        client.create_topic(name, partitions=settings.partitions)
    except TopicExists:
        settings = client.describe_topic(name)
    digest = hashlib.sha256(f"flow:{flow.name}:{flow.source.topic}".encode()).digest()
    producer_id = (int.from_bytes(digest[:8], "big") >> 2) + 1
    for number in sorted(set(bad["_partition"].to_pylist())):
        some = bad.filter(pa.compute.equal(bad["_partition"], number))
        for first in range(0, len(some), _PIECE_ROWS):
            client.publish_batch(
                name,
                _letters(flow, some.slice(first, _PIECE_ROWS)),
                partition=number % settings.partitions,
                producer=(producer_id + number, round_number, first),
            )
    return len(bad)


def _letters(flow: Flow, rows: pa.Table) -> Batch:
    headers = []
    for row in rows.select(["_partition", "_offset", "_id", "_at", "_bad", "_headers"]).to_pylist():
        at_us = round(row["_at"].timestamp() * 1e6)
        origin = Origin(
            topic=flow.source.topic,
            partition=row["_partition"],
            offset=row["_offset"],
            id=row["_id"] or "",
            group="",
            reason=REASON,
            attempts=1,
            published_at_us=at_us,
            first_delivery_us=at_us,
            last_delivery_us=at_us,
            consumer=flow.group,
            error=f"flow {flow.name}: {row['_bad']}",
        )
        told = [each for each in row["_headers"] or [] if each["key"] != ORIGIN_HEADER]
        headers.append([*told, {"key": ORIGIN_HEADER, "value": msgspec.json.encode(origin)}])
    columns = {
        "priority": rows["_priority"].cast(pa.uint8()),
        "key": rows["_key"].cast(pa.binary()),
        "value": rows["_value"].cast(pa.binary()),
        "headers": pa.array(headers, HEADERS),
    }
    batches = pa.table(columns).combine_chunks().to_batches()
    return Batch.from_arrow(batches[0])
