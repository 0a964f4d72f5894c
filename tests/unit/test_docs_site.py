"""`make docs` builds the site, and the reference of the Python API has what a program uses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import errors
from penstock.client.client import AsyncClient, Client
from penstock.errors import PenstockError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*command, "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_on_the_site(site: Path) -> None:
    docs = ROOT / "docs"
    pages = [path.relative_to(docs).with_suffix(".html") for path in docs.rglob("*.md")]
    pages = [page.with_name("index.html") if page.stem == "README" else page for page in pages]
    assert [str(page) for page in pages if not (site / page).exists()] == []


def test_every_page_is_in_the_navigation(site: Path) -> None:
    index = (site / "index.html").read_text("utf-8")
    navigation = set(re.findall(r'href="([^"#]+\.html)" class="md-nav__link"', index))
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert pages - navigation <= {"404.html", "index.html"}


def test_the_reference_has_every_name_that_a_program_uses(site: Path) -> None:
    shown = set(
        re.findall(r'id="(penstock[^"]*)"', (site / "reference" / "python.html").read_text("utf-8"))
    )
    wanted = {"penstock.connect", "penstock.aio.connect"}
    for client in (Client, AsyncClient):
        for name in dir(client):
            if not name.startswith("_"):
                wanted.add(f"penstock.client.client.{client.__name__}.{name}")
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, PenstockError):
            wanted.add(f"penstock.errors.{name}")
    for name in penstock.__all__:
        if name != "__version__":
            thing = getattr(penstock, name)
            wanted.add(f"penstock.{name}" if name == "connect" else full_name(thing))
    assert wanted - shown == set()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert re.findall(r'<(?:script|link rel="stylesheet")[^>]*"https?://[^"]+"', text) == []


def full_name(thing: type) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
