"""The stream of a shard on real NATS servers: all of it is read, though a server may be damaged."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.cluster.jetstream import JetStreamShard, StreamLimits
from penstock.cluster.local_nats import LocalNats, find_nats_server
from penstock.cluster.nats_connection import NatsConnection, NatsOptions
from penstock.cluster.shard_reader import ShardReader
from penstock.errors import MissingExtra, StoreDamaged, Unavailable

pytestmark = pytest.mark.timeout(120)

RECORDS = 100
ROTTEN = 50
WAIT_S = 60


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[LocalNats]:
    try:
        find_nats_server()
    except MissingExtra as exc:
        pytest.skip(str(exc))
    servers = LocalNats(tmp_path)
    try:
        servers.start_all()
        yield servers
    finally:
        servers.stop()


@pytest.fixture
def stream(nats: LocalNats) -> Iterator[JetStreamShard]:
    connection = NatsConnection(NatsOptions(tuple(nats.urls.split(","))), "test")
    connection.open()
    found = JetStreamShard(connection, "penstock", 0)
    _patiently(lambda: found.create(StreamLimits(3, 16 << 20)))
    yield found
    connection.close()


def test_a_long_stream_is_read_whole_and_at_once(stream: JetStreamShard) -> None:
    """In several batches, each of which NATS ends with a word of its own."""
    records = 1100
    for number in range(records):
        stream.nats.request(f"{stream.prefix}.{number % 3}", b"record %d" % number, {})
    for last in (499, 500, 501, records):
        assert [seq for seq, _ in stream.read(1, last)] == [*range(1, last + 1)]
    reader = ShardReader(stream.nats, stream.stream, 1)
    seqs = [seq for _ in range(3) for seq, _ in reader.fetch(2.0)]
    assert seqs == [*range(1, records + 1)]
    reader.close()


def test_a_reader_to_which_records_came_singly_waits_as_quietly_as_any(
    stream: JetStreamShard,
) -> None:
    """Each left a request behind, and its end was taken for that of the next one: for ever."""
    reader = ShardReader(stream.nats, stream.stream, 1)
    for number in range(1, 31):
        # A server hears of a new stream a moment later than the one that made it.
        _patiently(partial(stream.nats.request, f"{stream.prefix}.1", b"record %d" % number, {}))
        assert [seq for seq, _ in reader.fetch(1.0)] == [number]
    sent = stream.nats.client.stats["out_msgs"]
    until = time.monotonic() + 3
    while time.monotonic() < until:
        assert reader.fetch(1.0) == []
    assert stream.nats.client.stats["out_msgs"] - sent <= 10
    stream.nats.request(f"{stream.prefix}.1", b"the next one", {})
    assert [seq for seq, _ in reader.fetch(5.0)] == [31]
    reader.close()


def test_a_reader_that_waits_can_be_woken(stream: JetStreamShard) -> None:
    reader = ShardReader(stream.nats, stream.stream, 1)
    threading.Timer(0.2, reader.wake).start()
    began = time.monotonic()
    assert reader.fetch(60.0) == []
    assert time.monotonic() - began < 30
    reader.close()


def test_a_record_that_a_server_cannot_read_is_read_from_another(
    nats: LocalNats, stream: JetStreamShard
) -> None:
    for number in range(1, RECORDS + 1):
        stream.nats.request(f"{stream.prefix}.1", b"record %d " % number + b"x" * 200, {})
    time.sleep(1)  # until all three have it
    nats.signal(0, signal.SIGTERM)  # in order, so that it does not look through its files
    turn_a_bit(nats.store(0), b"record %d " % ROTTEN)
    nats.start(0)
    nats.wait_ready(WAIT_S)

    assert [seq for seq, _ in stream.read(1, RECORDS)] == [*range(1, RECORDS + 1)]
    _until_told(stream)
    assert [*stream.damaged_stores] == ["n0"]
    assert f"record {ROTTEN}" in stream.damaged_stores["n0"]

    stream.purge(1, ROTTEN + 1)
    records = range(ROTTEN + 1, RECORDS + 1)
    assert [seq for seq, _ in stream.read(1, RECORDS)] == [*records]


def _until_told(stream: JetStreamShard) -> None:
    """NATS chooses the server that gives the records: until it was the one."""
    deadline = time.monotonic() + WAIT_S
    while not stream.damaged_stores:
        assert time.monotonic() < deadline, "the damaged server gave all, or was never asked"
        assert len([*stream.read(1, RECORDS)]) == RECORDS


def test_no_reader_passes_it_over(nats: LocalNats, stream: JetStreamShard) -> None:
    for number in range(1, RECORDS + 1):
        stream.nats.request(f"{stream.prefix}.{number % 3}", b"record %d " % number, {})
    time.sleep(1)
    for server in range(3):
        nats.signal(server, signal.SIGTERM)
        turn_a_bit(nats.store(server), b"record %d " % ROTTEN)
    for server in range(3):
        nats.start(server)
    nats.wait_ready(WAIT_S)
    reader = ShardReader(stream.nats, stream.stream, 1)

    def fails() -> None:
        with pytest.raises(StoreDamaged):
            reader.fetch(2.0)

    _patiently(fails)
    reader.close()


def turn_a_bit(store: Path, text: bytes) -> None:
    """In the stream's own file, not in the log by which servers agree."""
    turned = 0
    for path in store.rglob("penstock-00/msgs/*.blk"):
        data = bytearray(path.read_bytes())
        if (at := data.find(text)) >= 0:
            data[at] ^= 1
            path.write_bytes(data)
            turned += 1
    assert turned == 1


def _patiently(work) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return work()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
