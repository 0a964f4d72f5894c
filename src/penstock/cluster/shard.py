"""A shard that this node owns: its broker, and when it may answer for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress

from penstock.broker.api import Api
from penstock.broker.broker import Broker, BrokerConfig
from penstock.clock import SystemClock
from penstock.cluster.engine import ShardEngine
from penstock.cluster.jetstream import JetStreamShard, ShardSender
from penstock.cluster.records import VERSION
from penstock.cluster.replica import Replica
from penstock.cluster.takeover import take_over
from penstock.errors import LogError, NotInCluster, PenstockError, ShardLost, Unavailable
from penstock.log.commit import SHARED
from penstock.log.files import DiskFiles, FileSystem
from penstock.model.calls import AlterTopic, CreateTopic
from penstock.model.topics import TopicDescription

_logger = logging.getLogger("penstock.cluster")

COMMIT_S = 10.0
"""So long a call waits for what it has appended."""
FULL_PART = 0.9
"""Of the bytes that a stream may have: above it no messages are taken, acks and trims are."""


class ShardApi(Api):
    """The API of a shard's broker, but for what cannot be kept in a cluster."""

    def create_topic(self, call: CreateTopic) -> TopicDescription:
        _check(call.settings)
        return super().create_topic(call)

    def alter_topic(self, call: AlterTopic) -> TopicDescription:
        _check(call.settings)
        return super().alter_topic(call)


def _check(settings: Mapping[str, object]) -> None:
    if settings.get("compacted"):
        raise NotInCluster(
            "a topic of a cluster cannot be compacted yet: its files are what its stream holds; "
            "use retention, or a server that is alone"
        )


class OwnedShard:
    """From the takeover until another node is to own it, or does.

    Nothing that was asked of the broker is answered before `committed` says so: what an answer was
    decided on may be under way still. If the shard is lost meanwhile, the answer is not given.
    """

    def __init__(
        self,
        stream: JetStreamShard,
        replica: Replica,
        node: str,
        config: BrokerConfig,
        answer_bytes_max: int,
        aside: ThreadPoolExecutor,
        on_lost: Callable[[OwnedShard], None],
        record_version: int = VERSION,
    ) -> None:
        """Take it over. The replica's lock is released if that fails."""
        self.number = stream.shard
        self.stream = stream
        self._on_lost = on_lost
        self._files = aside
        self._used_bytes = self._used_at = self._kept_house_at = 0
        try:
            self.writer = take_over(stream, replica, node, record_version)
            self.writer.is_full = self._is_full
            self._measure()
            self._sender = ShardSender(stream, self.writer)
        except BaseException:
            replica.close()
            raise
        try:
            self.engine = ShardEngine(
                replica, self.writer, self._wait, self._aside, tells_each=False
            )
            self.broker = Broker(self.engine, config)
        except BaseException as exc:
            self.writer.fail(ShardLost(self.number, f"it could not be opened: {exc}"))
            self._sender.close()
            with suppress(Exception):
                self.engine.close()
            raise
        self.api = ShardApi(self.broker, answer_bytes_max=answer_bytes_max)
        self.writer.on_failed = lambda: on_lost(self)
        if self.writer.failure is not None:
            on_lost(self)

    @property
    def term(self) -> int:
        return self.writer.term

    @property
    def used_bytes(self) -> int:
        """How long the stream is, about."""
        return self._used_bytes + self.writer.committed_bytes - self._used_at

    @property
    def failure(self) -> LogError | None:
        return self.writer.failure

    def committed(self) -> Future[None]:
        """For when all that was done so far is committed; it fails if the shard is lost."""
        return self.writer.barrier()

    def housekeep(self) -> None:
        """Now and then: note how far the files are, and drop from the stream what was trimmed.

        Where the files were found damaged, the shard is lost, and they are fetched again."""
        if self.engine.is_damaged():
            self.engine.distrust()
            self.writer.fail(ShardLost(self.number, "its files are damaged, and fetched again"))
        seq = self.writer.committed_seq
        if self.writer.failure is not None:
            return
        self.engine.save()
        if seq != self._kept_house_at or self._is_full():
            self._kept_house_at = seq
            self.engine.trims.purge(self.stream)
            self._measure()

    def hand_over(self) -> None:
        """Close it in order: the next owner has little to read."""
        try:
            self.broker.close()
        except PenstockError as exc:
            _logger.warning("shard %d was not closed in order: %s", self.number, exc)
        self.writer.fail(ShardLost(self.number, "it was handed over"))
        self._sender.close()

    def drop(self) -> None:
        """Let go of it as it is: nothing is written any more."""
        self.broker.lost()
        with suppress(PenstockError):
            self.broker.close()
        self._sender.close()

    def _wait(self, future: Future[None]) -> None:
        try:
            future.result(COMMIT_S)
        except FutureTimeout:
            raise Unavailable(f"shard {self.number}: nothing is committed; try again") from None

    def _aside(self, work: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the process ends
            self._files.submit(work)

    def _measure(self) -> None:
        self._used_bytes, self._used_at = self.stream.used_bytes(), self.writer.committed_bytes

    def _is_full(self) -> bool:
        return 0 < self.stream.bytes_max * FULL_PART < self.used_bytes


def open_replica(data: str, stream: JetStreamShard, files: FileSystem | None = None) -> Replica:
    """The cache of a shard on this node. `stream` has been asked for its name."""
    return Replica(
        os.path.join(data, "shards", f"{stream.shard:02d}"),
        stream.name,
        clock=SystemClock(),
        files=files or DiskFiles(),
        committer=SHARED,
    )
