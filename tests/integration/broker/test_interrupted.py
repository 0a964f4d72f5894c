"""Ctrl-C anywhere in a call, in a program that goes on: nothing confirmed is lost, nothing acked
comes back, and the broker works on as if the call had never begun, or had ended.

A notebook goes on after Ctrl-C; so does whoever raises from a signal handler to limit time.
"""

from __future__ import annotations

import dis
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import penstock
from penstock.broker.withheld import LETTERS_GROUP
from penstock.errors import AlreadySettled, DiskFull
from penstock.log.appender import BufferedAppender
from penstock.log.local import LocalLog
from penstock.model.names import TopicName
from penstock.model.transactions import StagedMessages, StagedTransaction
from penstock.record.batch import Batch
from penstock.record.schema import new_batch_ulid, ulid_text
from tests.integration.broker.world import World

SRC = str(Path(penstock.__file__).parent)
QUICK_STEPS = 23  # of the moments of a call, one in so many is tried in the quick run


class TimeIsUp(Exception):
    """What a signal handler of the program's raises."""


class Interrupt:
    """Raises KeyboardInterrupt, or TimeIsUp, the `at`-th time that Python looks for signals.

    That is after a call and at the beginning of a function or of another round of a loop; not
    between `with lock` and its body, say, or locks would stay locked whatever a program did.
    """

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.looks = 0

    def __enter__(self) -> Interrupt:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        code = frame.f_code
        # An exception in a `__del__`, which Python calls when it likes, is swallowed.
        if not code.co_filename.startswith(SRC) or code.co_name == "__del__":
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "opcode" and frame.f_lasti in looks_for_signals(frame.f_code):
            self.looks += 1
            if self.looks == self.at:
                sys.settrace(None)
                raise KeyboardInterrupt if self.at % 4 < 2 else TimeIsUp
        return self._opcode


@cache
def looks_for_signals(code: CodeType) -> frozenset[int]:
    """The instructions right after those at which Python looks for signals.

    Only those that the same handler covers: a `with` lets go of its lock if a signal comes at the
    last call of its body, but not if something is raised once its end has begun.
    """
    instructions = dis.Bytecode(code)
    covered = instructions.exception_entries

    def handler(offset: int) -> int | None:
        return next((each.target for each in covered if each.start <= offset < each.end), None)

    return frozenset(
        after.offset
        for before, after in pairwise(instructions)
        if before.opname.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))
        and handler(before.offset) == handler(after.offset)
    )


