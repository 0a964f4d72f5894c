"""The rules by which a shard has one history, whatever its owners send, and whenever."""

from __future__ import annotations

from concurrent.futures import Future
from random import Random

import pytest

from penstock.broker.broker import Broker, BrokerConfig
from penstock.clock import ManualClock
from penstock.cluster.engine import ShardEngine
from penstock.cluster.memory_stream import MemoryStream
from penstock.cluster.position import read_position
from penstock.cluster.records import VERSION, Draft, RecordKind, decode, encode
from penstock.cluster.replica import Replica
from penstock.cluster.takeover import follow, take_over
from penstock.cluster.writer import HELD_BYTES_MAX, WAITING_BYTES_MAX, ShardWriter
from penstock.errors import ShardDamaged, ShardLost, Unavailable
from penstock.log.commit import ManualCommitter
from penstock.log.memory import MemoryFiles
from penstock.model.names import TopicName
from penstock.record.batch import Batch

ORDERS = TopicName("default", "orders")


class Owner:
    """A node that owns the shard, by hand."""

    def __init__(self, stream: MemoryStream, folder: str, files: MemoryFiles | None = None) -> None:
        self.stream = stream
        self.files = files or MemoryFiles()
        self.clock = ManualClock(1_700_000_000 * 10**9, 10**9)
        self.replica = replica_in(folder, stream, self.files)
        self.writer = take_over(stream, self.replica, folder)
        self.engine = ShardEngine(self.replica, self.writer, self._wait, lambda work: work())
        self.broker = Broker(self.engine, BrokerConfig(free_bytes_min=0), housekeeping=False)

    def publish(self, *values: bytes) -> Future[None]:
        return self.broker.publish(ORDERS, Batch.build(list(values)))[0].durable

    def commit(self) -> None:
        while not self.writer.is_idle:
            self.stream.send(self.writer)
            self.stream.deliver()

    def drop(self) -> None:
        self.writer.fail(ShardLost(0, "dropped"))
        self.broker.lost()
        self.broker.close()

    def values(self) -> list[bytes]:
        log = self.broker.topic(ORDERS).partition(0).log
        found: list[bytes] = []
        offset = log.start
        while offset < log.end:
            read = log.read(offset)
            found += [message.value for message in read.messages()]
            offset = read.next_offset
        return found

    def _wait(self, future: Future[None]) -> None:
        self.commit()
        future.result(0)


def replica_in(folder: str, stream: MemoryStream, files: MemoryFiles) -> Replica:
    clock = ManualClock(1_700_000_000 * 10**9, 10**9)
    return Replica(folder, stream.name, clock=clock, files=files, committer=ManualCommitter(clock))


@pytest.fixture
def stream() -> MemoryStream:
    return MemoryStream(rng=Random(1))


@pytest.fixture
def owner(stream: MemoryStream) -> Owner:
    made = Owner(stream, "/a")
    made.broker.create_topic(ORDERS, {})
    made.publish(b"1", b"2")
    made.commit()
    return made


def sent(owner: Owner) -> list[bytes]:
    """What it sends now, and what never arrives by itself."""
    return [record.data for record in owner.writer.next_records()]


def test_a_record_of_an_owner_that_was_replaced_is_void(stream: MemoryStream, owner: Owner) -> None:
    owner.publish(b"lost")
    sent(owner)
    owner.publish(bytes(HELD_BYTES_MAX))  # too long to wait for the one before
    (zombie,) = sent(owner)
    second = Owner(stream, "/b")  # its term takes the number of the one that is lost
    assert stream._store(zombie) == second.writer.committed_seq + 1
    third = Owner(stream, "/c")
    assert third.values() == [b"1", b"2"]
    third.publish(b"3")
    third.commit()
    assert third.values() == [b"1", b"2", b"3"]


def test_a_record_is_void_whose_predecessor_never_arrived(
    stream: MemoryStream, owner: Owner
) -> None:
    owner.publish(b"of the first")
    old = sent(owner)[0]
    second = Owner(stream, "/b")
    second.commit()
    second.publish(b"lost")
    sent(second)
    second.publish(bytes(HELD_BYTES_MAX))  # too long to wait for the one before
    behind = sent(second)[0]
    stream._store(old)  # in the place of the one that is lost
    stream._store(behind)
    third = Owner(stream, "/c")
    assert third.values() == [b"1", b"2"]
    assert len(third.engine.trims.voids) == 2
    third.engine.trims.purge(stream)
    assert third.engine.trims.voids == []
    fourth = Owner(stream, "/d")
    assert fourth.values() == [b"1", b"2"]
    assert fourth.engine.trims.voids == []


