"""What checking messages at publish costs, beside the library that checks them."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs

from bench.figures import at_least
from bench.harness import Bench, Contender, Sample, stopwatch
from penstock.broker.admission import check_schema
from penstock.broker.broker import Broker
from penstock.broker.schemas import GivenSchema
from penstock.log.local_engine import LocalEngine
from penstock.model.names import TopicName
from penstock.record.batch import Batch

_BATCH = 1000
_BATCHES = 50
_NAME = TopicName("default", "orders")
_LIBRARY = "jsonschema-rs"
_CHECK = "the check of a publish"
_CHECKED, _PLAIN = "publish, checked", "publish"
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "customer": {"type": "string", "minLength": 1, "maxLength": 64},
        "item": {"type": "string", "pattern": "^[a-z-]+$"},
        "price": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            "required": ["city"],
        },
    },
    "required": ["id", "customer", "item"],
    "additionalProperties": False,
}


def run(bench: Bench) -> None:
    values = [_document(number) for number in range(_BATCH)]
    parsed = [json.loads(value) for value in values]
    batch = Batch.build(values)
    is_valid = jsonschema_rs.validator_for(SCHEMA).is_valid

    def library(_: Path) -> Sample:
        with stopwatch(_BATCH * _BATCHES) as sample:
            for _round in range(_BATCHES):
                assert all(map(is_valid, parsed))
        return sample

    def check(folder: Path) -> Sample:
        with _broker(folder) as broker:
            settings = broker.settings(_NAME)
            with stopwatch(_BATCH * _BATCHES) as sample:
                for _round in range(_BATCHES):
                    check_schema(broker.schemas, _NAME, settings, batch)
        return sample

    def publish(folder: Path, how: str) -> Sample:
        with _broker(folder, schema_check=how) as broker, stopwatch(_BATCH * _BATCHES) as sample:
            for _round in range(_BATCHES):
                broker.publish(_NAME, batch)
        return sample

    race = bench.race(
        "check",
        [
            Contender(_LIBRARY, library, "on parsed documents"),
            Contender(_CHECK, check, "parses, too"),
            Contender(_CHECKED, lambda folder: publish(folder, "full")),
            Contender(_PLAIN, lambda folder: publish(folder, "none")),
        ],
        rounds=2 * bench.rounds - 1,
    )
    title = f"{_CHECK}: {_LIBRARY} on parsed documents"
    bench.compare(race, _CHECK, _LIBRARY, at_least(1 / 3), "messages", title=title)
    bench.compare(race, _CHECKED, _PLAIN, None, "messages", title=f"{_CHECKED}: {_PLAIN}")
    bench.note(
        f"{_BATCHES} batches of {_BATCH:,} JSON documents of about {len(values[0])} B, in this "
        "process; a third of the library's speed is three times its time."
    )


def _broker(folder: Path, schema_check: str = "full") -> Broker:
    broker = Broker(LocalEngine(folder))
    broker.schemas.register("default", "orders-value", GivenSchema("json", json.dumps(SCHEMA)))
    broker.create_topic(_NAME, {"schema_check": schema_check})
    return broker


def _document(number: int) -> bytes:
    return json.dumps(
        {
            "id": number,
            "customer": f"customer-{number % 100:04}",
            "item": "a-box-of-apples",
            "price": 12.5 + number % 7,
            "tags": ["fresh", "organic", "local"],
            "address": {"street": f"Long Street {number % 50}", "city": "Springfield"},
        }
    ).encode()
