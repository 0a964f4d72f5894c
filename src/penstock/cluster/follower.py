"""A standby: the files of a shard follow its stream, so that its next owner has little to read."""

from __future__ import annotations

import logging
import threading

from penstock.cluster.jetstream import JetStreamShard
from penstock.cluster.replica import Replica
from penstock.cluster.shard_reader import ShardReader
from penstock.errors import CacheDamaged, PenstockError, ShardDamaged

_logger = logging.getLogger("penstock.cluster")

_SAVE_EVERY = 2000  # records
_PAUSE_S = 1.0
_WAIT_S = 5.0
"""For more records, at a time."""


class Follower:
    """A thread that reads. `stop` gives the replica to whoever takes the shard over."""

    def __init__(self, stream: JetStreamShard, replica: Replica) -> None:
        self.stream = stream
        self.replica = replica
        self._stop = threading.Event()
        self._reader = ShardReader(stream.nats, stream.stream, replica.fold.seq + 1)
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-standby-{stream.shard}", daemon=True
        )
        self._thread.start()

    @property
    def seq(self) -> int:
        """How far it is."""
        return self.replica.fold.seq

    def stop(self) -> Replica:
        self._stop.set()
        self._reader.wake()
        self._thread.join()
        return self.replica

    def _run(self) -> None:
        unsaved = 0
        while not self._stop.is_set():
            try:
                for seq, data in self._reader.fetch(_WAIT_S):
                    self.replica.take(seq, data)
                    unsaved += 1
                    if self._stop.is_set():
                        break
                if unsaved >= _SAVE_EVERY:
                    self.replica.save()
                    unsaved = 0
            except (CacheDamaged, ShardDamaged) as exc:
                _logger.warning("%s: its files are fetched again: %s", self.replica.folder, exc)
                self.replica.wipe()
                self._begin_again()
            except (PenstockError, OSError) as exc:
                _logger.info("standby of shard %d: %s", self.stream.shard, exc)
                self._begin_again()
        self._reader.close()

    def _begin_again(self) -> None:
        self._reader.close()
        self._reader = ShardReader(self.stream.nats, self.stream.stream, self.replica.fold.seq + 1)
        self._stop.wait(_PAUSE_S)