def test_a_record_that_is_missing_or_changed_stops_a_takeover(
    stream: MemoryStream, owner: Owner
) -> None:
    owner.publish(b"3")
    owner.commit()
    victim = stream.end - 1
    whole = stream.records[victim]
    stream.records[victim] = whole[:-1] + bytes([whole[-1] ^ 1])
    with pytest.raises(ShardDamaged, match="checksum"):
        Owner(stream, "/b")
    stream.records[victim] = stream.records[victim - 1]
    with pytest.raises(ShardDamaged, match="follow"):
        Owner(stream, "/c")


def test_a_record_of_a_later_version_is_not_guessed_at(stream: MemoryStream) -> None:
    later = VERSION + 1
    take_over(stream, replica_in("/a", stream, MemoryFiles()), "a", VERSION).fail(ShardLost(0, ""))
    data, _ = encode(Draft(RecordKind.TERM, 0, [b"b"]), 2, 0, later)
    stream._store(data)
    with pytest.raises(ShardDamaged, match=f"version {later}; use a later Penstock"):
        take_over(stream, replica_in("/b", stream, MemoryFiles()), "c")


def test_a_stream_that_lost_its_end_is_not_believed(stream: MemoryStream, owner: Owner) -> None:
    owner.engine.save()
    owner.drop()
    for seq in range(stream.end - 1, stream.end + 1):
        del stream.records[seq]
    stream.end -= 2
    with pytest.raises(ShardDamaged, match="lost its end"):
        Owner(stream, "/a", owner.files)


def writer() -> ShardWriter:
    made = ShardWriter(0, 1, 10, 0)
    for number in range(3):
        made.append(Draft(RecordKind.FRAMES, number, [b"x"]), 1)
    return made


def test_records_are_confirmed_in_order_and_at_their_numbers() -> None:
    in_order = writer()
    futures = [each.future for each in in_order._waiting]
    assert [record.seq for record in in_order.next_records()] == [11, 12, 13]
    in_order.acked(11, 11)
    assert [future.done() for future in futures] == [True, False, False]
    assert in_order.committed_seq == 11
    in_order.acked(13, 13)
    assert isinstance(in_order.failure, ShardLost)
    assert all(isinstance(future.exception(0), ShardLost) for future in futures[1:])


def test_a_record_that_got_another_number_is_not_confirmed() -> None:
    surprised = writer()
    first = surprised._waiting[0].future
    surprised.next_records()
    surprised.acked(11, 12)
    assert isinstance(first.exception(0), ShardLost)


def test_an_answer_waits_for_all_that_was_appended() -> None:
    waiting = writer()
    barrier = waiting.barrier()
    assert not barrier.done()
    waiting.next_records()
    assert not waiting.barrier().done()
    for seq in (11, 12):
        waiting.acked(seq, seq)
        assert not barrier.done()
    waiting.acked(13, 13)
    assert barrier.done()
    assert waiting.barrier().done()


def appended(writer: ShardWriter, size_bytes: int, log: int = 1) -> list[int]:
    """The numbers of what is sent then."""
    writer.append(Draft(RecordKind.FRAMES, log, [bytes(size_bytes)]), size_bytes)
    return [record.seq for record in writer.next_records()]


def test_short_records_wait_for_the_one_under_way_and_become_one() -> None:
    patient = ShardWriter(0, 1, 10, 0)
    assert appended(patient, 1000) == [11]
    for _ in range(3):
        assert appended(patient, 100) == []
    future = patient.barrier()
    patient.acked(11, 11)
    assert [record.seq for record in patient.next_records()] == [12]
    patient.acked(12, 12)
    assert future.done()


def test_what_waits_is_sent_once_it_is_half_as_long_as_what_is_under_way() -> None:
    patient = ShardWriter(0, 1, 10, 0)
    told = []
    patient.on_work = lambda: told.append(patient.under_way)
    assert appended(patient, 1000) == [11]
    assert appended(patient, 400) == []
    assert len(told) == 1  # nothing can be sent: nobody is told
    assert appended(patient, 100) == [12]
    assert len(told) == 2
    assert appended(patient, 700) == []
    patient.acked(11, 11)  # less is under way
    assert [record.seq for record in patient.next_records()] == [13]


def test_what_is_long_enough_waits_for_none() -> None:
    patient = ShardWriter(0, 1, 10, 0)
    for seq in range(11, 16):
        assert appended(patient, HELD_BYTES_MAX) == [seq]
    assert appended(patient, HELD_BYTES_MAX - 1) == []


def test_a_record_that_cannot_grow_waits_for_none() -> None:
    patient = ShardWriter(0, 1, 10, 0)
    assert appended(patient, 1000, log=1) == [11]
    assert appended(patient, 1, log=2) == []
    assert appended(patient, 1, log=3) == [12]
    assert appended(patient, HELD_BYTES_MAX, log=3) == [13]


