"""Exactly once: rows wait in files, one small file decides that they are published, then they are.

    <staging>/<sink>/<batch>/<task>-<attempt>.arrow   rows of one attempt of a task
    <staging>/<sink>/<batch>.json                     the decision: which files, in which order
    <staging>/<sink>/done                             the last batch that is published
    <staging>/<sink>/query                            the stream whose batches these are

Every attempt of a task writes a file of its own; nobody sees it. The decision is made once for a
batch, by a rename: whoever finds one carries it out, and forgets rows that were made anew. Carrying
it out can be cut short anywhere and begun again: the sink is an idempotent producer, the batch its
epoch, and the rows have the same numbers each time, so what is stored already is not stored again.
An older batch that somebody still carries out is fenced off by the epoch of a newer one.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

import mmh3
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.config import DELAY_MS_MAX
from penstock.errors import InvalidInput, MessageTooLarge
from penstock.record.batch import Batch
from penstock.spark.outgoing import STAGED
from penstock.spark.table_files import TableFiles

BATCH_HEADER = "penstock-spark-batch"
"""On delayed messages: which piece of which batch they are."""

_MESSAGE_COLUMNS = ["priority", "expires_at", "key", "value", "headers"]
_PIECE_ROWS = 65_536
_PIECE_BYTES = 8 << 20
_PAGE = 10_000


class StagedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch is: files of rows in order, and what their numbering depends on."""

    files: list[str]
    partitions: dict[str, int]
    """How many each topic has. One that is added later must not move rows that have a place."""


class Staging:
    """The files of one sink, in a folder that the driver and all executors see, or in an object
    store."""

    def __init__(self, folder: str, sink: str, storage: Mapping[str, str] | None = None) -> None:
        self._folder = os.path.join(folder, sink)
        self._sink = sink
        self._files = TableFiles(self._folder, storage)

    def stage(self, batch: int, task: int, rows: Iterable[pa.RecordBatch]) -> str:
        """Write the rows of one attempt of a task; the name of their file, "" if there are none."""
        name = f"{task:06d}-{uuid.uuid4().hex}.arrow"
        path = os.path.join(str(batch), name)
        written = 0
        with closing(self._files.create(path)) as file, pa.ipc.new_file(file, STAGED) as out:
            for each in rows:
                out.write_batch(each)
                written += len(each)
        if not written:
            self._files.remove(path)
            return ""
        self._files.finish(path)
        return name

    def is_nothing(self, batch: int, files: list[str]) -> bool:
        """Whether a batch has no rows, and no earlier attempt at it had any."""
        return not any(files) and self._decision(batch) is None

    def check_query(self, query: str) -> None:
        """Refuse another query than the one whose batches these are: its numbers begin again, and
        would be taken for those that are published. InvalidInput."""
        try:
            known = self._files.read("query").decode()
        except FileNotFoundError:
            self._files.write("query", query.encode())
            return
        if known != query:
            raise InvalidInput(
                f"sinkId {self._sink!r} is that of query {known}, with another checkpoint: the "
                f"batches of this query ({query}) begin with number 0 again and would be left out. "
                "Go on with that checkpoint, or give another sinkId"
            )

    def publish(self, batch: int, files: list[str], client: Any) -> int:
        """Publish a batch, or what was decided for it before; how many messages it has."""
        if batch <= self.done:
            self._forget(batch)
            return 0
        decision = self._decision(batch)
        again = decision is not None
        if decision is None:
            decision = self._decide(batch, files, client)
        publication = _Publication(self._sink, batch, decision, again)
        count = publication.run(client, self._tables(batch, decision))
        self._files.write("done", str(batch).encode())
        self._forget(batch)
        return count

    def discard(self, batch: int, files: Iterable[str]) -> None:
        """A batch failed: its files go, unless they were decided on."""
        decision = self._decision(batch)
        for name in files:
            if name and (decision is None or name not in decision.files):
                with suppress(FileNotFoundError):
                    self._files.remove(os.path.join(str(batch), name))

    @property
    def done(self) -> int:
        try:
            return int(self._files.read("done"))
        except FileNotFoundError:
            return -1

    def remove(self) -> None:
        """Leave nothing behind; for a sink that never comes back."""
        self._files.remove_tree()

    def _decision(self, batch: int) -> StagedBatch | None:
        try:
            data = self._files.read(f"{batch}.json")
        except FileNotFoundError:
            return None
        return msgspec.json.decode(data, type=StagedBatch)

    def _decide(self, batch: int, files: list[str], client: Any) -> StagedBatch:
        files = sorted(filter(None, files))
        settings: dict[str, Any] = {}
        for table in self._tables(batch, StagedBatch(files=files, partitions={})):
            for topic, rows in _by_topic(table):
                if topic not in settings:
                    settings[topic] = client.describe_topic(topic)
                _check(topic, rows, settings[topic])
        partitions = {topic: each.partitions for topic, each in settings.items()}
        decision = StagedBatch(files=files, partitions=partitions)
        self._files.write(f"{batch}.json", msgspec.json.encode(decision))
        return decision

    def _tables(self, batch: int, decision: StagedBatch) -> Iterator[pa.RecordBatch]:
        for name in decision.files:
            path = os.path.join(str(batch), name)
            if not self._files.exists(path):
                raise InvalidInput(
                    f"{os.path.join(self._folder, path)} is not there, though a task wrote it: "
                    "name a folder that the driver and all executors see, with the option 'staging'"
                )
            with self._files.arrow(path) as rows:
                for number in range(rows.num_record_batches):
                    yield rows.get_batch(number)

    def _forget(self, batch: int) -> None:
        """The decision goes first: without its files it could not be carried out."""
        with suppress(FileNotFoundError):
            self._files.remove(f"{batch}.json")
        self._files.remove_tree(str(batch))


