"""The reference page of the HTTP API lists what the code answers, no more and no less.

`python -m tests.unit.server.test_http_page` prints the tables for the page.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from penstock.broker.queue_calls import RECEIVE_MAX
from penstock.config import ServerConfig
from penstock.model.problem import STATUS
from penstock.server.http.endpoints import Endpoint
from penstock.server.http.routes import ENDPOINTS
from penstock.wire.columns import ARROW_TYPE

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "reference" / "http.md"
DEPLOY = DOCS / "howto" / "deploy.md"


def tables() -> dict[str, list[str]]:
    """The rows of each room's table."""
    rows: dict[str, list[str]] = {}
    for each in ENDPOINTS:
        path = f"/v1{each.path}" if each.in_namespaces else each.path
        rows.setdefault(each.tag, []).append(
            f"| `{each.method}` | `{path}` | {each.right or 'anybody'} | {asked(each)} | "
            f"{each.summary} |"
        )
    return rows


def asked(endpoint: Endpoint) -> str:
    options = [] if endpoint.options is None else msgspec.structs.fields(endpoint.options)
    found = [f"`?{field.name}`" for field in options]
    if endpoint.body_schema is not None:
        found += [f"`{field.name}`" for field in msgspec.structs.fields(endpoint.body_schema)]
    return ", ".join(found)


def test_every_address_is_listed_with_what_it_takes() -> None:
    text = PAGE.read_text("utf-8")
    listed = re.findall(r"^\| `(?:GET|PUT|POST|PATCH|DELETE)` .*$", text, re.MULTILINE)
    assert listed == [row for rows in tables().values() for row in rows]


def test_every_code_is_listed_with_its_status() -> None:
    text = PAGE.read_text("utf-8").partition("\n## Problems\n")[2]
    listed = dict(re.findall(r"^\| (\d{3}) \| (.*?) \|$", text, re.MULTILINE))
    codes = {
        code: int(status) for status, row in listed.items() for code in re.findall(r"`(\w+)`", row)
    }
    assert codes == STATUS


def test_the_page_speaks_of_the_right_types_and_limits() -> None:
    text = PAGE.read_text("utf-8")
    assert ARROW_TYPE in text
    assert f"{RECEIVE_MAX:,}" in text
    limits = dict(
        re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", DEPLOY.read_text("utf-8"), re.MULTILINE)
    )
    config = ServerConfig()
    assert limits["body_bytes_max"] == f"{config.body_bytes_max >> 20} MiB"
    assert limits["header_bytes_max"] == f"{config.header_bytes_max >> 10} KiB"
    for name in ("batch_messages_max", "polls_max", "request_timeout_ms", "idle_timeout_ms"):
        assert limits[name] == str(getattr(config, name))


if __name__ == "__main__":
    for tag, rows in tables().items():
        print(f"\n## {tag.capitalize()}\n")
        print("| method | address | right | takes | |\n|---|---|---|---|---|")
        print("\n".join(rows))
