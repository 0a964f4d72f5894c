"""ElasticMQ, a server with the API of Amazon SQS: one process, queues in memory.

It is fetched with Maven, once, into the cache.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from bench.peers import maven
from bench.servers.base import free_port

VERSION = "1.7.1"
SETTINGS = f"ElasticMQ {VERSION} with its defaults: queues in memory, nothing on disk"

_WANTED = (f"org.elasticmq:elasticmq-server_2.13:{VERSION}",)
_START_S_MAX = 60
_STOP_S_MAX = 20


def fetch(cache: Path) -> str:
    """Fetch what is not there yet; empty, or why that was not possible."""
    if why := maven.missing("ElasticMQ"):
        return why
    if not maven.fetched(_jars(cache), _WANTED):
        return f"Maven could not fetch ElasticMQ {VERSION}: is a repository within reach?"
    return ""


@contextmanager
def server(cache: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """The URL of a server, and its process."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    config = folder / "elasticmq.conf"
    config.write_text(_config(port))
    command = ["java", "-Xmx1g", f"-Dconfig.file={config}", "-cp", f"{_jars(cache)}/*"]
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "org.elasticmq.server.Main"],
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(process, port, log)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S_MAX
    while True:
        try:
            return urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
        except HTTPError:
            return None
        except (URLError, OSError):
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"ElasticMQ does not answer:\n{said}") from None
        time.sleep(0.1)


def _config(port: int) -> str:
    return (
        'include classpath("application.conf")\n'
        f'node-address {{ protocol = http, host = localhost, port = {port}, context-path = "" }}\n'
        f'rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1" }}\n'
        "rest-stats { enabled = false }\n"
    )


def _jars(cache: Path) -> Path:
    return cache.resolve() / "elasticmq" / VERSION
