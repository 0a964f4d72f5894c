"""The dashboard that is committed was built from the sources beside it, and is small."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.server.http.routes.dashboard import STATIC

SOURCES = Path(__file__).parents[3] / "dashboard"
SETTINGS = ("index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts")
SCRIPT_BYTES_MAX = 80_000


def hash_of(folder: Path) -> str:
    """As `vite.config.ts` computes it."""
    found = [folder / name for name in SETTINGS]
    found += [path for path in (folder / "src").rglob("*") if path.suffix]
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in found):
        digest.update(f"{name}\n".encode() + path.read_bytes() + b"\n")
    return digest.hexdigest()


def test_what_is_committed_was_built_from_these_sources() -> None:
    built = (STATIC / "sources.sha256").read_text().strip()
    assert built == hash_of(SOURCES), "the dashboard is old: run `make dashboard`"


def test_the_page_loads_nothing_but_its_own_small_files() -> None:
    page = (STATIC / "index.html").read_text()
    named = set(re.findall(r'(?:src|href)="(?!data:)([^"]+)"', page))
    assert named == {f"./assets/{path.name}" for path in (STATIC / "assets").iterdir()}
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page)
    scripts = [path.read_bytes() for path in (STATIC / "assets").glob("*.js")]
    assert sum(len(gzip.compress(each, 9)) for each in scripts) < SCRIPT_BYTES_MAX


def test_the_lock_names_no_host() -> None:
    assert "resolved" not in (SOURCES / "package-lock.json").read_text()


@pytest.mark.torture
def test_building_it_again_gives_the_same_bytes(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here; on Debian: apt install npm")
    copy = tmp_path / "dashboard"
    shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("node_modules"))
    subprocess.run([npm, "ci", "--silent"], cwd=copy, check=True, timeout=300)
    built = tmp_path / "built"
    command = [npm, "exec", "--", "vite", "build", "--outDir", str(built), "--logLevel", "error"]
    subprocess.run(command, cwd=copy, check=True, timeout=300)
    assert _files(built) == _files(STATIC)


def _files(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
