"""`penstock worker` as a process: signals, crashes, and a server that goes away and comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.errors import InvalidInput
from tests.integration.worker.conftest import EVENT_S_MAX, Server, Working, until

MODULE = """
import os, time
import penstock

app = penstock.App()
other = 7

def say(line: str) -> None:  # in one write: print() would mix the lines of two handlers
    os.write(1, f"{line}\\n".encode())

@app.consumer("orders", group="g", concurrency=2, visibility="2s")
def work(body: str) -> None:
    say(f"begin {body}")
    while body != "quick" and not os.path.exists(f"{body} may end"):
        time.sleep(0.01)
    say(f"end {body}")
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(MODULE)
    with penstock.connect(tmp_path / "data") as ps:
        ps.create_topic("orders")
    return tmp_path / "data"


def publish(data: Path, *bodies: str) -> None:
    with penstock.connect(data) as ps:
        ps.publish_batch("orders", list(bodies))


_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    while _started:
        worker = _started.pop()
        if worker.poll() is None:
            worker.kill()
            worker.communicate()


def start(folder: Path, *args: str) -> subprocess.Popen[str]:
    worker = subprocess.Popen(
        [sys.executable, "-m", "penstock", "worker", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK")},
    )
    _started.append(worker)
    return worker


def wait_for(worker: subprocess.Popen[str], words: str) -> None:
    """Until it says so on stderr."""
    assert worker.stderr is not None
    assert any(words in line for line in worker.stderr)


def test_sigterm_lets_handlers_finish(data: Path) -> None:
    publish(data, "slow")
    worker = start(data.parent, "shop:app", "--data", "data")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "begin slow\n"
    worker.send_signal(signal.SIGTERM)
    wait_for(worker, "stopping: 1 messages in hand")
    (data.parent / "slow may end").touch()
    out, err = worker.communicate(timeout=EVENT_S_MAX)
    assert (worker.returncode, out) == (0, "end slow\n")
    assert "Traceback" not in err
    with penstock.connect(data) as ps:
        assert ps.stats("orders").groups[0].depth == 0


def test_a_folder_can_stand_in_for_the_server_that_the_app_names(data: Path) -> None:
    publish(data, "quick")
    named = 'penstock.App("https://queue.example", api_key="psk_x")'
    (data.parent / "shop.py").write_text(MODULE.replace("penstock.App()", named))
    worker = start(data.parent, "shop:app", "--data", "data")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "begin quick\n"
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=EVENT_S_MAX)
    assert worker.returncode == 0


def test_a_second_signal_does_not_wait(data: Path) -> None:
    publish(data, "stuck")
    worker = start(data.parent, "shop:app", "--data", "data")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "begin stuck\n"
    worker.send_signal(signal.SIGINT)
    wait_for(worker, "stopping: 1 messages in hand")
    assert worker.poll() is None
    worker.send_signal(signal.SIGINT)
    worker.communicate(timeout=EVENT_S_MAX)
    assert worker.returncode == 0
    with penstock.connect(data) as ps:
        (again,) = ps.receive("orders", "g")  # given back, not waiting for its lease to end
        assert again.delivery_count == 2


def test_killed_in_the_middle_the_message_comes_again(data: Path) -> None:
    publish(data, "first", "quick", "third")
    worker = start(data.parent, "shop:app", "--data", "data")
    assert worker.stdout is not None
    said = [worker.stdout.readline() for _ in range(4)]
    assert Counter(said) == Counter(
        ["begin first\n", "begin quick\n", "end quick\n", "begin third\n"]
    )
    worker.kill()  # there was a hand for the third, so the second is acked
    worker.communicate(timeout=EVENT_S_MAX)
    seen: dict[bytes | None, int] = {}
    with penstock.connect(data) as ps:
        while len(seen) < 2:
            (again,) = ps.receive("orders", "g", 1, wait="10s")
            seen[again.value] = again.delivery_count
        assert seen == {b"first": 2, b"third": 2}


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["shop"], 2, "give MODULE:APP"),
        (["nowhere:app"], 2, "there is no module 'nowhere'"),
        (["shop:other"], 2, "'other' of shop is no penstock.App; there is app"),
        (["shop:nothing"], 2, "is no penstock.App"),
        (["shop:app"], 2, "say where"),
        (["shop:app", "--data", "data", "--log-level", "loud"], 2, "log-level is 'loud'"),
        (["shop:app", "--data", "data", "--namespace", "empty"], 3, "there is no topic"),
        (["broken:app"], 2, "broken cannot be imported: ModuleNotFoundError: No module named"),
    ],
)
def test_what_is_wrong_is_said(data: Path, args: list[str], code: int, says: str) -> None:
    (data.parent / "broken.py").write_text("import of_theirs\n")
    worker = start(data.parent, *args)
    _, err = worker.communicate(timeout=EVENT_S_MAX)
    assert worker.returncode == code, err
    assert says in err
    assert "worker.py" not in err  # a traceback is of their module alone
    assert ('broken.py", line 1' in err) is (args[0] == "broken:app")


