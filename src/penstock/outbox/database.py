"""Databases as their drivers give them: which one a connection belongs to, and how it is asked.

No driver is imported here but by `open_url`, for who names a database by its URL.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import InvalidInput, MissingDriver

DatabaseKind: TypeAlias = Literal["sqlite", "postgresql", "mysql"]

Rows: TypeAlias = list[tuple[Any, ...]]

_KIND_OF_DRIVER: dict[str, tuple[DatabaseKind, str]] = {
    "sqlite3": ("sqlite", "?"),
    "psycopg": ("postgresql", "%s"),
    "psycopg2": ("postgresql", "%s"),
    "pg8000": ("postgresql", "%s"),
    "pymysql": ("mysql", "%s"),
    "MySQLdb": ("mysql", "%s"),
    "mysql": ("mysql", "%s"),
    "mariadb": ("mysql", "?"),
}
_KIND_OF_NAME: dict[str, DatabaseKind] = {
    **{kind: kind for kind in get_args(DatabaseKind)},
    "mariadb": "mysql",
}
_ASYNC_HINT = (
    "in an async session of SQLAlchemy, await session.run_sync(lambda s: outbox.publish(s, …))"
)
_PLACEHOLDERS = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric_dollar": "$"}


class Database(NamedTuple):
    """A connection, and what has to be known to ask it. Statements are written with `?`."""

    kind: DatabaseKind
    placeholder: str
    run: Callable[[str, tuple[Any, ...]], Any]
    """Runs a statement in the connection's transaction; what returns can be fetched from."""

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """How many rows it concerned."""
        return int(self.run(self._in_its_style(statement), tuple(parameters)).rowcount)

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        return list(self.run(self._in_its_style(statement), tuple(parameters)).fetchall())

    def _in_its_style(self, statement: str) -> str:
        if self.placeholder != "$":
            return statement.replace("?", self.placeholder)
        first, *rest = statement.split("?")
        return first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))


def database_of(connection: Any) -> Database:
    """A connection of a DB-API driver, of Django, or a connection or session of SQLAlchemy."""
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if iscoroutinefunction(getattr(connection, "commit", None)):
        # Its `execute` would return before anything was done, and the message be lost.
        raise InvalidInput(f"{kind} is asynchronous: {_ASYNC_HINT}")
    if hasattr(connection, "get_bind"):  # a session of SQLAlchemy
        connection = connection.connection()
    if hasattr(connection, "exec_driver_sql"):
        dialect = connection.dialect
        return Database(
            _kind_of_name(dialect.name),
            _PLACEHOLDERS[dialect.paramstyle],
            connection.exec_driver_sql,
        )
    if hasattr(connection, "vendor"):  # Django's
        return Database(_kind_of_name(connection.vendor), "%s", _with_cursor(connection))
    for base in type(connection).__mro__:
        found = _KIND_OF_DRIVER.get(base.__module__.partition(".")[0])
        if found is not None:
            return Database(*found, _with_cursor(connection))
    raise InvalidInput(
        f"{kind} is no connection of {', '.join(_KIND_OF_DRIVER)}, SQLAlchemy or Django. "
        f"I{_ASYNC_HINT[1:]}"
    )


def open_url(url: str) -> Any:
    """A connection that commits each statement by itself: `sqlite:///shop.db`,
    `postgresql://user@host/shop`, `mysql://user:password@host/shop`."""
    parts = urlsplit(url)
    scheme = parts.scheme.partition("+")[0]
    if scheme == "sqlite":
        path = unquote(parts.path.removeprefix("/"))
        if not path:
            raise InvalidInput(f"{url!r} names no file; sqlite:///shop.db, or sqlite:////with/root")
        if not Path(path).is_file():
            raise InvalidInput(f"there is no database {path}")
        return _driver("sqlite3", "").connect(path, isolation_level=None, timeout=30)
    if scheme in ("postgresql", "postgres"):
        return _driver("psycopg", "psycopg[binary]").connect(
            url.replace(parts.scheme, "postgresql", 1), autocommit=True
        )
    if scheme in ("mysql", "mariadb"):
        options = dict(parse_qsl(parts.query))
        return _driver("pymysql", "pymysql").connect(
            unix_socket=options.get("unix_socket"),
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 3306,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=parts.path.removeprefix("/"),
            autocommit=True,
        )
    raise InvalidInput(
        f"{url!r} is no database URL; it begins with sqlite:///, postgresql:// or mysql://"
    )


def errors_of(connection: Any) -> tuple[type[Exception], ...]:
    """What the driver raises; every driver of DB-API 2 calls it `Error`."""
    errors = [
        getattr(import_module(base.__module__.partition(".")[0]), "Error", None)
        for base in type(connection).__mro__
        if base.__module__.partition(".")[0] in _KIND_OF_DRIVER
    ]
    return tuple(error for error in errors if isinstance(error, type))


class RelayLock:
    """Held by the one relay of a database that is at work. It ends with its connection: a relay
    that dies leaves nothing to be cleaned up, and no transaction is open while it publishes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._file: int | None = None
        self._held = False

    def take(self) -> bool:
        """Whether it is held, now or already."""
        if not self._held:
            self._held = {
                "sqlite": self._take_file,
                "postgresql": self._ask("SELECT pg_try_advisory_lock(5796031, 1)"),
                "mysql": self._ask("SELECT GET_LOCK('penstock_outbox', 0)"),
            }[self._database.kind]()
        return self._held

    def release(self) -> None:
        """Only a file has to be let go; the other locks end with the connection."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._held = None, False

    def _ask(self, statement: str) -> Callable[[], bool]:
        return lambda: bool(self._database.rows(statement)[0][0])

    def _take_file(self) -> bool:
        path = self._database.rows("PRAGMA database_list")[0][2]
        if not path:
            return True  # in memory, where nobody else is
        if self._file is None:
            self._file = os.open(f"{path}-penstock-relay", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _kind_of_name(name: str) -> DatabaseKind:
    if name not in _KIND_OF_NAME:
        raise InvalidInput(f"{name} is no database of the outbox; {', '.join(_KIND_OF_NAME)} are")
    return _KIND_OF_NAME[name]


def _with_cursor(connection: Any) -> Callable[[str, tuple[Any, ...]], Any]:
    def run(statement: str, parameters: tuple[Any, ...]) -> Any:
        cursor = connection.cursor()
        cursor.execute(statement, parameters)
        return cursor

    return run


def _driver(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingDriver(package) from None
