"""Real databases, each on a folder of its own, stopped when the tests are over."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

STOP_SECONDS = 20


def postgres_programs() -> Path | None:
    """Where Debian puts PostgreSQL's programs, or where PATH finds them."""
    found = shutil.which("initdb")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return Path(found).resolve().parent if found else next(iter(folders), None)


@contextmanager
def postgresql() -> Iterator[str]:
    """A server that listens on a socket in its folder; its URL."""
    programs = postgres_programs()
    assert programs is not None
    folder = _folder_of("postgres")
    data = folder / "data"
    user = _user("postgres")
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "shop", "-A", "trust", "--no-sync"],
        check=True,
        stdout=subprocess.DEVNULL,
        user=user,
    )
    server = subprocess.Popen(
        [programs / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-F"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=user,
    )
    try:
        _wait_for(folder / ".s.PGSQL.5432", server)
        ready = [programs / "pg_isready", "-h", folder, "-t", "10"]
        _until(lambda: subprocess.call(ready, stdout=subprocess.DEVNULL) == 0)
        yield f"postgresql://shop@/postgres?host={folder}"
    finally:
        _stop(server, folder)


@contextmanager
def mariadb() -> Iterator[str]:
    folder = _folder_of("mysql")
    data, user = folder / "data", _user("mysql")
    install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}"]
    subprocess.run(
        [*install, "--auth-root-authentication-method=normal", "--skip-test-db"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=user,
    )
    socket_path = folder / "socket"
    program = shutil.which("mariadbd") or "/usr/sbin/mariadbd"
    server = subprocess.Popen(
        [
            program,
            "--no-defaults",
            f"--datadir={data}",
            f"--socket={socket_path}",
            "--skip-networking",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=user,
    )
    try:
        _wait_for(socket_path, server)
        yield f"mysql://root@/shop?unix_socket={socket_path}"
    finally:
        _stop(server, folder)


def has_mariadb() -> bool:
    found = shutil.which("mariadbd") or os.path.exists("/usr/sbin/mariadbd")
    return bool(found and shutil.which("mariadb-install-db"))


def _folder_of(user: str) -> Path:
    """A short path, which a socket needs, that belongs to who runs the server."""
    folder = Path(mkdtemp(prefix="penstock-"))
    number = _user(user)
    if number is not None:
        shutil.chown(folder, number)
    return folder


def _user(name: str) -> str | None:
    """Neither server starts as root."""
    return name if os.geteuid() == 0 else None


def _wait_for(path: Path, server: subprocess.Popen[bytes]) -> None:
    _until(lambda: path.exists() or server.poll() is not None)
    assert server.poll() is None, "the database did not start"


def _until(done: object) -> None:
    end = time.monotonic() + 60
    while not done():  # type: ignore[operator]
        assert time.monotonic() < end, "the database did not start in time"
        time.sleep(0.05)


def _stop(server: subprocess.Popen[bytes], folder: Path) -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(STOP_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
