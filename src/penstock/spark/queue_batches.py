"""The files of `mode=queue`: batches of leased messages, and what is known of those that failed.

    <batch>.arrow     messages with their receipts, which wait for their batch to be done
    <batch>.runs      a byte for each query that began it
    <batch>.error     what the last of them ended with, if somebody has told (`supervise.py`)
    <batch>.waiting   messages of a failed batch that wait for their own turn
    <batch>.suspect   one message that failed alone, and waits for another one to succeed

A batch that failed runs again as its first half, and the other half waits, until a message that
fails stands alone. It is rejected if anything has succeeded since it was in a batch with others:
then it is not the database, or the network, that is down. A second half is written before the
first one is cut short, so a crash leaves messages in both, and they are done once: what is acked
cannot be held any longer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextlib import suppress

import pyarrow as pa

from penstock.spark.table_files import TableFiles

ERROR_CHARACTERS_MAX = 2000
_FAILURES = b"failures"
_SUCCESSES = b"successes"
_NOTED = "successes"


class QueueBatches:
    """Those of one group, in a folder that the driver and all executors see, or in an object
    store."""

    def __init__(self, folder: str, storage: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._files = TableFiles(folder, storage)

    def has(self, name: str) -> bool:
        return bool(name) and self._files.exists(f"{name}.arrow")

    def add(self, rows: pa.Table, kind: str = "arrow") -> str:
        """Keep messages under a new name, which this returns."""
        name = uuid.uuid4().hex
        self.write(name, rows, kind)
        return name

    def write(self, name: str, rows: pa.Table, kind: str = "arrow") -> None:
        written = pa.BufferOutputStream()
        with pa.ipc.new_file(written, rows.schema) as out:
            out.write_table(rows)
        self._files.write(f"{name}.{kind}", written.getvalue().to_pybytes())

    def read(self, name: str, kind: str = "arrow") -> pa.Table:
        with self._files.arrow(f"{name}.{kind}") as rows:
            return rows.read_all()

    def count_run(self, name: str) -> int:
        """How many queries have begun this batch: this one, and those that failed."""
        return self._count(f"{name}.runs")

    def halve(self, name: str, rows: pa.Table) -> pa.Table:
        """Let the second half wait; returns the first one, which is the batch now."""
        half = -(-len(rows) // 2)
        notes = {_FAILURES: str(failures_of(rows) + 1), _SUCCESSES: str(self.successes)}
        rows = rows.replace_schema_metadata(notes)
        self.add(rows.slice(half), "waiting")
        self.write(name, rows.slice(0, half))
        self._forget_runs(name)
        self.count_run(name)
        return rows.slice(0, half)

    def suspect(self, name: str, rows: pa.Table, error: str) -> None:
        """A message that failed alone."""
        metadata = {"error": error[:ERROR_CHARACTERS_MAX]}
        self.write(name, rows.replace_schema_metadata(metadata), "suspect")
        self.forget(name)

    def suspects(self) -> list[tuple[str, str, str]]:
        """Of each its name, its receipt, and what it failed with."""
        found = []
        for name in self._names("suspect"):
            rows = self.read(name, "suspect")
            error = (rows.schema.metadata or {}).get(b"error", b"").decode()
            found += [(name, receipt, error) for receipt in rows.column("receipt").to_pylist()]
        return found

    def waiting_receipts(self) -> list[str]:
        """Those of all messages that are in no batch at present."""
        return [
            receipt
            for kind in ("waiting", "suspect")
            for name in self._names(kind)
            for receipt in self.read(name, kind).column("receipt").to_pylist()
        ]

    def take_waiting(self) -> str:
        """Make a batch of messages that wait; "" if there are none."""
        for name in self._names("waiting"):
            # Who is killed in between does this again, under the same name.
            self.write(name, self.read(name, "waiting"))
            self._files.remove(f"{name}.waiting")
            return name
        return ""

    @property
    def successes(self) -> int:
        """How many batches were done since one failed, while something of it was left."""
        return self._counted(_NOTED)

    def note_success(self) -> None:
        if self.waiting_receipts():
            self._count(_NOTED)
        else:
            self.forget_successes()

    def forget_successes(self) -> None:
        self._forget(_NOTED)

    def error_of(self, name: str) -> str:
        """What the last run of a batch ended with; "" if nobody has told."""
        try:
            return self._files.read(f"{name}.error").decode(errors="replace")
        except FileNotFoundError:
            return ""

    def note_error(self, name: str, error: str) -> None:
        if self.has(name):
            text = error[:ERROR_CHARACTERS_MAX]
            self._files.write(f"{name}.error", text.encode())

    def forget(self, name: str) -> None:
        self._forget(f"{name}.arrow")
        self._forget_runs(name)

    def forget_suspects(self) -> None:
        for name in self._names("suspect"):
            self._forget(f"{name}.suspect")

    def forget_waiting(self) -> None:
        for name in self._names("waiting"):
            self._forget(f"{name}.waiting")

    def remove_leftovers(self, but: str, older_s: float) -> None:
        """Files of batches that never ran, whose leases are long over."""
        old = time.time() - older_s
        for other, written in self._files.times().items():
            kept = other.startswith(f"{but}.") or other.endswith((".waiting", ".suspect"))
            if not kept and other != _NOTED and written < old:
                self._forget(other)

    def _forget_runs(self, name: str) -> None:
        for kind in ("runs", "error"):
            self._forget(f"{name}.{kind}")

    def _forget(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._files.remove(path)

    def _count(self, path: str) -> int:
        """One more; how many there are now. Only the driver counts."""
        count = self._counted(path) + 1
        self._files.write(path, b"." * count)
        return count

    def _counted(self, path: str) -> int:
        try:
            return len(self._files.read(path))
        except FileNotFoundError:
            return 0

    def _names(self, kind: str) -> list[str]:
        """Oldest first."""
        times = self._files.times()
        names = [name for name in times if name.endswith(f".{kind}")]
        names.sort(key=lambda name: (times[name], name))
        return [name.removesuffix(f".{kind}") for name in names]


def failures_of(rows: pa.Table) -> int:
    """In how many batches that failed these messages were before they were in this one."""
    return int((rows.schema.metadata or {}).get(_FAILURES, b"0"))


def successes_of(rows: pa.Table) -> int:
    """How many batches had been done when these messages were last in one with others."""
    return int((rows.schema.metadata or {}).get(_SUCCESSES, b"0"))
