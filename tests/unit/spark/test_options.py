"""Options as people write them, and what they are told when one is wrong."""

from __future__ import annotations

import os

import pytest

from penstock.errors import InvalidInput
from penstock.spark.options import Position, parse_read_options, parse_write_options

BASE = {"path": "data", "subscribe": "orders"}


def test_names_are_those_of_the_kafka_source_in_any_case() -> None:
    options = parse_read_options(
        {
            "PATH": "data",
            "subscribe": "orders, billing",
            "startingoffsets": '{"orders": {"0": 23, "1": -2}}',
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": "1000",
            "maxbytespertrigger": "64m",
            "minPartitions": "8",
            "includeHeaders": "TRUE",
        }
    )
    assert options.target.path == os.path.abspath("data")
    assert options.subscription.topics == ("orders", "billing")
    assert options.starting == Position("earliest", offsets={"orders": {0: 23, 1: -2}})
    assert options.ending == Position("latest")
    assert not options.fail_on_data_loss
    assert (options.offsets_per_trigger_max, options.bytes_per_trigger_max) == (1000, 64 << 20)
    assert (options.partitions_min, options.include_headers) == (8, True)


def test_times_are_milliseconds_as_for_kafka_or_dates() -> None:
    as_number = parse_read_options({**BASE, "startingTimestamp": "1700000000000"})
    as_text = parse_read_options({**BASE, "startingTimestamp": "2023-11-14T22:13:20Z"})
    assert as_number.starting == as_text.starting == Position(1_700_000_000_000_000)
    each = parse_read_options({**BASE, "endingOffsetsByTimestamp": '{"orders": {"0": 5}}'})
    assert each.ending == Position("latest", times_us={"orders": {0: 5000}})


def test_a_file_url_is_a_path() -> None:
    options = parse_read_options({"path": "file:///some%20where/data", "subscribe": "orders"})
    assert options.target.path == "/some where/data"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"subscribe": "orders"}, "one of 'path'"),
        ({**BASE, "url": "http://127.0.0.1:8080"}, "one of 'path'"),
        ({"path": "data"}, "say which topics"),
        ({**BASE, "assign": '{"orders": [0]}'}, "say which topics"),
        ({"path": "data", "assign": "orders"}, "assign is 'orders'"),
        ({"path": "data", "subscribePattern": "("}, "no regular expression"),
        ({**BASE, "startingOfsets": "latest"}, "did you mean 'startingOffsets'"),
        ({**BASE, "kafka.bootstrap.servers": "k:9092"}, "is for Kafka"),
        ({**BASE, "startingOffsets": "soon"}, "startingOffsets is 'soon'"),
        ({**BASE, "endingOffsets": "earliest"}, "endingOffsets is 'earliest'"),
        ({**BASE, "startingOffsets": '{"orders": {"0": -3}}'}, "is no offset"),
        ({**BASE, "endingOffsets": '{"orders": {"0": -2}}'}, "is no offset"),
        ({**BASE, "startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday'"),
        ({**BASE, "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is '0'"),
        ({**BASE, "maxBytesPerTrigger": "64 mega"}, "maxBytesPerTrigger is '64 mega'"),
        ({**BASE, "failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe'"),
    ],
)
def test_a_wrong_option_is_named(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said.replace("(", r"\(")):
        parse_read_options(wrong)


def test_rows_of_a_stream_to_a_server_wait_where_a_restart_finds_them() -> None:
    given = {"url": "http://127.0.0.1:8080", "topic": "out"}
    with pytest.raises(InvalidInput, match="needs its own option 'checkpointLocation'"):
        parse_write_options(given, stream=True)
    beside = parse_write_options({**given, "checkpointlocation": "/c"}, stream=True)
    assert beside.staging == "/c/penstock"
    assert parse_write_options({**given, "staging": "/s"}, stream=True).staging == "/s"
    assert parse_write_options(given).staging  # a write that is over when it is over