class Story:
    """What was asked of a topic, and what has to be there in the end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.confirmed: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.asked: set[bytes] = set()
        """Acks and rejects that may or may not have counted."""
        self.published = 0
        world.ps.create_topic(
            "jobs", partitions=1, visibility="10s", backoff=("1s", 2.0, "4s"), max_retries=9
        )
        self.producer = world.ps.producer("jobs")

    def publish(self) -> None:
        value = self._value()
        self.world.ps.publish("jobs", value)
        self.confirmed.add(value)

    def publish_mixed(self) -> None:
        values = [self._value() for _ in range(3)]
        self.world.ps.publish_batch("jobs", values, priority=["high", "low", "normal"])
        self.confirmed.update(values)

    def receive_and_ack(self) -> None:
        for message in self.world.ps.receive("jobs", "g", 2):
            self.asked.add(message.value)
            message.ack()
            self.acked.add(message.value)

    def receive_and_keep(self) -> None:
        self.world.ps.receive("jobs", "g", 2)

    def nack(self) -> None:
        for message in self.world.ps.receive("jobs", "g", 2):
            message.nack()

    def ack_batch(self) -> None:
        batch = self.world.ps.receive_batch("jobs", "g", 3)
        values = {message.value for message in batch}
        self.asked |= values
        batch.ack()
        self.acked |= values

    def reject(self) -> None:
        for message in self.world.ps.receive("jobs", "g", 1):
            self.asked.add(message.value)
            message.reject("no good")
            self.acked.add(message.value)

    def transact(self) -> None:
        value = self._value()
        with self.world.ps.transaction() as tx:
            tx.publish("jobs", value)
            for message in self.world.ps.receive("jobs", "g", 1):
                self.asked.add(message.value)
                tx.ack(message)
        self.confirmed.add(value)

    def produce(self) -> None:
        """A producer goes on with the batch that was interrupted."""
        values = [self._value() for _ in range(3)]
        self.producer.send(values[0])
        self.producer.send(values[1], key="k")
        self.producer.flush()
        self.producer.send(values[2])
        self.producer.flush()

    def drained(self) -> set[bytes]:
        """All that is still to be done, each once; the group is done with it then."""
        found: list[bytes] = []
        for _ in range(6):
            self.world.pass_(70)
            while messages := self.world.ps.receive("jobs", "g", 100):
                found += [m.value for m in messages]
                for message in messages:
                    message.ack()
        assert len(set(found)) == len(found), "handed out twice"
        return set(found)

    def check(self) -> None:
        before = self.world.ps.peek("jobs", limit=1000, partition=0)
        values = [m.value for m in before]
        assert len(set(values)) == len(values)
        assert self.confirmed <= set(values)
        found = self.drained()
        assert not found & self.acked, "came back after its ack"
        assert self.confirmed - self.asked <= found
        assert found <= set(values)
        dead = [m.value for m in self.world.ps.peek("jobs.dlq", limit=1000)] if self.dead else []
        assert len(set(dead)) == len(dead)

    @property
    def dead(self) -> bool:
        return "jobs.dlq" in self.world.ps.topics()

    def _value(self) -> bytes:
        self.published += 1
        return b"%d" % self.published


CALLS = [
    "publish",
    "publish_mixed",
    "receive_and_ack",
    "receive_and_keep",
    "nack",
    "ack_batch",
    "reject",
    "transact",
    "produce",
]


def story(folder: Path) -> Iterator[Story]:
    """With some to receive, some that are held, and some that come again."""
    world = World(folder)
    try:
        told = Story(world)
        for _ in range(3):
            told.publish()
            told.publish_mixed()
        told.nack()
        told.receive_and_keep()
        told.world.pass_(2)
        yield told
    finally:
        world.close_all()


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_interrupted_anywhere_leaves_a_broker_that_works(
    call: str, tmp_path: Path
) -> None:
    moments = moments_of(call, tmp_path / "counted")
    assert moments > 10
    for at in range(1 + moments % QUICK_STEPS, moments + 1, QUICK_STEPS):
        interrupt(call, at, tmp_path / str(at))


@pytest.mark.torture
@pytest.mark.parametrize("call", CALLS)
def test_each_moment_of_a_call_can_be_interrupted(call: str, tmp_path: Path) -> None:
    moments = moments_of(call, tmp_path / "counted")
    for at in range(1, moments + 1):
        interrupt(call, at, tmp_path / str(at))
        shutil.rmtree(tmp_path / str(at))
        shutil.rmtree(tmp_path / f"{at}-1", ignore_errors=True)
    print(call, "interrupted at", moments, "moments")


def moments_of(call: str, folder: Path) -> int:
    for told in story(folder):
        with Interrupt() as counting:
            getattr(told, call)()
        told.check()
    return counting.looks


def interrupt(call: str, at: int, folder: Path) -> None:
    try:
        for told in story(folder):
            try:
                with Interrupt(at):
                    getattr(told, call)()
            except (KeyboardInterrupt, TimeIsUp):
                pass
            told.producer.flush()
            told.publish()
            told.receive_and_ack()
            if at % 2:  # else in the broker that was interrupted
                told.world.kill()
            told.check()
    except BaseException as exc:
        exc.add_note(f"interrupted at moment {at} of {call}")
        raise


# Where one interrupt meets another fault, or comes between two logs.


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "data")
    world.ps.create_topic("jobs", partitions=1, visibility="10s")
    yield world
    world.close_all()


def partition_of(world: World, topic: str = "jobs") -> Any:
    return world.broker.topic(TopicName("default", topic)).partitions[0]


def interrupted_in(world: World, group: str, topic: str = "jobs") -> None:
    """Ctrl-C comes when the next decision of a group is stored, and not yet believed."""
    queue = partition_of(world, topic).queues[group]

    def interrupt(events: object) -> None:
        raise KeyboardInterrupt

    queue.apply = interrupt  # until the group is folded again, as another queue


def test_what_was_rejected_on_a_full_disk_stays_dead_after_an_interrupt(
    jobs: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.ps.publish_batch("jobs", [b"bad", b"good"])
    (rejected,) = jobs.ps.receive("jobs", "g", 1)
    jobs.ps.create_topic("jobs.dlq", partitions=1)

    def full(journal: object, entry: bytes) -> None:
        raise DiskFull("no room")

    partition = partition_of(jobs)
    with monkeypatch.context() as patch:
        patch.setattr(partition.journal, "append", partial(full, partition.journal))
        with pytest.raises(DiskFull):
            rejected.reject("no good")
    assert [letter.value for letter in jobs.ps.dead_letters("jobs")] == [b"bad"]
    interrupted_in(jobs, "g")
    with pytest.raises(KeyboardInterrupt):
        jobs.ps.receive("jobs", "g", 1)
    with pytest.raises(AlreadySettled):
        rejected.nack()
    jobs.pass_(70)
    assert [m.value for m in jobs.ps.receive("jobs", "g", 10)] == [b"good"]


def test_a_letter_whose_redrive_was_interrupted_is_gone_for_all_groups(jobs: World) -> None:
    jobs.ps.publish_batch("jobs", [b"a", b"b", b"c"])
    for message in jobs.ps.receive("jobs", "g", 3):
        message.reject("no good")
    assert jobs.ps.receive("jobs.dlq", "audit", 1, visibility="1s")  # before the redriven's group
    letters = list(jobs.ps.dead_letters("jobs"))
    jobs.ps.dead_letters("jobs").purge(letters[0])
    interrupted_in(jobs, LETTERS_GROUP, "jobs.dlq")
    with pytest.raises(KeyboardInterrupt):
        jobs.ps.dead_letters("jobs").purge(letters[1])
    jobs.pass_(2)
    assert [m.value for m in jobs.ps.receive("jobs.dlq", "audit", 10)] == [b"c"]


def test_a_checkpoint_after_an_interrupt_says_what_the_ledger_says(
    jobs: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.ps.publish_batch("jobs", [b"a", b"b"])
    (acked,) = jobs.ps.receive("jobs", "g", 1)
    partition = partition_of(jobs)
    interrupted_in(jobs, "g")
    with monkeypatch.context() as patch:
        patch.setattr(partition, "_fold_ledger", failing(MemoryError()))
        with pytest.raises(MemoryError):
            acked.ack()
    partition.checkpoint()
    jobs.restart()
    jobs.pass_(70)
    assert [m.value for m in jobs.ps.receive("jobs", "g", 10)] == [b"b"]


def test_whoever_is_impatient_waits_until_the_groups_are_as_the_ledger_says(
    jobs: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.ps.publish_batch("jobs", [b"a", b"b"])
    (acked,) = jobs.ps.receive("jobs", "g", 1)
    partition = partition_of(jobs)
    interrupted_in(jobs, "g")
    fold, times = partition._fold_ledger, []

    def interrupted_twice() -> Any:
        times.append(1)
        if len(times) < 3:
            raise KeyboardInterrupt
        return fold()

    with monkeypatch.context() as patch:
        patch.setattr(partition, "_fold_ledger", interrupted_twice)
        with pytest.raises(KeyboardInterrupt):
            acked.ack()
    assert len(times) == 3
    assert [m.value for m in jobs.ps.receive("jobs", "g", 10)] == [b"b"]


def test_a_transaction_that_was_interrupted_once_it_was_stored_tells_where(
    jobs: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = StagedTransaction(
        id=ulid_text(new_batch_ulid(jobs.clock.wall_ns())),
        namespace="default",
        messages=[StagedMessages(topic="jobs", batch=Batch.build([b"paid"]))],
    )
    log = partition_of(jobs).log
    append = log.append

    def interrupted(*args: Any, **how: Any) -> None:
        append(*args, **how)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(log, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            jobs.broker.transactions.commit(staged)
    (stored,) = jobs.broker.transactions.commit(staged).published
    (message,) = jobs.ps.peek("jobs")
    (run,) = stored.runs
    assert (run.offset, run.id) == (0, message.id)
    jobs.restart()
    assert jobs.broker.transactions.commit(staged).published == [stored]


def failing(error: BaseException) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def test_messages_whose_flush_was_interrupted_are_stored_once(tmp_path: Path) -> None:
    with LocalLog.open(tmp_path / "log") as log, BufferedAppender(log, linger_ms=1e9) as appender:
        appender.send(b"a")

        class Interrupted(deque[Any]):
            def append(self, pending: Any) -> None:
                super().append(pending)
                appender._complete = deque(self)
                raise KeyboardInterrupt

        appender._complete = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            appender.flush()
        appender.send(b"b")
        appender.flush()
        assert [m.value for m in log.read(0).messages()] == [b"a", b"b"]
