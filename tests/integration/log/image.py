"""A log's folder as plain bytes, to be damaged and laid down again, on disk or in memory."""

from __future__ import annotations

from pathlib import Path

from penstock.clock import ManualClock
from penstock.config import LogConfig
from penstock.log.commit import ManualCommitter
from penstock.log.files import FileSystem
from penstock.log.local import LocalLog
from tests.simulation.disk import SimulatedFiles

Image = dict[str, bytes]
"""The files of a folder by their names."""

FOLDER = "log"


def image_of(files: FileSystem, folder: str) -> Image:
    """What lies in a folder now, as another process would see it."""
    return {name: files.read(f"{folder}/{name}") for name in files.list(folder) if name != "LOCK"}


def in_memory(image: Image) -> SimulatedFiles:
    """The folder `FOLDER` of a simulated disk."""
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    for name, data in image.items():
        file = files.create(f"{FOLDER}/{name}")
        file.append([data])
        file.sync()
        file.close()
    files.sync_folder(FOLDER)
    return files


def on_disk(image: Image, folder: Path) -> None:
    folder.mkdir()
    for name, data in image.items():
        (folder / name).write_bytes(data)


def open_log(
    folder: str | Path, config: LogConfig | None = None, files: FileSystem | None = None
) -> LocalLog:
    """A log without a thread and a clock of its own."""
    clock = ManualClock()
    return LocalLog.open(folder, config, files=files, clock=clock, committer=ManualCommitter(clock))
