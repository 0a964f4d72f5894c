"""The docs are true: their examples run and print what they say, their tables are the code's.

Every ```python block of a page is run, in order and in an empty folder; a ```text block right
after one is what it prints.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.log import index, segment_header
from penstock.record import frame
from penstock.record.schema import FIELDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LOG_PAGE = ROOT / "docs" / "internals" / "log.md"

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"\s*```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


NEEDS_SPARK = ROOT / "docs" / "howto" / "spark.md"  # run by tests/spark, which has a session


@pytest.mark.parametrize("page", [p for p in PAGES if p != NEEDS_SPARK], ids=name_of)
def test_the_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_examples(page, tmp_path, monkeypatch)


def run_examples(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in BLOCK.finditer(text):
        if block[1] != "python":
            continue
        line = text.count("\n", 0, block.start()) + 1
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            # Blank lines first, so that a traceback shows the line of the page.
            exec(compile("\n" * line + block[2], str(page), "exec"), names)
        printed = PRINTED.match(text, block.end())
        assert output.getvalue() == (printed[1] if printed else ""), f"{page}:{line}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        assert goal.exists(), f"{page}: {target}"
        assert ROOT in [goal, *goal.parents], f"{page}: {target} leaves the project"
        if anchor:
            assert anchor in anchors(goal), f"{page}: {target}"


def test_every_page_can_be_reached_from_the_index() -> None:
    reached, todo = set(), [ROOT / "docs" / "README.md"]
    while todo:
        page = todo.pop()
        reached.add(page)
        found = [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
        todo += [p for p in found if p.suffix == ".md" and p not in reached]
    assert set(PAGES) <= reached


def links(page: Path) -> Iterator[str]:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
        link = target[0] or target[1]
        if not link.startswith(("https://", "http://")):
            yield link


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


# The format.


def rows(header: str) -> list[list[str]]:
    """The cells of every table of the log page that begins with these columns."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", LOG_PAGE.read_text("utf-8"), re.MULTILINE):
        cells = [
            [cell.strip().strip("`") for cell in line.strip("| \n").split("|")]
            for line in table.splitlines()
        ]
        if " | ".join(cells[0]).startswith(header):
            found += cells[2:]
    return found


def layout(struct_format: str, names: tuple[str, ...]) -> list[tuple[int, int, str]]:
    """Where each field of a struct lies, how long it is, and its name."""
    import struct

    at, found = 0, []
    for code, name in zip(re.findall(r"\d*[a-zA-Z]", struct_format), names, strict=True):
        size = struct.calcsize("<" + code)
        found.append((at, size, name))
        at += size
    return found


def test_the_tables_of_headers_are_the_structs() -> None:
    documented = [(int(at), int(size), name) for at, size, name, *_ in rows("at | bytes | field")]
    assert documented == [
        *layout(segment_header._COPY.format, segment_header.HeaderCopy._fields),
        *layout(frame._HEADER.format, frame.FrameHeader._fields),
        *layout(index._HEADER.format, index.IndexHeader._fields),
    ]
    assert documented[7 + 19][:2] == (80, 16)
    assert segment_header.SEGMENT_HEADER_BYTES == 64
    assert frame.HEADER_BYTES == 96
    assert index.HEADER_BYTES == 64


def test_the_table_of_columns_is_the_schema() -> None:
    documented = [(int(bit), name, kind) for bit, name, kind, *_ in rows("bit | column")]
    assert documented == [
        (bit, field.name, str(field.type) + ("" if field.nullable else " not null"))
        for bit, field in enumerate(FIELDS)
    ]
