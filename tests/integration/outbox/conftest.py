"""Each test runs on every database that is installed here."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.outbox import create_inbox, create_table
from penstock.outbox.database import open_url
from tests.data_folder import folder, ps
from tests.integration.outbox import databases

__all__ = ["folder", "ps"]

Connect = Callable[[], Any]


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    if databases.postgres_programs() is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt install postgresql)")
    with databases.postgresql() as url:
        yield url


@pytest.fixture(scope="session")
def mysql_url() -> Iterator[str]:
    if not databases.has_mariadb():
        pytest.skip("MariaDB is not installed (Debian: apt install mariadb-server)")
    with databases.mariadb() as url:
        with closing(open_url(url.replace("/shop", "/mysql"))) as connection:
            connection.cursor().execute("CREATE DATABASE shop")
        yield url


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database with the tables of outbox and inbox."""
    if request.param == "sqlite":
        sqlite3.connect(tmp_path / "shop.db").close()
        found = f"sqlite:///{tmp_path / 'shop.db'}"
    else:
        found = request.getfixturevalue(f"{request.param}_url")
    with closing(open_url(found)) as connection:
        cursor = connection.cursor()
        for table in ("penstock_outbox", "penstock_inbox", "orders"):
            cursor.execute(f"DROP TABLE IF EXISTS {table}")
        create_table(connection)
        create_inbox(connection)
        cursor.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    return found


@pytest.fixture
def connect(url: str) -> Connect:
    return lambda: open_url(url)


@pytest.fixture
def shop(connect: Connect) -> Iterator[Any]:
    """The connection of the program that publishes; its transactions begin by hand."""
    with closing(connect()) as connection:
        yield connection