def test_a_worker_goes_on_when_its_server_was_killed_and_restarted(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        seen: list[str] = []
        app = penstock.App(server.url)

        @app.consumer("orders", group="g", concurrency=4, visibility="3s")
        def work(body: str) -> None:
            time.sleep(0.01)
            seen.append(body)

        with penstock.connect(server.url) as ps:
            ps.create_topic("orders", max_retries=None, backoff=("10ms", 1.0, "10ms"))
            ps.publish_batch("orders", [str(n) for n in range(100)])
            with Working(app):
                until(lambda: len(seen) > 20)
                server.kill_and_restart()
                ps.publish_batch("orders", [str(n) for n in range(100, 150)])
                until(lambda: set(seen) == {str(n) for n in range(150)})
            until(lambda: ps.stats("orders").groups[0].depth == 0)
    finally:
        server.stop()


def test_with_reload_it_starts_again_when_its_source_changes(data: Path) -> None:
    module = data.parent / "shop.py"
    publish(data, "quick")
    worker = start(data.parent, "shop:app", "--data", "data", "--reload")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "begin quick\n"
    assert worker.stdout.readline() == "end quick\n"
    module.write_text("this is no Python")
    wait_for(worker, "files have changed")
    wait_for(worker, "SyntaxError")  # it waits for the next change
    hook = "\n@app.on_startup\ndef greet() -> None:\n    say('hello again')\n"
    module.write_text(MODULE + hook)
    assert worker.stdout.readline() == "hello again\n"
    wait_for(worker, "at work")
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=EVENT_S_MAX)
    assert worker.returncode == 0


CPU_MODULE = """
import os
import penstock

app = penstock.App()

@app.consumer("orders", group="g", processes=2, results="answers")
def work(number: int) -> list[int]:
    return [number * number, os.getpid()]
"""


def test_cpu_work_runs_in_processes_that_end_with_the_worker(data: Path) -> None:
    (data.parent / "cpu.py").write_text(CPU_MODULE)
    with penstock.connect(data) as ps:
        ps.create_topic("answers")
        ps.publish_batch("orders", ["1", "2", "3", "4"])
    server = Server(data)
    try:
        worker = start(data.parent, "cpu:app", "--url", server.url)
        with penstock.connect(server.url) as ps:
            until(lambda: ps.stats("answers").messages == 4)
            answers = [json.loads(message.value or b"") for message in ps.peek("answers")]
        worker.send_signal(signal.SIGTERM)
        _, err = worker.communicate(timeout=EVENT_S_MAX)
        assert worker.returncode == 0, err
        assert sorted(square for square, _ in answers) == [1, 4, 9, 16]
        pids = {pid for _, pid in answers}
        assert worker.pid not in pids
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    finally:
        server.stop()


def test_a_handler_that_no_process_can_import_is_refused(tmp_path: Path) -> None:
    app = penstock.App(tmp_path / "data", auto_create=True)
    app.consumer("orders", group="g", processes=1)(lambda body: None)
    with pytest.raises(InvalidInput, match="define it at the top of a module"):
        Working(app).end()


def test_exit_of_a_handler_is_the_exit_of_the_worker(data: Path) -> None:
    publish(data, "quick")
    (data.parent / "shop.py").write_text(MODULE + "    raise SystemExit(5)\n")
    worker = start(data.parent, "shop:app", "--data", "data")
    _, err = worker.communicate(timeout=EVENT_S_MAX)
    assert worker.returncode == 5, err