class _Publication:
    """Sends the rows of a decision, each with the number that it always has."""

    def __init__(self, sink: str, batch: int, decision: StagedBatch, again: bool) -> None:
        digest = hashlib.sha256(sink.encode()).digest()
        self._producer_id = (int.from_bytes(digest[:8], "big") >> 2) + 1
        self._batch = batch
        self._sink = sink
        self._decision = decision
        self._again = again
        self._numbers: dict[tuple[str, int], int] = {}
        self._pieces = 0
        self._scheduled: dict[str, set[bytes]] = {}
        """By topic, the tags of delayed messages that an earlier attempt has sent."""

    def run(self, client: Any, tables: Iterator[pa.RecordBatch]) -> int:
        count = 0
        for table in tables:
            for start in range(0, len(table), _PIECE_ROWS):
                piece = table.slice(start, _PIECE_ROWS)
                later = piece.column("deliver_at").is_valid()
                if pc.any(later).as_py():
                    self._schedule(client, piece.filter(later))
                    piece = piece.filter(pc.invert(later))
                self._publish(client, piece)
                self._pieces += 1
            count += len(table)
        return count

    def _publish(self, client: Any, rows: pa.RecordBatch) -> None:
        for topic, some in _by_topic(rows):
            partitions = self._decision.partitions[topic]
            for partition, part in _by_partition(some, partitions, self._pieces):
                first = self._numbers.get((topic, partition), 0)
                for few in _sized(part):
                    client.publish_batch(
                        topic,
                        _messages(few),
                        partition=partition,
                        producer=(self._producer_id, self._batch, first),
                    )
                    first += len(few)
                self._numbers[topic, partition] = first

    def _schedule(self, client: Any, rows: pa.RecordBatch) -> None:
        """Delayed messages are not numbered: they say what they are, and are looked for."""
        for topic, some in _by_topic(rows):
            for number in some.column("partition").unique().to_pylist():
                chosen = pc.equal(some.column("partition"), number)
                part = some.filter(chosen if number is not None else some["partition"].is_null())
                for cut, few in enumerate(_sized(part)):
                    tag = f"{self._sink}/{self._batch}/{self._pieces}/{number}/{cut}".encode()
                    if self._again and tag in self._tags(client, topic):
                        continue
                    batch = _messages(few).with_headers([{BATCH_HEADER: tag}] * len(few))
                    due_us = np.asarray(few.column("deliver_at").view(pa.int64()))
                    client.schedule_batch(
                        topic, batch, deliver_at=(due_us / 1e6).tolist(), partition=number
                    )

    def _tags(self, client: Any, topic: str) -> set[bytes]:
        if topic not in self._scheduled:
            self._scheduled[topic] = _scheduled(client, topic)
        return self._scheduled[topic]


