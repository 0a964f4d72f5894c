"""A fresh process that opens a log and tells what that costs: `python -m bench.probe FOLDER N`.

Prints JSON: seconds to open, and resident and anonymous memory above what the imports took, after
opening and after N random reads and finds. With --cold the files leave the page cache first.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

from penstock.log.local import LocalLog


def main(folder: str, lookups: int, cold: bool) -> None:
    if cold:
        _forget(folder)
    before = memory_mb()
    began = time.perf_counter()
    log = LocalLog.open(folder)
    open_s = time.perf_counter() - began
    opened = memory_mb()
    source = random.Random(lookups)
    for _ in range(lookups):
        batch = next(iter(log.read(source.randrange(log.start, log.end), 1)))
        log.find(batch.timestamp_us)
    used = memory_mb()
    log.close()
    found = {"open_s": open_s, "import_rss_mb": before["rss"]}
    for name, memory in (("open", opened), ("used", used)):
        found[f"{name}_rss_mb"] = memory["rss"] - before["rss"]
        found[f"{name}_anonymous_mb"] = memory["anonymous"] - before["anonymous"]
    print(json.dumps(found))


def memory_mb() -> dict[str, float]:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = {"rss": "VmRSS", "anonymous": "RssAnon"}
    return {name: int(fields[field].split()[0]) * 1024 / 1e6 for name, field in names.items()}


def _forget(folder: str) -> None:
    """Ask the kernel to drop the files' pages; clean ones go at once, and the log was synced."""
    for name in os.listdir(folder):
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), "--cold" in sys.argv)
