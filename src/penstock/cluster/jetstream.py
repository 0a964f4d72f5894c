"""The streams of a cluster on NATS JetStream: one for each shard, and a small one for who owns
what.

A record of a shard lies at the subject `<cluster>.<shard>.<log>`, or `.term` or `.meta` in place of
the log. Only Penstock may publish there: the order is checked for who asks for it alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from penstock.cluster.nats_connection import (
    EXPECTED_LAST,
    NAME_IN_USE,
    NO_ROOM,
    NOT_FOUND,
    WRONG_LAST,
    JetStreamError,
    NatsConnection,
    decode_answer,
    message_of,
)
from penstock.cluster.records import HEADER_BYTES, RecordKind
from penstock.cluster.shard_reader import ShardReader
from penstock.cluster.writer import RECORD_BYTES, Outgoing, ShardWriter
from penstock.errors import ClusterUnsafe, ShardDamaged, ShardLost, StoreDamaged, Unavailable

_logger = logging.getLogger("penstock.cluster")

SILENCE_S = 3.0
"""Without any confirmation for so long an owner gives up, and begins anew."""
_SILENCE_READING_S = 15.0
_AGAIN_S = 0.1


class StreamLimits(NamedTuple):
    """How the streams of a cluster are made."""

    replicas: int = 3
    bytes_max: int = 2 << 30


class JetStreamShard:
    """The stream of one shard: what a takeover asks (`ShardStream`)."""

    def __init__(self, nats: NatsConnection, cluster: str, shard: int) -> None:
        self.nats = nats
        self.shard = shard
        self.stream = f"{cluster}-{shard:02d}"
        self.prefix = f"{cluster}.{shard:02d}"
        self.name = ""
        self.record_bytes = RECORD_BYTES
        self.bytes_max = 0
        self.damaged_stores: dict[str, str] = {}
        """By server: what it could not read."""

    def create(self, limits: StreamLimits) -> None:
        """Make the stream, or leave one as it is that was made so."""
        create_stream(
            self.nats,
            {
                "name": self.stream,
                "subjects": [f"{self.prefix}.>"],
                "num_replicas": limits.replicas,
                "storage": "file",
                "retention": "limits",
                "discard": "new",
                "max_bytes": limits.bytes_max,
                "allow_direct": False,
                "duplicate_window": 100_000_000,
            },
        )

    def info(self) -> Any:
        """Raises ShardDamaged if there is no such stream."""
        try:
            answer = self.nats.api(f"STREAM.INFO.{self.stream}")
        except JetStreamError as exc:
            if exc.code in NOT_FOUND:
                raise ShardDamaged(0, f"there is no stream {self.stream} any more") from exc
            raise Unavailable(f"NATS: {exc}") from exc
        self.name = str(answer["created"])
        self.bytes_max = int(answer["config"]["max_bytes"])
        payload = self.nats.client.max_payload
        self.record_bytes = min(RECORD_BYTES, payload - HEADER_BYTES - 1024)
        return answer

    def last_seq(self) -> int:
        return int(self.info()["state"]["last_seq"])

    def used_bytes(self) -> int:
        return int(self.info()["state"]["bytes"])

    def last_term(self) -> bytes | None:
        found = self._get({"last_by_subj": f"{self.prefix}.term"})
        return None if found is None else found[1]

    def begin_term(self, data: bytes, last_seq: int) -> int | None:
        try:
            headers = {EXPECTED_LAST: str(last_seq)}
            answer = self.nats.request(f"{self.prefix}.term", data, headers)
        except JetStreamError as exc:
            if exc.code in WRONG_LAST:
                return None
            raise Unavailable(f"NATS: {exc}") from exc
        return int(answer["seq"])

    def next_of(self, log: int, seq: int) -> tuple[int, bytes] | None:
        return self._get({"seq": seq, "next_by_subj": f"{self.prefix}.{log}"})

    def delete(self, seq: int) -> None:
        try:
            self.nats.api(f"STREAM.MSG.DELETE.{self.stream}", {"seq": seq, "no_erase": True})
        except JetStreamError as exc:
            if exc.code not in NOT_FOUND:
                raise Unavailable(f"NATS: {exc}") from exc

    def purge(self, log: int, before_seq: int) -> None:
        self.nats.api(
            f"STREAM.PURGE.{self.stream}",
            {"filter": f"{self.prefix}.{log}", "seq": before_seq},
            timeout_s=20,
        )

    def subjects(self) -> dict[str, int]:
        """How many records each subject has."""
        body = {"subjects_filter": f"{self.prefix}.>"}
        answer = self.nats.api(f"STREAM.INFO.{self.stream}", body, timeout_s=20)
        return answer["state"].get("subjects") or {}

    def read(self, first_seq: int, last_seq: int) -> Iterator[tuple[int, bytes]]:
        reader = ShardReader(self.nats, self.stream, first_seq)
        heard = time.monotonic()
        try:
            while True:
                records = self._fetched(reader, heard + _SILENCE_READING_S)
                for seq, data in records:
                    if seq > last_seq:
                        return
                    yield seq, data
                    if seq == last_seq:
                        return
                if records:
                    heard = time.monotonic()
        finally:
            reader.close()

    def _fetched(self, reader: ShardReader, until: float) -> list[tuple[int, bytes]]:
        """The next records, of whichever server can read them; NATS chooses it. Raises Unavailable
        if there are none in time."""
        while True:
            why = f"stream {self.stream} gives nothing"
            try:
                if records := reader.fetch(2.0):
                    return records
            except StoreDamaged as exc:
                _logger.error("%s", exc)
                self.damaged_stores[exc.server] = why = str(exc)
            except Unavailable as exc:
                _logger.info("stream %s: %s", self.stream, exc)
                why = str(exc)
            if time.monotonic() > until:
                raise Unavailable(f"for {_SILENCE_READING_S:.0f} s: {why}")
            time.sleep(_AGAIN_S)

    def subject_of(self, record: Outgoing) -> str:
        where: object = record.log
        if record.kind is RecordKind.TERM:
            where = "term"
        elif record.kind is not RecordKind.FRAMES:
            where = "meta"
        return f"{self.prefix}.{where}"

    def _get(self, what: dict[str, Any]) -> tuple[int, bytes] | None:
        try:
            return message_of(self.nats.api(f"STREAM.MSG.GET.{self.stream}", what))
        except JetStreamError as exc:
            if exc.code in NOT_FOUND:
                return None
            raise Unavailable(f"NATS: {exc}") from exc


def create_stream(nats: NatsConnection, config: dict[str, Any]) -> None:
    """Raises ClusterUnsafe if there is no room for it, Unavailable if it may work later."""
    name = config["name"]
    try:
        nats.api(f"STREAM.CREATE.{name}", config, timeout_s=20)
    except JetStreamError as exc:
        if exc.code in NO_ROOM:
            raise ClusterUnsafe(
                f"NATS has no room for stream {name} ({exc}): give its servers more (max_file), or "
                "the streams less (cluster_shard_bytes)"
            ) from exc
        if exc.code == NAME_IN_USE:
            return  # made with other settings, which are an operator's matter
        raise Unavailable(f"NATS: stream {name}: {exc}") from exc


class ShardSender:
    """Sends what the owner of a shard appends, and tells its writer what was confirmed."""

    def __init__(self, shard: JetStreamShard, writer: ShardWriter) -> None:
        self._shard = shard
        self._writer = writer
        self._nats = shard.nats
        self._loop = shard.nats.loop
        self._heard = time.monotonic()
        self._sending = False
        self._kicked = False
        self._closed = False
        self._nats.call(self._begin())
        writer.on_work = self._kick

    def close(self) -> None:
        self._closed = True
        self._writer.on_work = lambda: None
        with suppress(NatsError, OSError, Unavailable, TimeoutError):
            self._nats.call(self._subscription.unsubscribe(), 5)

    async def _begin(self) -> None:
        self._inbox = self._nats.client.new_inbox()
        self._subscription = await self._nats.client.subscribe(
            f"{self._inbox}.*",
            cb=self._acked,
            pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )
        self._loop.call_later(SILENCE_S / 6, self._watch)

    def _kick(self) -> None:
        if not self._kicked:  # to wake the loop costs as much as a short record
            self._kicked = True
            self._loop.call_soon_threadsafe(self._kicked_awake)

    def _kicked_awake(self) -> None:
        self._kicked = False  # before it looks: what is appended from now on kicks again
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._sending and self._writer.has_waiting:
            self._sending = True
            self._loop.create_task(self._send())

    async def _send(self) -> None:
        publish, writer = self._nats.client.publish, self._writer
        try:
            while records := writer.next_records():
                if writer.under_way == len(records):
                    self._heard = time.monotonic()  # nothing was under way before
                for record in records:
                    await publish(
                        self._shard.subject_of(record),
                        record.data,
                        reply=f"{self._inbox}.{record.seq}",
                        headers={EXPECTED_LAST: str(record.seq - 1)},
                    )
        except (NatsError, OSError) as exc:
            writer.fail(ShardLost(writer.shard, f"NATS took nothing: {exc}"))
        finally:
            self._sending = False

    async def _acked(self, message: Msg) -> None:
        seq = int(message.subject.rsplit(".", 1)[1])
        self._heard = time.monotonic()
        try:
            stored = int(decode_answer(message.data)["seq"])
        except (JetStreamError, Unavailable) as exc:
            self._writer.acked(seq, None, str(exc))
            return
        self._writer.acked(seq, stored)
        self._send_soon()

    def _watch(self) -> None:
        """Whether anything was confirmed lately, if something is to be."""
        if self._closed or self._writer.failure is not None:
            return
        silent_s = time.monotonic() - self._heard
        if self._writer.under_way and silent_s > SILENCE_S:
            told = f"nothing was confirmed for {silent_s:.1f} s"
            self._writer.fail(ShardLost(self._writer.shard, told))
            return
        self._loop.call_later(SILENCE_S / 6, self._watch)
