"""A node of a cluster: it says that it is there, owns its share of the shards, and stands by for
some.

A thread looks every second at who is there and what the cluster has agreed on, and does what
`placement` says. Nothing is safe because of what it believes: the terms in the streams decide who
owns a shard. What it believes decides who tries, and when this node stops answering.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import msgspec

from penstock import __version__
from penstock.broker.broker import BrokerConfig
from penstock.cluster.follower import Follower
from penstock.cluster.jetstream import JetStreamShard, StreamLimits
from penstock.cluster.nats_connection import NatsConnection, NatsOptions
from penstock.cluster.placement import (
    ClusterMembers,
    ClusterState,
    Owner,
    Steps,
    record_version,
    shard_of,
    written_version,
)
from penstock.cluster.records import VERSION
from penstock.cluster.registry import NodeInfo, Registry
from penstock.cluster.safety import check_nats
from penstock.cluster.shard import OwnedShard, open_replica
from penstock.errors import ClusterUnsafe, InvalidInput, PenstockError, ShardDamaged, Unavailable

_logger = logging.getLogger("penstock.cluster")

TICK_S = 1.0
_SETTLE_S = 1.5
"""After its start a node looks for others before it takes what nobody owns."""
_START_S = 60.0
"""So long a start waits for NATS."""
_HOUSEKEEP_S = 5.0
_LEASE_MARGIN_S = 1.0


class NodeConfig(NamedTuple):
    """How a node takes part."""

    data: str
    """The folder of its cache."""
    node: str
    url: str
    """Where other nodes and clients reach it."""
    nats: NatsOptions
    grpc: str = ""
    """Where they reach its port for gRPC."""
    kafka: str = ""
    """Where they and clients reach its port for Kafka."""
    cluster: str = "penstock"
    shards: int = 16
    standbys: int = 1
    dead_after_s: float = 5.0
    limits: StreamLimits = StreamLimits()
    monitors: tuple[str, ...] = ()
    nats_syncs: bool = False
    broker: BrokerConfig = BrokerConfig()
    answer_bytes_max: int = 64 << 20
    record_version: int = VERSION
    """The latest version of records that it reads."""


class ClusterNode:
    """`opened` and `closing` are told of shards, from threads of the node's own."""

    def __init__(
        self,
        config: NodeConfig,
        opened: Callable[[OwnedShard], None] = lambda shard: None,
        closing: Callable[[OwnedShard], None] = lambda shard: None,
    ) -> None:
        self.config = config
        self.me = config.node
        self._opened, self._closing = opened, closing
        self.nats = NatsConnection(config.nats, f"penstock {config.node}")
        self.registry = Registry(self.nats, config.cluster)
        self.members = ClusterMembers(config.node, config.dead_after_s)
        self.state = ClusterState(shards=config.shards)
        self.nodes: dict[str, NodeInfo] = {}
        self.shards: dict[int, OwnedShard] = {}
        self.followers: dict[int, Follower] = {}
        self.takeovers = 0
        self.lost_shards = 0
        self.on_tick: Callable[[], None] = lambda: None
        """Called with each look at the cluster."""
        self.damaged: dict[int, str] = {}
        """Shards whose stream cannot be believed, and why."""
        self._taking: set[int] = set()
        self._handing: set[int] = set()
        self._lock = threading.Lock()
        self._lease_until = 0.0
        self._beat = 0
        self._has_looked = False
        self._seen_at = self._begun = time.monotonic()
        self._housekept = 0.0
        self._wake = threading.Event()
        self._stopping = False
        self._work = ThreadPoolExecutor(4, "penstock-shards")
        self._files = ThreadPoolExecutor(1, "penstock-cache")
        self._thread = threading.Thread(target=self._run, name="penstock-node", daemon=True)

    def connect(self) -> None:
        """Reach NATS, and the cluster there, or make one. Raises what is wrong with it."""
        config = self.config
        try:
            self._patiently(self.nats.open)
            check_nats(config.monitors, declared=config.nats_syncs)
            self._patiently(self._found_cluster)
            self.nats.subscribe(self.registry.changed_subject, self._told)
        except BaseException:
            self.nats.close()
            raise

    def start(self) -> None:
        """Be there for the others, and own what is this node's part."""
        self._begun = time.monotonic()
        self._wake.set()
        self._thread.start()

    # What the server asks.

    def shard_of(self, namespace: str) -> int:
        return shard_of(namespace, self.state.shards)

    def owned(self, shard: int) -> OwnedShard | None:
        """A shard that this node may answer for now."""
        found = self.shards.get(shard)
        if found is None or time.monotonic() > self._lease_until:
            return None
        return found

    def owner(self, shard: int) -> Owner | None:
        """Another node that owns a shard, as far as is known."""
        owner = self.state.owners.get(shard)
        if owner is None or owner.node == self.me:
            return None
        info = self.nodes.get(owner.node)
        return owner if info is None else Owner(owner.node, info.url)

    def look_again(self) -> None:
        """Something is not where it was thought to be."""
        self._wake.set()

    def reasons(self) -> list[str]:
        """Why it should get no requests; none: it may."""
        found = [f"shard {shard}: {why}" for shard, why in sorted(self.damaged.items())]
        if time.monotonic() > self._lease_until:
            found.append("NATS was not heard from for some seconds")
        if not self._has_looked:
            found.append("it has just begun, and looks which shards are its own")
        if self._taking:
            found.append(f"{len(self._taking)} shards are being opened")
        return found

    # Changes that somebody asks for.

    def drain(self, node: str, *, on: bool = True) -> None:
        """Let a node have no shards, or have them again."""
        self._check_known(node)

        def how(state: ClusterState) -> ClusterState | None:
            others = [name for name in state.draining if name != node]
            return msgspec.structs.replace(state, draining=[*others, node] if on else others)

        self.registry.change(how)

    def pin(self, shard: int, node: str | None) -> None:
        """Let a shard be at a node, while that is there; None: wherever it belongs."""
        if node is not None:
            self._check_known(node)

        def how(state: ClusterState) -> ClusterState | None:
            pins = {n: name for n, name in state.pins.items() if n != shard}
            return msgspec.structs.replace(
                state, pins=pins if node is None else {**pins, shard: node}
            )

        self.registry.change(how)

    def replace(self, node: str) -> None:
        """Forget a node that does not come back. Its shards go to others at once."""
        self._check_known(node)
        if node in self.members.alive(time.monotonic()):
            raise InvalidInput(f"node {node} is there; drain and stop it first")
        self.registry.delete(f"nodes.{node}")

        def how(state: ClusterState) -> ClusterState | None:
            return msgspec.structs.replace(
                state,
                owners={n: owner for n, owner in state.owners.items() if owner.node != node},
                pins={n: name for n, name in state.pins.items() if name != node},
                draining=[name for name in state.draining if name != node],
            )

        self.registry.change(how)

    def close(self) -> None:
        """Hand all shards over, and leave."""
        with suppress(PenstockError):
            self.drain(self.me)
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        for number in list(self.followers):
            self.followers.pop(number).stop().close()
        for shard in list(self.shards.values()):
            self._hand_over(shard, None)
        self._work.shutdown()
        self._files.shutdown()
        with suppress(PenstockError):
            self.drain(self.me, on=False)
            self.registry.delete(f"nodes.{self.me}")
            self.nats.publish(self.registry.changed_subject)
        self.nats.close()

    # Inside.

    def _check_known(self, node: str) -> None:
        if node != self.me and node not in self.nodes:
            known = ", ".join(sorted({*self.nodes, self.me}))
            raise InvalidInput(f"there is no node {node!r:.100}; there are {known}")

    def _patiently(self, step: Callable[[], None]) -> None:
        """NATS may be starting at this moment, too."""
        deadline = time.monotonic() + _START_S
        while True:
            try:
                step()
                return
            except Unavailable as exc:
                if time.monotonic() > deadline:
                    raise
                _logger.warning("node %s waits: %s", self.me, exc)
                time.sleep(TICK_S)

    def _found_cluster(self) -> None:
        """The streams are made once. One that is gone later is not made anew in silence."""
        config = self.config
        self.registry.create(config.limits.replicas)
        state = self.registry.state()
        if state is None:
            for number in range(config.shards):
                self._stream(number).create(config.limits)
            self.registry.change(
                lambda known: None if known.owners else ClusterState(shards=config.shards)
            )
            state = self.registry.state()
            assert state is not None
        written_version(state.record_version, self.config.record_version)
        if state.shards != config.shards:
            raise ClusterUnsafe(
                f"the cluster was made with {state.shards} shards, and cannot have {config.shards}"
            )
        self.state = state

    def _agree_on_version(self) -> None:
        """Let what all members read by now be written, by who takes a shard over from now on."""
        announced = [info.record_version for info in self.nodes.values()]
        if record_version(self.state.record_version, announced) == self.state.record_version:
            return

        def how(state: ClusterState) -> ClusterState | None:
            version = record_version(state.record_version, announced)
            if version == state.record_version:
                return None
            return msgspec.structs.replace(state, record_version=version)

        changed = self.registry.change(how)
        if changed is not None:
            _logger.info("records may be of version %d now", changed.record_version)
            self.state = changed

    def _stream(self, number: int) -> JetStreamShard:
        return JetStreamShard(self.nats, self.config.cluster, number)

    async def _told(self, message: object) -> None:
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(TICK_S)
            self._wake.clear()
            if self._stopping:
                break
            try:
                self._tick()
            except PenstockError as exc:
                _logger.warning("node %s: %s", self.me, exc)
            except Exception:  # the next look may succeed
                _logger.exception("node %s", self.me)

    def _tick(self) -> None:
        began = time.monotonic()
        self._beat += 1
        info = NodeInfo(
            url=self.config.url,
            grpc=self.config.grpc,
            kafka=self.config.kafka,
            version=__version__,
            record_version=self.config.record_version,
            beat=self._beat,
            owns=sorted(self.shards),
            follows=sorted(self.followers),
        )
        self.registry.beat(self.me, info)
        state, nodes = self.registry.state(), self.registry.nodes()
        now = time.monotonic()
        if now - self._seen_at > 2 * TICK_S:
            self.members.deaf(now, self._seen_at + TICK_S)
        self._seen_at = now
        if state is None:
            raise ClusterUnsafe("the registry of the cluster is empty: its stream was lost")
        written_version(state.record_version, self.config.record_version)
        self.state, self.nodes = state, {node: info for node, (info, _) in nodes.items()}
        for node, (_, revision) in nodes.items():
            self.members.heard(node, revision, now)
        self.members.forget(nodes)
        self.on_tick()
        self._let_go_of_lost()
        self._lease_until = began + self.config.dead_after_s - _LEASE_MARGIN_S
        if now - self._begun < _SETTLE_S:
            return
        mine = {*self.shards, *self._taking, *self._handing}
        self._carry_out(self.members.decide(state, mine, now, self.config.standbys))
        self._has_looked = True
        self._agree_on_version()
        if now - self._housekept > _HOUSEKEEP_S:
            self._housekept = now
            for shard in list(self.shards.values()):
                self._work.submit(self._housekeep, shard)

    def _let_go_of_lost(self) -> None:
        """Shards that have failed, or that another node has taken."""
        for number, shard in list(self.shards.items()):
            owner = self.state.owners.get(number)
            is_lost = shard.failure is not None or owner is None or owner.node != self.me
            if is_lost and number not in self._handing:
                self._drop(shard)

    def _carry_out(self, steps: Steps) -> None:
        for number, target in steps.hand_over.items():
            shard = self.shards.get(number)
            if shard is not None and number not in self._handing:
                self._handing.add(number)
                self._work.submit(self._hand_over, shard, target)
            elif shard is None and number not in self._taking and number not in self._handing:
                self._set_owner(number, target)
        if new := [number for number in steps.take if number not in self._taking]:
            self._taking.update(new)
            self._work.submit(self._claim_and_take, new)
        for number in list(self.followers):
            if number not in steps.follow and number not in self._taking:
                self.followers.pop(number).stop().close()
        for number in steps.follow:
            if (
                number not in self.followers
                and number not in self._taking
                and number not in steps.take
            ):
                self._follow(number)

    def _follow(self, number: int) -> None:
        stream = self._stream(number)
        try:
            stream.info()
            self.followers[number] = Follower(stream, open_replica(self.config.data, stream))
        except (PenstockError, OSError) as exc:
            _logger.warning("standby of shard %d: %s", number, exc)

    def _claim_and_take(self, numbers: list[int]) -> None:
        """On a thread of its own, as all that may take a while."""
        ours: list[int] = []
        try:
            ours = self._claim(numbers)
        except PenstockError as exc:
            _logger.warning("shards %s were not taken over: %s", numbers, exc)
        except Exception:
            _logger.exception("shards %s were not taken over", numbers)
        finally:
            self._taking.difference_update(set(numbers).difference(ours))
        for number in ours[1:]:
            try:
                self._work.submit(self._take, number)
            except RuntimeError:  # the node is being closed
                self._taking.discard(number)
        for number in ours[:1]:
            self._take(number)

    def _take(self, number: int) -> None:
        try:
            began = time.monotonic()
            shard = self._open(number)
            with self._lock:
                self.shards[number] = shard
            self.damaged.pop(number, None)
            self.takeovers += 1
            took_s = time.monotonic() - began
            _logger.info("owns shard %d in term %d, after %.2f s", number, shard.term, took_s)
            self._opened(shard)
        except ShardDamaged as exc:
            self.damaged[number] = str(exc)
            _logger.error("shard %d: %s", number, exc)
        except (PenstockError, OSError) as exc:
            _logger.warning("shard %d was not taken over: %s", number, exc)
        except Exception:
            _logger.exception("shard %d was not taken over", number)
        finally:
            self._taking.discard(number)
            self._wake.set() if number in self.shards else None

    def _open(self, number: int) -> OwnedShard:
        config = self.config
        version = written_version(self.state.record_version, config.record_version)
        follower = self.followers.pop(number, None)
        if follower is not None:
            stream, replica = follower.stream, follower.stop()
        else:
            stream = self._stream(number)
            stream.info()
            replica = open_replica(config.data, stream)
        return OwnedShard(
            stream,
            replica,
            self.me,
            config.broker,
            config.answer_bytes_max,
            self._files,
            self._lost,
            version,
        )

    def _claim(self, numbers: Sequence[int]) -> list[int]:
        """Say that this node is to own some shards; those that nobody else has taken meanwhile.

        In one change, since each waits for a commit, and all nodes change the same document.
        """
        seen = self.state.owners
        me = Owner(self.me, self.config.url)
        ours = [number for number in numbers if seen.get(number) == me]

        def how(state: ClusterState) -> ClusterState | None:
            nonlocal ours
            owners = state.owners
            ours = [n for n in numbers if owners.get(n) in (seen.get(n), me)]
            if all(owners.get(n) == me for n in ours):
                return None
            return msgspec.structs.replace(state, owners={**owners, **dict.fromkeys(ours, me)})

        changed = self.registry.change(how)
        if changed is not None:
            self.state = changed
        return ours

    def _set_owner(self, number: int, target: str | None) -> None:
        info = None if target is None else self.nodes.get(target)

        def how(state: ClusterState) -> ClusterState | None:
            owner = state.owners.get(number)
            if owner is None or owner.node != self.me:
                return None
            owners = {n: other for n, other in state.owners.items() if n != number}
            if target is not None and info is not None:
                owners[number] = Owner(target, info.url)
            return msgspec.structs.replace(state, owners=owners)

        changed = self.registry.change(how)
        if changed is not None:
            self.state = changed

    def _hand_over(self, shard: OwnedShard, target: str | None) -> None:
        began = time.monotonic()
        try:
            self._closing(shard)
            with self._lock:
                self.shards.pop(shard.number, None)
            shard.hand_over()
            self._set_owner(shard.number, target)
            took_s = time.monotonic() - began
            _logger.info("handed shard %d over to %s in %.2f s", shard.number, target, took_s)
        except (PenstockError, OSError) as exc:
            _logger.warning("shard %d was not handed over in order: %s", shard.number, exc)
        except Exception:
            _logger.exception("shard %d was not handed over in order", shard.number)
        finally:
            self._handing.discard(shard.number)

    def _lost(self, shard: OwnedShard) -> None:
        """Its writer has failed; from whatever thread noticed."""
        self._wake.set()

    def _drop(self, shard: OwnedShard) -> None:
        with self._lock:
            if self.shards.pop(shard.number, None) is None:
                return
        self.lost_shards += 1
        _logger.warning(
            "lets go of shard %d: %s", shard.number, shard.failure or "it has another owner"
        )
        if shard.failure is None:
            shard.writer.fail(shard.engine.loss())
        self._handing.add(shard.number)  # nothing else is done with it until its files are free
        self._work.submit(self._close_lost, shard)

    def _close_lost(self, shard: OwnedShard) -> None:
        try:
            self._closing(shard)
            shard.drop()
        except Exception:
            _logger.exception("shard %d", shard.number)
        finally:
            self._handing.discard(shard.number)
            self._wake.set()

    def _housekeep(self, shard: OwnedShard) -> None:
        try:
            shard.housekeep()
        except (PenstockError, OSError) as exc:
            _logger.info("shard %d: %s", shard.number, exc)
