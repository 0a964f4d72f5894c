"""Many processes, one folder: one of them owns it, and the others work through its socket."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.broker.api import Api
from penstock.broker.broker import Broker
from penstock.client.folder.host import Host
from penstock.client.folder.link import FolderLink
from penstock.client.local_link import LocalLink
from penstock.errors import (
    BrokerClosed,
    DataFolderInUse,
    InvalidInput,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from penstock.log.local_engine import LocalEngine
from tests.integration.broker.sharer import GROUP, TOPIC
from tests.integration.broker.world import until, values
from tests.integration.cli.shell import Shell
from tests.integration.server.process import ServerProcess

ROOT = Path(__file__).parents[3]

OWNER = """
import sys, penstock
with penstock.connect(sys.argv[1]) as ps:
    ps.create_topic("orders", partitions=2, exist_ok=True)
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def owner(folder: Path, program: str = OWNER) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the folder, until its input is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def end(process: subprocess.Popen[str]) -> None:
    """Let a process close its client."""
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0


def is_owner(ps: Any) -> bool:
    return isinstance(ps.link, LocalLink) or not ps.link.retries


def test_two_processes_publish_and_receive_at_the_same_time(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with Sharers(folder) as sharers:
        sharers.start("a")
        sharers.start("b")
        until(lambda: sharers.count("acked", "a-") > 20 and sharers.count("acked", "b-") > 20)
        sharers.stop()
    sharers.check()


def test_a_client_sees_what_the_owner_does_and_the_other_way_round(tmp_path: Path) -> None:
    with penstock.connect(tmp_path) as first, penstock.connect(tmp_path) as second:
        assert (is_owner(first), is_owner(second)) == (True, False)
        first.create_topic("orders", partitions=2)
        with pytest.raises(TopicExists):
            second.create_topic("orders")
        with pytest.raises(TopicNotFound):
            second.publish("order", b"x")
        second.publish("orders", b"x", key="k")
        (message,) = first.receive("orders", "g")
        assert message.value == b"x"
        second.ack("g", message.receipt)
        assert first.stats("orders").groups[0].depth == 0


def test_a_topic_is_made_on_demand_if_the_client_wants_that(tmp_path: Path) -> None:
    with penstock.connect(tmp_path), penstock.connect(tmp_path, auto_create=True) as ps:
        ps.publish("orders", b"x")
        assert values(ps.receive("others", "g")) == []
        ps.publish("later", b"x", delay="1h")
        assert ps.topics() == ["later", "orders", "others"]


def test_a_message_of_the_owner_wakes_a_client_that_waits(tmp_path: Path) -> None:
    with penstock.connect(tmp_path) as first, penstock.connect(tmp_path) as second:
        first.create_topic("orders")
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(second.receive, "orders", "g", wait="30s")
            until(lambda: guests_waiting(first) == 1)
            first.publish("orders", b"x")
            assert values(waiting.result(20)) == [b"x"]


def test_a_client_that_goes_away_while_it_waits_gets_nothing(tmp_path: Path) -> None:
    with penstock.connect(tmp_path) as first:
        first.create_topic("orders")

        async def wait_and_go() -> None:
            async with penstock.aio.connect(tmp_path) as second:
                waiting = asyncio.create_task(second.receive("orders", "g", wait="30s"))
                await asyncio.to_thread(until, lambda: guests_waiting(first) == 1)
                waiting.cancel()
                await asyncio.to_thread(until, lambda: not guests_waiting(first))

        asyncio.run(wait_and_go())
        first.publish("orders", b"x")
        assert values(first.receive("orders", "g")) == [b"x"]


def guests_waiting(ps: Any) -> int:
    return len(ps.link._api._broker.topic(ps._name("orders")).waiters)


# The owner goes.


@pytest.mark.parametrize("how", ["close", "kill"])
def test_a_client_that_waits_takes_the_folder_over(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "data"
    with owner(folder) as first, penstock.connect(folder) as second:
        assert not is_owner(second)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(second.receive, "orders", "g", wait="30s")
            if how == "kill":
                first.kill()
                first.wait()
            else:
                end(first)
            until(lambda: is_owner(second))
            with penstock.connect(folder) as third:
                assert not is_owner(third)
                third.publish("orders", b"x")
                assert values(waiting.result(20)) == [b"x"]


def test_on_an_event_loop_too(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def main() -> None:
        with owner(folder) as first:
            async with penstock.aio.connect(folder) as second:
                await second.publish("orders", b"x")
                waiting = asyncio.create_task(second.receive("orders", "other", wait="30s"))
                assert values(await waiting) == [b"x"]
                waiting = asyncio.create_task(second.receive("orders", "g", 2, wait="30s"))
                await waiting
                waiting = asyncio.create_task(second.receive("orders", "g", wait="30s"))
                await asyncio.to_thread(end, first)
                await asyncio.to_thread(until, lambda: is_owner(second))
                await second.publish_batch("orders", [b"y"])
                assert values(await waiting) == [b"y"]

    asyncio.run(main())


def test_leases_and_receipts_outlive_their_owner(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with owner(folder) as first, penstock.connect(folder) as second:
        second.publish_batch("orders", [b"a", b"b"], partition=0)
        done, held = second.receive("orders", "g", 2)
        first.kill()
        first.wait()
        done.ack()
        assert second.receive("orders", "g") == []
        held.nack(delay=0)
        assert values(second.receive("orders", "g")) == [b"b"]


def test_a_producer_and_a_stream_go_on_with_the_next_owner(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with owner(folder) as first, penstock.connect(folder) as second:
        stream = second.stream("orders", "audit", commit_every=None)
        with second.producer("orders") as out:
            out.send(b"a", "k").result()
            assert next_of(stream) == b"a"
            stream.commit()
            first.kill()
            first.wait()
            out.send(b"b", "k").result()
            assert next_of(stream) == b"b"
        stream.close()


def next_of(stream: Any) -> bytes:
    for _ in range(100):
        message = stream.next(1.0)
        if message is not None:
            return bytes(message.value)
    raise AssertionError("nothing came")


def test_a_publish_whose_answer_was_lost_is_stored_once(tmp_path: Path) -> None:
    """The broker stores everything, and the connection breaks before it says so."""
    broker = Broker(LocalEngine(tmp_path))
    api = LosesAnswers(broker)
    with Host(broker.folder) as host:
        host.serve(api)
        link = FolderLink(
            broker.folder, lambda: LocalLink(api), timeout_s=30, retry_for_s=20, auto_create=False
        )
        api.hang_up = link.socket.connections
        ps = penstock.client.client.Client(link, "default")
        ps.create_topic("orders", partitions=3)
        keys = [f"k{n}" for n in range(20)]
        api.left = 3
        ps.publish("orders", b"one")
        ps.publish_batch("orders", [b"plain"] * 5)
        ps.publish_batch("orders", keys, keys=keys)
        assert api.left == 0
        ps.publish("orders", b"one")
        stored = Counter(
            m.value for p in range(3) for m in ps.peek("orders", partition=p, limit=99)
        )
        assert stored == {b"one": 2, b"plain": 5} | {key.encode(): 1 for key in keys}
        ps.close()
    broker.close()


class LosesAnswers(Api):
    left = 0
    hang_up: Any = None

    def limited(self, answer_bytes_max: int) -> Api:
        return self

    def publish(self, *args: Any, **how: Any) -> Any:
        placed = super().publish(*args, **how)
        if self.left:
            self.left -= 1
            for connection in [*self.hang_up._busy]:
                connection.hang_up()
        return placed


def test_what_is_not_done_twice_is_not_tried_twice(tmp_path: Path) -> None:
    """Whether a purge was carried out is not known, when the owner gives no answer."""
    broker = Broker(LocalEngine(tmp_path))
    with Host(broker.folder) as host:
        host.serve(Api(broker))
        link = FolderLink(
            broker.folder,
            lambda: LocalLink(Api(broker)),
            timeout_s=0.2,
            retry_for_s=20,
            auto_create=False,
        )
        ps = penstock.client.client.Client(link, "default")
        ps.create_topic("orders")
        answer = threading.Event()
        broker.purge = lambda *_: answer.wait(20)  # type: ignore[assignment,method-assign]
        with pytest.raises(Unavailable, match="whether it was done is not known"):
            ps.purge("orders")
        answer.set()
        ps.close()
    broker.close()


# Who may have the folder.


def test_who_wants_it_alone_is_told_who_has_it(tmp_path: Path) -> None:
    with (
        penstock.connect(tmp_path),
        pytest.raises(DataFolderInUse, match=f"is in use by process {os.getpid()} on "),
    ):
        penstock.connect(tmp_path, exclusive=True)
    with (
        penstock.connect(tmp_path, exclusive=True),
        pytest.raises(DataFolderInUse, match=f"is in use by process {os.getpid()} on "),
    ):
        penstock.connect(tmp_path)
    with pytest.raises(InvalidInput, match="exclusive is 1"):
        penstock.connect(tmp_path, exclusive=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="exclusive is for a folder"):
        penstock.connect("http://127.0.0.1:1", exclusive=True)


def test_only_the_user_of_the_folder_may_connect(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with penstock.connect(tmp_path / "data"):
            mode = os.stat(tmp_path / "data" / "SOCKET").st_mode
    finally:
        os.umask(before)
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert not (tmp_path / "data" / "SOCKET").exists()


def test_a_socket_that_a_killed_owner_left_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with owner(folder) as first:
        first.kill()
        first.wait()
    assert (folder / "SOCKET").exists()
    with penstock.connect(folder) as second, penstock.connect(folder) as third:
        assert (is_owner(second), is_owner(third)) == (True, False)
        assert third.topics() == ["orders"]


def test_nobody_waits_for_a_killed_owner_of_a_folder_that_somebody_has_alone(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    with owner(folder) as first:
        first.kill()
        first.wait()
    with penstock.connect(folder, exclusive=True), pytest.raises(DataFolderInUse):
        penstock.connect(folder)


def test_who_connects_while_the_owner_closes_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.folder.opening._LISTENS_WITHIN_S", 0.0)
    first = penstock.connect(tmp_path)
    first.link._before_close()  # it listens no longer, and has not let go of the folder yet
    with ThreadPoolExecutor(1) as threads:
        connecting = threads.submit(penstock.connect, tmp_path)
        with pytest.raises(TimeoutError):
            connecting.result(0.2)
        first.close()
        with connecting.result(20) as second:
            assert is_owner(second)


def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    with penstock.connect(folder) as first, penstock.connect(folder) as second:
        first.create_topic("orders")
        assert second.topics() == ["orders"]


def test_a_file_system_without_sockets_has_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, address: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with penstock.connect(tmp_path) as ps:
        ps.create_topic("orders")
        with pytest.raises(DataFolderInUse):
            penstock.connect(tmp_path)


def test_a_stranger_on_the_socket_is_hung_up_on(tmp_path: Path) -> None:
    with penstock.connect(tmp_path) as ps:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n" + b"\0" * 64, b"\1\0\0\0" + b"\0" * 8 + b"\xc1"):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(tmp_path / "SOCKET"))
                sock.settimeout(20)
                sock.sendall(garbage)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 16):
                    pass
        assert ps.topics() == []


def test_more_connections_than_there_are_threads_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.folder.host.CONNECTIONS_MAX", 2)
    with penstock.connect(tmp_path) as first, ExitStack() as opened:
        first.create_topic("orders")
        clients = [opened.enter_context(penstock.connect(tmp_path)) for _ in range(2)]
        with pytest.raises(DataFolderInUse):
            penstock.connect(tmp_path, retry_for="100ms")
        clients[0].close()
        with penstock.connect(tmp_path) as another:
            assert another.topics() == ["orders"]


# Forks.


def in_child(work: Any) -> str:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            said = repr(work())
        except BaseException as exc:  # noqa: BLE001 - the parent reads what it was
            said = f"{type(exc).__name__}: {exc}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_to_connect_for_itself(tmp_path: Path) -> None:
    with penstock.connect(tmp_path) as first, penstock.connect(tmp_path) as second:
        first.create_topic("orders")
        second.publish("orders", b"x")
        for ps in (first, second):
            said = in_child(lambda ps=ps: ps.publish("orders", b"child"))
            assert said.startswith(BrokerClosed.__name__)
            assert "forked" in said

        def work() -> Any:
            with penstock.connect(tmp_path) as own:
                return own.publish("orders", b"own").offset

        assert in_child(work) == "1"
        assert values(second.receive("orders", "g", 10)) == [b"x", b"own"]
        first.publish("orders", b"y")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_does_not_keep_the_folder_of_its_parent(tmp_path: Path) -> None:
    """It has copies of the sockets; the clients are not to take them for the owner's."""
    program = OWNER.replace(
        "    sys.stdin.read()",
        "    import os, time\n    if not os.fork():\n        time.sleep(60)\n    sys.stdin.read()",
    )
    folder = tmp_path / "data"
    with penstock.connect(folder) as ps:
        ps.create_topic("orders", partitions=2)
    with owner(folder, program) as first, penstock.connect(folder) as second:
        second.publish("orders", b"x")
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        first.kill()
        first.wait()
        try:
            second.publish("orders", b"y")
            assert is_owner(second)
        finally:
            for child in children:
                os.kill(int(child), 9)


# Beside a command, a server.


def test_commands_work_beside_an_owner(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    sh = Shell("--data", str(folder), cwd=tmp_path)
    with owner(folder), penstock.connect(folder) as ps:
        sh("publish", "orders", "a", "b")
        assert sh("stats", "--json").json["totals"]["messages"] == 2
        assert sorted(sh("consume", "orders", "-g", "g", "--max", "2").lines) == ["a", "b"]
        assert ps.stats("orders").groups[0].depth == 0
        watching = sh.start("stats", "--watch", "--every", "100ms", "--json")
        assert watching.stdout is not None
        assert b'"messages":2' in watching.stdout.readline().replace(b" ", b"")
        watching.kill()
        watching.communicate()


def test_a_program_works_beside_a_server_on_its_folder(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", free_bytes_min=0) as server,
        penstock.connect(tmp_path / "data") as ps,
    ):
        ps.create_topic("orders")
        with penstock.connect(server.url) as far:
            far.publish("orders", b"x")
        assert values(ps.receive("orders", "g")) == [b"x"]


# Killed again and again.


class Sharers:
    """Processes on one folder, and all that they say."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self.said: list[tuple[int, str, str]] = []

    def start(self, name: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.broker.sharer", str(self._folder), name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        reader = threading.Thread(target=self._read, args=(process,))
        reader.start()
        self._processes.append(process)
        self._readers.append(reader)
        until(lambda: self.count("ready", name) > 0)

    def kill_owner(self) -> None:
        pid = int(re.findall(r"process (\d+) ", (self._folder / "LOCK").read_text())[0])
        for process in self._processes:
            if process.pid == pid:
                process.kill()
                process.wait()

    def stop(self) -> None:
        """Those that live close their clients."""
        for process in self._processes:
            if process.poll() is None:
                end(process)

    def count(self, event: str, prefix: str = "") -> int:
        return sum(e == event and v.startswith(prefix) for _, e, v in list(self.said))

    def values(self, event: str) -> set[str]:
        return {value for _, said, value in self.said if said == event}

    def check(self) -> None:
        """Every confirmed message is there once, no other twice, and what was acked is done."""
        acked_at = {value: at for at, event, value in self.said if event == "acked"}
        again = [v for at, e, v in self.said if e == "received" and at > acked_at.get(v, at)]
        assert again == []
        with penstock.connect(self._folder) as ps:
            stored: Counter[str] = Counter()
            for partition in range(2):
                pages = ps.peek(TOPIC, partition=partition, limit=1_000_000)
                stored.update((message.value or b"").decode() for message in pages)
            left = {(m.value or b"").decode() for m in ps.receive(TOPIC, GROUP, 100_000)}
        missing = self.values("published") - stored.keys()
        assert not missing
        assert [value for value, times in stored.items() if times > 1] == []
        assert left & acked_at.keys() == set()

    def __enter__(self) -> Sharers:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.kill()
        for process, reader in zip(self._processes, self._readers, strict=True):
            reader.join()
            process.wait()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.close()
            process.stdin.close()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):  # a killed process may leave half of one
                at, event, value = line.split()
                self.said.append((int(at), event, value))


def kill_owners(folder: Path, kills: int) -> Sharers:
    with Sharers(folder) as sharers:
        for name in ("a", "b", "c"):
            sharers.start(name)
        for number in range(kills):
            before = sharers.count("acked")
            until(lambda before=before: sharers.count("acked") > before + 30)  # type: ignore[misc]
            sharers.kill_owner()
            before = sharers.count("published")
            until(lambda before=before: sharers.count("published") > before)  # type: ignore[misc]
            sharers.start(f"k{number}")
        sharers.stop()
    sharers.check()
    return sharers


def test_owners_that_are_killed_lose_nothing_and_store_nothing_twice(tmp_path: Path) -> None:
    kill_owners(tmp_path / "data", 10)


@pytest.mark.torture
def test_a_hundred_owners_are_killed(tmp_path: Path) -> None:
    sharers = kill_owners(tmp_path / "data", 100)
    print(f"\n100 owners killed: {len(sharers.values('published')):,} messages confirmed, ", end="")
    print(f"{len(sharers.values('acked')):,} acked")