def test_what_waits_is_bounded() -> None:
    full = ShardWriter(0, 1, 0, 0)
    full.append(Draft(RecordKind.FRAMES, 1, [bytes(WAITING_BYTES_MAX)]), WAITING_BYTES_MAX)
    with pytest.raises(Unavailable):
        full.check_room(1, for_messages=False)


def test_what_was_not_committed_is_gone_with_its_owner(stream: MemoryStream, owner: Owner) -> None:
    future = owner.publish(b"never committed")
    owner.drop()
    assert isinstance(future.exception(0), ShardLost)
    again = Owner(stream, "/a", owner.files)
    assert again.values() == [b"1", b"2"]
    again.publish(b"3")
    again.commit()
    assert again.values() == [b"1", b"2", b"3"]
    assert Owner(stream, "/b").values() == [b"1", b"2", b"3"]


def test_nothing_is_purged_before_its_trim_is_committed(stream: MemoryStream, owner: Owner) -> None:
    owner.broker.purge(ORDERS)
    owner.engine.trims.purge(stream)  # nothing of it is committed: it must do no harm
    owner.drop()
    assert Owner(stream, "/b").values() == [b"1", b"2"]


def test_a_trim_that_is_committed_is_purged_and_stays(stream: MemoryStream, owner: Owner) -> None:
    owner.broker.purge(ORDERS)
    owner.publish(b"3")
    owner.commit()
    before = len(stream.records)
    assert owner.engine.trims.purge(stream)
    assert len(stream.records) < before
    assert Owner(stream, "/b").values() == [b"3"]


def test_a_message_longer_than_a_record_is_there_as_a_whole_or_not(
    stream: MemoryStream, owner: Owner
) -> None:
    long = bytes(2_000_000)
    owner.publish(long)
    owner.commit()
    assert Owner(stream, "/b").values()[-1] == long
    third = Owner(stream, "/c")
    third.publish(long)
    for record in third.writer.next_records()[:2]:
        stream._store(record.data)  # and the owner ends before the rest is sent
    fourth = Owner(stream, "/d")
    assert fourth.values() == [b"1", b"2", long]


def test_a_standby_that_lags_behind_a_purge_goes_on(stream: MemoryStream, owner: Owner) -> None:
    files = MemoryFiles()
    standby = replica_in("/s", stream, files)
    follow(stream, standby, stream.end)
    standby.close()
    for number in range(3, 6):
        owner.publish(b"%d" % number)
        owner.commit()
    owner.broker.topic(ORDERS).partition(0).trim_to(4)
    owner.commit()
    owner.engine.trims.purge(stream)
    assert Owner(stream, "/s", files).values() == [b"5"]


def test_a_topic_that_is_made_again_has_nothing_of_the_former_one(
    stream: MemoryStream, owner: Owner
) -> None:
    owner.broker.delete_topic(ORDERS)
    owner.broker.create_topic(ORDERS, {})
    owner.publish(b"new")
    owner.commit()
    assert Owner(stream, "/b").values() == [b"new"]


def test_a_removed_log_leaves_its_files_after_nobody_looks_for_them(
    stream: MemoryStream,
    owner: Owner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Killed(Exception):
        pass

    def die_half_way(folder: str) -> None:
        (mark,) = [name for name in owner.files.list(folder) if name == "durable"]
        for name in owner.files.list(folder):
            if name != mark:
                owner.files.remove(f"{folder}/{name}")
        raise Killed

    owner.engine.save()
    owner.publish(b"after the position was noted")
    owner.commit()
    monkeypatch.setattr(owner.files, "remove_folder", die_half_way)
    owner.broker.delete_topic(ORDERS)

    def finish() -> None:
        owner.commit()
        owner.engine.save()

    with pytest.raises(Killed):
        finish()
    monkeypatch.undo()
    owner.drop()
    caplog.clear()
    again = Owner(stream, "/a", owner.files)
    assert again.broker.topics() == []
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_a_shard_that_is_never_idle_notes_how_far_it_is(owner: Owner) -> None:
    owner.publish(b"3")
    owner.commit()
    owner.publish(b"under way")
    owner.engine.save()
    position = read_position(owner.files, "/a")
    assert position is not None
    assert position.seq == owner.writer.committed_seq


def test_a_position_never_lies_within_a_message_of_several_records(
    stream: MemoryStream, owner: Owner
) -> None:
    at = owner.writer.committed_seq
    owner.publish(bytes(2_000_000))
    for record in owner.writer.next_records()[:2]:
        owner.writer.acked(record.seq, stream._store(record.data))
    owner.engine.save()
    position = read_position(owner.files, "/a")
    assert position is not None
    assert position.seq <= at < owner.writer.committed_seq


def test_the_last_term_is_the_highest(stream: MemoryStream, owner: Owner) -> None:
    for number in range(3):
        Owner(stream, f"/n{number}")
    last = stream.last_term()
    assert last is not None
    assert decode(last, 0).term == 4
