"""What the nodes of a cluster agree on: a small replicated stream, in which each subject has one
value.

A value is changed only by who has seen the one before (compare and swap). So it does not matter how
many nodes try.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from penstock.cluster.jetstream import create_stream
from penstock.cluster.nats_connection import (
    NOT_FOUND,
    WRONG_LAST,
    JetStreamError,
    NatsConnection,
    message_of,
)
from penstock.cluster.placement import ClusterState
from penstock.errors import Unavailable
from penstock.randomness import own_random

_EXPECTED_OF_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
_ATTEMPTS = 50
_PAUSE_S_MAX = 0.2


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself with each heartbeat."""

    url: str
    grpc: str = ""
    """The address of its port for gRPC; empty: it has none."""
    kafka: str = ""
    """The same for Kafka."""
    version: str = ""
    record_version: int = 1
    """The latest version of records that it reads; one that says nothing of it reads the first."""
    beat: int = 0
    owns: list[int] = []
    follows: list[int] = []


class Value(NamedTuple):
    """What a subject has, and its revision; 0: nothing."""

    data: bytes
    revision: int


class Registry:
    """Any thread may use it. Calls raise Unavailable while NATS does not answer."""

    def __init__(self, nats: NatsConnection, cluster: str) -> None:
        self.nats = nats
        self.stream = f"{cluster}-registry"
        self.prefix = f"{cluster}.registry"
        self.changed_subject = f"{cluster}.changed"
        self._changing = threading.Lock()

    def create(self, replicas: int) -> None:
        create_stream(
            self.nats,
            {
                "name": self.stream,
                "subjects": [f"{self.prefix}.>"],
                "num_replicas": replicas,
                "storage": "file",
                "retention": "limits",
                "max_msgs_per_subject": 1,
                "allow_direct": False,
                "duplicate_window": 100_000_000,
            },
        )

    def get(self, name: str) -> Value:
        try:
            answer = self.nats.api(
                f"STREAM.MSG.GET.{self.stream}",
                {"last_by_subj": f"{self.prefix}.{name}"},
                timeout_s=2,
            )
        except JetStreamError as exc:
            if exc.code in NOT_FOUND:
                return Value(b"", 0)
            raise Unavailable(f"NATS: {exc}") from exc
        seq, data = message_of(answer)
        return Value(data, seq)

    def put(self, name: str, data: bytes, revision: int | None = None) -> int | None:
        """The new revision; None if the one before is not the one that was named."""
        headers = None if revision is None else {_EXPECTED_OF_SUBJECT: str(revision)}
        try:
            answer = self.nats.request(f"{self.prefix}.{name}", data, headers, 2)
        except JetStreamError as exc:
            if exc.code in WRONG_LAST:
                return None
            raise Unavailable(f"NATS: {exc}") from exc
        return int(answer["seq"])

    def delete(self, name: str) -> None:
        body = {"filter": f"{self.prefix}.{name}"}
        try:
            self.nats.api(f"STREAM.PURGE.{self.stream}", body)
        except JetStreamError as exc:
            raise Unavailable(f"NATS: {exc}") from exc

    def names(self, below: str) -> list[str]:
        """The last parts of the names that begin so."""
        body = {"subjects_filter": f"{self.prefix}.{below}.*"}
        try:
            answer = self.nats.api(f"STREAM.INFO.{self.stream}", body, timeout_s=2)
        except JetStreamError as exc:
            raise Unavailable(f"NATS: {exc}") from exc
        subjects = answer["state"].get("subjects") or {}
        return sorted(subject.rsplit(".", 1)[1] for subject in subjects)

    # The state of the cluster.

    def state(self) -> ClusterState | None:
        """None: there is no cluster yet."""
        value = self.get("state")
        return msgspec.json.decode(value.data, type=ClusterState) if value.revision else None

    def change(self, how: Callable[[ClusterState], ClusterState | None]) -> ClusterState | None:
        """Change the state, and tell all nodes; None if there is nothing to change."""
        with self._changing:  # threads of one node need not race each other
            return self._change(how)

    def _change(self, how: Callable[[ClusterState], ClusterState | None]) -> ClusterState | None:
        for attempt in range(_ATTEMPTS):
            if attempt:  # a change is refused at once while another one is being committed
                time.sleep(own_random.uniform(0, min(0.005 * 2**attempt, _PAUSE_S_MAX)))
            value = self.get("state")
            state = ClusterState()
            if value.revision:
                state = msgspec.json.decode(value.data, type=ClusterState)
            new = how(state)
            if new is None:
                return None
            if self.put("state", msgspec.json.encode(new), value.revision) is not None:
                self.nats.publish(self.changed_subject)
                return new
        raise Unavailable("the state of the cluster changes all the time")

    # Heartbeats.

    def beat(self, node: str, info: NodeInfo) -> None:
        self.put(f"nodes.{node}", msgspec.json.encode(info))

    def nodes(self) -> dict[str, tuple[NodeInfo, int]]:
        """All that have ever been there and were not removed, with the revisions of their beats."""
        found: dict[str, tuple[NodeInfo, int]] = {}
        for node in self.names("nodes"):
            value = self.get(f"nodes.{node}")
            if value.revision:
                found[node] = (msgspec.json.decode(value.data, type=NodeInfo), value.revision)
        return found
