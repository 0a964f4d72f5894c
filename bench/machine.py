"""The facts that a reader needs to judge the figures: machine, kernel, versions, date."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

_PACKAGES = ("penstock", "pyarrow", "numpy", "crc32c", "queuelib", "persist-queue")


def facts(folder: Path) -> dict[str, str]:
    """Name to value, in the order of the report. `folder` is on the disk under test."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "load before the run": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(folder),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: _version(name) for name in _PACKAGES},
        "go": _go(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the mount that holds the folder: the longest mount point above it."""
    best, kind = "", "unknown"
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return kind
    for line in mounts:
        _, point, type_, *_ = line.split()
        inside = folder.resolve().is_relative_to(point)
        if inside and len(point) >= len(best):
            best, kind = point, type_
    return kind


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _go() -> str:
    try:
        told = subprocess.run(["go", "version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "not installed"
    return told.stdout.strip().removeprefix("go version ")
