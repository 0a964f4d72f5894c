"""litequeue: a table of SQLite, in its WAL mode, as a queue with a lock and a done mark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.harness import Contender, Sample, stopwatch

try:
    import litequeue
except ImportError:
    litequeue = None

_SETTINGS = "LiteQueue with its defaults: WAL, synchronous NORMAL, so no fsync for a commit"
_MISSING = "" if litequeue else "litequeue is not installed; make setup installs it"


def pop_and_done(values: Sequence[bytes]) -> Contender:
    """Every message popped, its text looked at, and marked as done, one after the other."""
    texts = [value.hex()[: len(value)] for value in values]  # it stores text only

    def run(folder: Path) -> Sample:
        queue = litequeue.LiteQueue(folder / "queue.db")
        with queue.transaction():
            for text in texts:
                queue.put(text)
        total = 0
        with stopwatch(len(texts)) as sample:
            while (message := queue.pop()) is not None:
                total += len(message.data)
                queue.done(message.message_id)
        queue.close()
        if total != sum(map(len, texts)):
            raise RuntimeError(f"litequeue gave back {total:,} letters, not what it was given")
        return sample

    return Contender("litequeue pop + done", run, _SETTINGS, _MISSING)