def _check(topic: str, rows: pa.RecordBatch, settings: Any) -> None:
    """Refuse what a broker would refuse, before it is decided on: a decision is for ever.

    The query is mended, and its batch made anew; nothing of the refused one was published.
    """
    numbers = pc.min_max(rows.column("partition")).as_py()
    for number in filter(None, numbers.values()):
        if not 0 <= number < settings.partitions:
            raise InvalidInput(
                f"a row names partition {number} of {topic}; there are 0 to "
                f"{settings.partitions - 1}"
            )
    longest = int(_messages(rows).message_bytes().max(initial=0))
    if longest > settings.message_bytes_max:
        raise MessageTooLarge(
            f"a row is a message of {longest} bytes; {topic} takes at most "
            f"{settings.message_bytes_max}"
        )
    latest = pc.max(rows.column("deliver_at")).as_py()
    if latest is not None and latest.timestamp() > time.time() + DELAY_MS_MAX / 1000:
        raise InvalidInput("a row is to be delivered in more than 90 days, which is the most")


def _by_topic(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    topics = rows.column("topic").unique().to_pylist()
    for topic in topics:
        yield topic, rows if len(topics) == 1 else rows.filter(pc.equal(rows["topic"], topic))


def _by_partition(
    rows: pa.RecordBatch, partitions: int, turn: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """To the partition that is named, that of the key, or all of the others to the next."""
    given = rows.column("partition")
    if given.null_count == len(rows) and rows.column("key").null_count == len(rows):
        yield turn % partitions, rows
        return
    named, keys = given.to_pylist(), rows.column("key").to_pylist()
    target = np.fromiter(
        (
            number
            if number is not None
            else turn % partitions
            if key is None
            else mmh3.hash(key, signed=False) % partitions
            for number, key in zip(named, keys, strict=True)
        ),
        np.int64,
        len(rows),
    )
    for number in np.unique(target).tolist():
        yield number, rows.filter(pa.array(target == number))


def _messages(rows: pa.RecordBatch) -> Batch:
    columns = [name for name in _MESSAGE_COLUMNS if rows[name].null_count < len(rows)]
    if "value" not in columns:
        columns.append("value")
    return Batch.from_arrow(rows.select(columns))


def _sized(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """In pieces that a broker takes in one go: of so many bytes, or of one message."""
    ends = np.cumsum(_messages(rows).message_bytes())
    start = 0
    while start < len(rows):
        full = _PIECE_BYTES + (int(ends[start - 1]) if start else 0)
        stop = max(start + 1, int(np.searchsorted(ends, full, side="right")))
        yield rows.slice(start, stop - start)
        start = stop


def _scheduled(client: Any, topic: str) -> set[bytes]:
    """The tags of all delayed messages: of those that wait and, as some were due, of the log.

    Looks at all of them, which takes a while; it is asked after a failure only.
    """
    tags = {each.message.headers.get(BATCH_HEADER) for each in client.delayed(topic)}
    for partition in range(client.describe_topic(topic).partitions):
        at: Any = "earliest"
        while page := client.peek(topic, partition=partition, at=at, limit=_PAGE):
            tags.update(message.headers.get(BATCH_HEADER) for message in page)
            at = page[-1].offset + 1
            if len(page) < _PAGE:
                break
    return tags - {None}
