"""The reference pages of the command line and the configuration are what the code makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.cli.app import COMMANDS
from penstock.cli.exits import Exit
from penstock.cli.reference import MARK, PARTS, docstrings_of
from penstock.config import ServerConfig
from penstock.configuration import load
from penstock.server.keys import RIGHTS, Role

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = DOCS / "reference"


@pytest.mark.parametrize("name", sorted(PARTS))
def test_a_page_is_as_the_code_makes_it(name: str) -> None:
    _, mark, made = (REFERENCE / name).read_text("utf-8").partition(MARK)
    assert mark
    assert made == PARTS[name](), "run: python -m penstock.cli.reference docs/reference"


def test_every_command_setting_and_exit_code_is_there() -> None:
    cli = (REFERENCE / "cli.md").read_text("utf-8")
    for command in COMMANDS:
        assert f"\n## penstock {command}\n" in cli
    assert docstrings_of(Exit).keys() == {code.name for code in Exit}
    assert set(ServerConfig.__struct_fields__) <= docstrings_of(ServerConfig).keys()


def test_the_example_of_a_configuration_can_be_loaded(tmp_path: Path) -> None:
    page = (REFERENCE / "config.md").read_text("utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "penstock.yaml").write_text(example)
    config = load(tmp_path / "penstock.yaml").config
    assert (config.idle_timeout_ms, config.body_bytes_max) == (120_000, 16 << 20)


def test_the_table_of_roles_is_what_keys_are_good_for() -> None:
    page = (DOCS / "howto" / "keys.md").read_text("utf-8")
    head, *rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\| role.*\n(?:\|.*\n)+", page, re.MULTILINE)[0].splitlines()
        if not line.startswith("|---")
    ]
    documented: dict[Role, frozenset[str]] = {
        row[0]: frozenset(
            right for right, may in zip(head[1:], row[1:], strict=True) if may == "yes"
        )  # type: ignore[misc]
        for row in rows
    }
    assert documented == RIGHTS


def test_the_commands_in_the_pages_are_commands() -> None:
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    for page in pages:
        for name in re.findall(r"`penstock ([a-z]+)[ `]", page.read_text("utf-8")):
            assert name in COMMANDS, f"{page.name}: penstock {name}"
