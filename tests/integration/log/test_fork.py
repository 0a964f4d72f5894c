"""A process that is forked from one with an open log: it cannot write to it, nor spoil it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.config import LogConfig
from penstock.errors import BrokerClosed, DataFolderInUse, LogClosed, PenstockError
from penstock.log.local import LocalLog
from penstock.record.batch import Batch
from tests.unit.log.reading import values

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def outcome_in_child(work: Callable[[], object]) -> str:
    """What becomes of some work in a forked process: the error's name, or what it returns."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            said = repr(work())
        except PenstockError as exc:
            said = f"{type(exc).__name__}: {exc}"
        except BaseException as exc:  # noqa: BLE001 - the child must end here
            said = f"unexpected {exc!r}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def test_a_log_is_closed_in_a_child_and_goes_on_in_its_parent(tmp_path: Path) -> None:
    with LocalLog.open(tmp_path / "log", LogConfig(fsync="always")) as log:
        log.append(Batch.build(["first"])).durable.result()
        said = outcome_in_child(lambda: log.append(Batch.build(["child"])))
        assert said.startswith(LogClosed.__name__)
        assert "forked" in said
        assert outcome_in_child(log.close) == "None"
        assert outcome_in_child(lambda: values(log)) == "[b'first']"
        with pytest.raises(DataFolderInUse):
            LocalLog.open(tmp_path / "log")
        log.append(Batch.build(["parent"])).durable.result()
    with LocalLog.open(tmp_path / "log") as log:
        assert values(log) == [b"first", b"parent"]


def test_a_child_that_lives_on_does_not_hold_the_folder(tmp_path: Path) -> None:
    log = LocalLog.open(tmp_path / "log")
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    log.close()
    LocalLog.open(tmp_path / "log").close()
    os.close(writing)
    os.waitpid(pid, 0)


def test_a_child_can_have_a_log_of_its_own(tmp_path: Path) -> None:
    def work() -> list[bytes | None]:
        with LocalLog.open(tmp_path / "other", LogConfig(fsync="always")) as other:
            other.append(Batch.build(["mine"])).durable.result(20)
            return values(other)

    with LocalLog.open(tmp_path / "log", LogConfig(fsync="always")) as log:
        log.append(Batch.build(["a"])).durable.result()
        assert outcome_in_child(work) == "[b'mine']"


def test_a_client_refuses_to_work_in_a_child(tmp_path: Path) -> None:
    with penstock.connect(tmp_path / "data") as ps:
        ps.create_topic("orders")
        ps.publish("orders", "first")
        for work in (
            lambda: ps.publish("orders", "child"),
            lambda: ps.publish_batch("orders", ["child"]),
            lambda: ps.receive("orders", "g"),
            lambda: ps.create_topic("other"),
        ):
            said = outcome_in_child(work)
            assert said.startswith((BrokerClosed.__name__, LogClosed.__name__)), said
            assert "forked" in said
        assert outcome_in_child(ps.close) == "None"
        said = outcome_in_child(lambda: penstock.connect(tmp_path / "data", exclusive=True))
        assert said.startswith(DataFolderInUse.__name__)
        ps.publish("orders", "parent")
    with penstock.connect(tmp_path / "data") as ps:
        assert [m.value for m in ps.receive("orders", "g")] == [b"first", b"parent"]
