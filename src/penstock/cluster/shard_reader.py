"""What the stream of a shard gives, record by record, to who takes the shard over or stands by."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from penstock.cluster.gaps import first_not_dropped, missing_in
from penstock.cluster.nats_connection import JetStreamError, NatsConnection
from penstock.errors import StoreDamaged, Unavailable

_BATCH = 500
_BATCH_BYTES = 8 << 20
_BATCH_DONE = "Batch Completed"
_LATE_S = 2.0
"""So long after it should have ended a request is believed to be lost."""
_GATHER_S = 0.1
_PAUSE_S = 0.002
"""Where nothing came for so long, what has come is handed on."""


class ShardReader:
    """Reads the stream of a shard on from a record, as it grows. One thread uses it.

    What comes is gathered by the loop of the connection. One request stands at a time, for as many
    records as may be kept here; who fetches asks again once that has ended.
    """

    def __init__(self, nats: NatsConnection, stream: str, first_seq: int) -> None:
        self._nats = nats
        self._stream = stream
        self._next_seq = first_seq
        self._subscription: Any = None
        self._consumer = ""
        self._news = threading.Condition()
        self._is_woken = False
        self._reset()

    def fetch(self, wait_s: float) -> list[tuple[int, bytes]]:
        """The next records, some at a time; none, if none came within the time."""
        try:
            if self._subscription is None:
                self._nats.call(self._begin(), 20)
            found = self._wait(wait_s)
            if missing := missing_in([seq for seq, _ in found], self._next_seq):
                self._nats.call(self._check_gaps(missing), 30)
        except (JetStreamError, NatsError, OSError) as exc:
            self.close()
            raise Unavailable(f"NATS: {exc}") from exc
        except Unavailable:
            self.close()
            raise
        if found:
            self._next_seq = found[-1][0] + 1
        return found

    def wake(self) -> None:
        """Let whoever fetches come back at once, now and from now on. Any thread may call it."""
        with self._news:
            self._is_woken = True
            self._news.notify()

    def close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(NatsError, OSError, Unavailable, TimeoutError):
                self._nats.call(self._end(subscription), 5)

    def _reset(self) -> None:
        self._found: list[tuple[int, bytes]] = []
        self._problem: str | None = None
        self._consumer_seq = 0
        self._request = 0
        self._may_come = 0
        """Records for which the last request stands; 0: it has ended."""
        self._stands_until = 0.0

    def _wait(self, wait_s: float) -> list[tuple[int, bytes]]:
        deadline = time.monotonic() + wait_s
        while True:
            with self._news:
                must_ask = not self._found and not self._may_come and self._problem is None
            if must_ask and not self._is_woken:
                self._nats.call(self._ask(wait_s))
            with self._news:
                while self._is_quiet() and (left_s := deadline - time.monotonic()) > 0:
                    self._news.wait(left_s)
                if self._found:
                    self._gather()
                    found, self._found = self._found, []
                    return found
                if self._problem is not None:
                    raise Unavailable(self._problem)
                if self._may_come and time.monotonic() > self._stands_until + _LATE_S:
                    raise Unavailable("the consumer is gone")
            if self._is_woken or time.monotonic() >= deadline:
                return []

    def _is_quiet(self) -> bool:
        """Whether there is nothing to do but to wait for what was asked for."""
        return bool(
            self._may_come and not self._found and self._problem is None and not self._is_woken
        )

    def _gather(self) -> None:
        """Until no more come, or for as long as nobody minds."""
        count, until = 0, time.monotonic() + _GATHER_S
        while len(self._found) > count and self._may_come and time.monotonic() < until:
            count = len(self._found)
            self._news.wait(_PAUSE_S)

    async def _end(self, subscription: Any) -> None:
        await subscription.unsubscribe()
        with suppress(JetStreamError, Unavailable):
            await self._nats.api_async(
                f"CONSUMER.DELETE.{self._stream}.{self._consumer}", timeout_s=2
            )

    async def _begin(self) -> None:
        nats = self._nats
        self._consumer = f"r{time.time_ns():x}"
        await nats.api_async(
            f"CONSUMER.CREATE.{self._stream}.{self._consumer}",
            {
                "stream_name": self._stream,
                "action": "create",
                "config": {
                    "name": self._consumer,
                    "deliver_policy": "by_start_sequence",
                    "opt_start_seq": max(self._next_seq, 1),
                    "ack_policy": "none",
                    "mem_storage": True,
                    "num_replicas": 1,
                    "inactive_threshold": 30 * 10**9,
                },
            },
        )
        self._reset()
        self._inbox = nats.client.new_inbox()
        self._subscription = await nats.client.subscribe(
            f"{self._inbox}.*", cb=self._came, pending_msgs_limit=-1, pending_bytes_limit=-1
        )

    async def _ask(self, stands_s: float) -> None:
        with self._news:
            self._request += 1
            self._may_come = _BATCH
            self._stands_until = time.monotonic() + stands_s
        await self._nats.client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}",
            msgspec.json.encode(
                {"batch": _BATCH, "max_bytes": _BATCH_BYTES, "expires": int(stands_s * 1e9)}
            ),
            reply=self._reply,
        )

    @property
    def _reply(self) -> str:
        """Where NATS tells of the last request. What it says of one before is of no interest: its
        end, taken for that of the last one, would have another asked for at once, for ever."""
        return f"{self._inbox}.{self._request}"

    async def _came(self, message: Msg) -> None:
        """A record, or a word about a request. The loop calls it."""
        status = (message.headers or {}).get("Status")
        with self._news:
            if status is None:
                self._take(message)
            elif message.subject == self._reply:
                told = str((message.headers or {}).get("Description", "")).strip()
                self._may_come = 0
                has_ended = status in ("404", "408") or told == _BATCH_DONE
                if not has_ended and "max" not in told.lower():
                    self._problem = f"the consumer says {status} {told}"
            if len(self._found) <= 1 or not self._may_come or self._problem is not None:
                self._news.notify()  # of others who fetches takes notice by itself

    def _take(self, message: Msg) -> None:
        seq, consumer_seq = _numbers(message)
        if consumer_seq != self._consumer_seq + 1:
            self._problem = self._problem or "a record was lost on its way"
        if self._problem is not None:
            return
        self._consumer_seq = consumer_seq
        self._may_come -= 1
        if seq >= (self._found[-1][0] + 1 if self._found else self._next_seq):
            self._found.append((seq, message.data))

    async def _check_gaps(self, missing: list[range]) -> None:
        """Raises StoreDamaged if the server has passed over a record."""
        answer = await self._nats.api_async(
            f"STREAM.INFO.{self._stream}", {"deleted_details": True}, timeout_s=20
        )
        state = answer["state"]
        seq = first_not_dropped(missing, int(state["first_seq"]), state.get("deleted") or ())
        if seq is not None:
            consumer = await self._nats.api_async(f"CONSUMER.INFO.{self._stream}.{self._consumer}")
            server = (consumer.get("cluster") or {}).get("leader", "a server")
            raise StoreDamaged(server, self._stream, seq)


def _numbers(message: Msg) -> tuple[int, int]:
    """Of a delivered message: in the stream, and in what its consumer was sent."""
    tokens = message.reply.split(".")
    at = 5 if len(tokens) == 9 else 7
    return int(tokens[at]), int(tokens[at + 1])
