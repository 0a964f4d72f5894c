"""Random lives of a broker whose logs are those of a shard, on a network that loses and reorders.

The life and the model are those of a broker on one machine. What was committed has to survive
whatever happens to the nodes; what was not may be gone, all at once from some moment on.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from contextlib import suppress
from unittest.mock import patch

from penstock.clock import ManualClock
from penstock.cluster import engine as engine_module
from penstock.cluster import position as position_module
from penstock.cluster import replica as replica_module
from penstock.cluster.engine import ShardEngine
from penstock.cluster.memory_stream import NO_FAULTS, Faults, MemoryStream
from penstock.cluster.records import RecordKind
from penstock.cluster.replica import Replica
from penstock.cluster.takeover import follow, take_over
from penstock.errors import PenstockError, ShardLost
from penstock.log.commit import ManualCommitter
from tests.simulation.broker_life import BrokerLife
from tests.simulation.broker_model import require
from tests.simulation.disk import SimulatedCrash, SimulatedFiles

NODES = ("/node0", "/node1", "/node2")

ROUGH = Faults(lost=0.004, overtaken=0.01, ack_lost=0.004, ack_overtaken=0.004, late=0.01)


class ClusterLife(BrokerLife):
    """One shard from its first day on, and three nodes that own it by turns."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stream = MemoryStream(rng=self.rng)
        self.stream.record_bytes = self.rng.choice((300, 1000, self.stream.record_bytes))
        self.disks = {node: SimulatedFiles() for node in NODES}
        self.boots = dict.fromkeys(NODES, 0)
        self.node = NODES[0]

    def __enter__(self) -> ClusterLife:
        for module in (position_module, replica_module, engine_module):
            self._around.enter_context(
                patch.object(module, "this_boot", lambda: f"boot {self.boots[self.node]}")
            )
        logger = logging.getLogger("penstock.cluster")
        logger.addFilter(self._is_alarming)
        self._around.callback(logger.removeFilter, self._is_alarming)
        super().__enter__()
        return self

    def _is_alarming(self, record: logging.LogRecord) -> bool:
        """Files that are fetched again cost time and nothing else, but it has to be rare."""
        is_rare = "fetched again" in record.getMessage()
        self.counts["fetched again"] += is_rare
        return not is_rare

    def engine(self, clock: ManualClock, committer: ManualCommitter) -> ShardEngine:
        self.files = self.disks[self.node]
        replica = Replica(
            f"/cache{self.node}",
            self.stream.name,
            clock=clock,
            files=self.files,
            committer=committer,
        )
        if self.rng.random() < 0.5:
            self.stream.deliver_late()  # a zombie, before we begin
        self.writer = take_over(self.stream, replica, self.node)
        require(replica.fold.seq == self.writer.committed_seq, "not read up to its own term")
        return ShardEngine(replica, self.writer, self._wait, self._aside)

    def _begin_faults(self) -> None:
        self.stream.faults = ROUGH if self.rng.random() < 0.6 else NO_FAULTS

    def _zombies_speak(self) -> None:
        """What owners sent that were replaced arrives now, right behind our term."""
        before = self.stream.end
        self.stream.deliver_late()
        if self.stream.end > before:
            self.counts["void records"] += self.stream.end - before
            # Told now, and not when the owner appends next: the life goes on with another one.
            self.writer.fail(ShardLost(0, "a zombie was quicker"))

    def _wait(self, future: Future[None]) -> None:
        for _ in range(1000):
            if future.done() or self.writer.failure is not None:
                break
            self._pump()
        if self.writer.failure is not None or not future.done():
            raise SimulatedCrash  # nothing was heard for long: the owner gives up
        future.result(0)

    def _aside(self, work) -> None:  # type: ignore[no-untyped-def]
        work()

    def _pump(self) -> None:
        self.stream.send(self.writer)
        self.stream.deliver()
        if self.writer.failure is not None:
            raise SimulatedCrash

    def open(self, wall_ns: int) -> None:
        super().open(wall_ns)
        # What they drop is gone for good once it is seen, or was answered.
        for name in ("housekeep", "purge", "cancel"):
            self._let_wait(name)

    def _let_wait(self, name: str) -> None:
        call = getattr(self.broker, name)

        def call_and_wait(*args: object) -> object:
            outcome = call(*args)
            self._wait(self.writer.barrier())
            return outcome

        setattr(self.broker, name, call_and_wait)

    def returned(self) -> None:
        """A call is answered once all is committed. What only adds to logs may be left under way,
        as if more calls came in the meantime."""
        waiting = [*self.writer._waiting, *self.writer._under_way]
        only_adds = all(each.kind is RecordKind.FRAMES for each in waiting)
        if not only_adds or self.rng.random() < 0.2:
            self._wait(self.writer.barrier())
        super().returned()

    def commit(self) -> None:
        """All is committed, or the owner has failed."""
        synced_ns = self.synced_ns
        super().commit()
        now_ns, self.synced_ns = self.synced_ns, synced_ns
        for _ in range(50):
            if self.writer.is_idle:
                break
            self._pump()
        if self.writer.failure is not None or not self.writer.is_idle:
            raise SimulatedCrash
        self.synced_ns = now_ns
        if self.rng.random() < 0.1:
            self.broker._engine.save()  # type: ignore[attr-defined]
        if self.rng.random() < 0.1:
            self._standby()
        if self.rng.random() < 0.1:
            self.counts["purged records"] += self.broker._engine.trims.purge(self.stream)  # type: ignore[attr-defined]

    def _step(self) -> None:
        super()._step()
        try:
            if self.rng.random() < 0.05:
                self.broker._engine.save()  # type: ignore[attr-defined]
            if self.rng.random() < 0.3:
                self._pump()
        except SimulatedCrash:
            self.crash(power_cut=True, within=True)

    def _standby(self) -> None:
        """Another node follows for a while."""
        other = self.rng.choice([node for node in NODES if node != self.node])
        here, self.node = self.node, other
        try:
            replica = Replica(
                f"/cache{other}",
                self.stream.name,
                clock=self.clock,
                files=self.disks[other],
                committer=self.committer,
            )
            follow(self.stream, replica, self.rng.randint(replica.fold.seq, self.stream.end))
            if self.rng.random() < 0.7:
                replica.close()
            else:  # killed
                self.disks[other] = self.disks[other].kill()
        finally:
            self.node = here
        self.counts["followed"] += 1

    # Ends: the owner is gone, and what it has not committed with it.

    def crash(self, *, power_cut: bool, within: bool = False) -> None:
        rng = self.rng
        at_ns, synced_ns, wall_ns = self.now_ns, self.synced_ns, self.clock.wall_ns()
        for _ in range(rng.choice((0, 0, 1, 2))):
            self._pump_as_far_as_it_goes()
        if self.writer.failure is None and rng.random() < 0.6:
            self.stream.send(self.writer)
        self._end(rng.choice(("kill", "kill", "power cut", "wiped", "dropped")))
        self.stream.lose_acks()
        self.stream.faults = NO_FAULTS
        if rng.random() < 0.6:
            self.node = rng.choice(NODES)
        while True:
            if rng.random() < 0.2:
                self.disks[self.node].crash_at(rng.randint(1, 60))
            try:
                self.open(wall_ns + rng.randrange(10**10))
                self._settle_down()
                break
            except SimulatedCrash:
                self.counts["crashed in recovery"] += 1
                self._end("kill")
                self.stream.lose_acks()
        self.files.mend()
        self.recover(at_ns, wall_ns, synced_ns, power_cut=True, within=True)
        self._begin_faults()

    def _settle_down(self) -> None:
        """What the start itself has written is committed."""
        if self.rng.random() < 0.3:
            self._zombies_speak()
        self._wait(self.writer.barrier())

    def _pump_as_far_as_it_goes(self) -> None:
        with suppress(SimulatedCrash):
            self._pump()

    def _end(self, how: str) -> None:
        self.note(f"{self.node}: {how}")
        self.counts[how] += 1
        node = self.node
        match how:
            case "kill":
                self.disks[node] = self.disks[node].kill()
            case "power cut":
                self.disks[node] = self.disks[node].crash(self.rng)
                self.boots[node] += 1
            case "wiped":
                self.disks[node] = SimulatedFiles()
            case "dropped":
                self._give_up()

    def _give_up(self) -> None:
        """The process goes on without the shard."""
        if self.broker.closed:  # it was just being handed over
            self.disks[self.node] = self.disks[self.node].kill()
            return
        self.disks[self.node].mend()
        logging.disable(logging.CRITICAL)
        try:
            self.writer.fail(ShardLost(0, "dropped"))
            self.broker.lost()
            with suppress(PenstockError):
                self.broker.close()
            self.disks[self.node]._dead = False
        except SimulatedCrash:
            self.disks[self.node] = self.disks[self.node].kill()
        finally:
            logging.disable(logging.NOTSET)

    def reopen(self) -> None:
        """A hand-over in order: another node goes on with all there is."""
        self.note("handed over")
        at_ns, wall_ns = self.now_ns, self.clock.wall_ns()
        self.stream.faults = NO_FAULTS
        self._wait(self.writer.barrier())  # or it is lost before it can be handed over
        self.broker.close()
        if self.rng.random() < 0.7:
            self.node = self.rng.choice(NODES)
        self.open(wall_ns + self.rng.randrange(10**10))
        self.recover(at_ns, wall_ns, at_ns, power_cut=False, within=False)
        self.counts["handed over"] += 1
        self._begin_faults()

    def _drain(self) -> None:
        self.stream.faults = NO_FAULTS
        super()._drain()
        self._wait(self.writer.barrier())
