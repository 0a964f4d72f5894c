"""persist-queue: its file queue, and its queue with acks in a table of SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.harness import Contender, Sample, stopwatch

try:
    import persistqueue
except ImportError:
    persistqueue = None

_FILE = "Queue with its defaults: pickle, renames its info file, fsync every 100"
_ACK = "SQLiteAckQueue with its defaults: pickle, WAL, an fsync for each commit"
_MISSING = "" if persistqueue else "persist-queue is not installed; make setup installs it"


def put(values: Sequence[bytes]) -> Contender:
    def run(folder: Path) -> Sample:
        # Its temporary files must be on the same disk, or each put would copy instead of rename.
        queue = persistqueue.Queue(str(folder / "queue"), tempdir=str(folder))
        with stopwatch(len(values)) as sample:
            for value in values:
                queue.put(value)
        return sample

    return Contender("persist-queue put", run, _FILE, _MISSING)


def get_and_ack(values: Sequence[bytes], *, fsync: bool = True) -> Contender:
    """Every message taken, its bytes looked at, and acked by its id, one after the other."""
    name = "persist-queue get + ack" + ("" if fsync else " without fsync")
    settings = _ACK if fsync else _ACK.replace("an fsync", "but synchronous OFF: no fsync")

    def run(folder: Path) -> Sample:
        queue = persistqueue.SQLiteAckQueue(str(folder / "queue"))
        connections = {queue._putter, queue._getter}
        for connection in connections:  # filling it is not timed
            connection.execute("PRAGMA synchronous=OFF")
        for value in values:
            queue.put(value)
        for connection in connections if fsync else ():
            connection.execute("PRAGMA synchronous=FULL")
        total_bytes = 0
        with stopwatch(len(values)) as sample:
            for _ in values:
                taken = queue.get(block=False, raw=True)
                total_bytes += len(taken["data"])
                queue.ack(id=taken["pqid"])
        queue.close()
        if total_bytes != sum(map(len, values)):
            raise RuntimeError(f"persist-queue gave back {total_bytes:,} bytes, not what it got")
        return sample

    return Contender(name, run, settings, _MISSING)
