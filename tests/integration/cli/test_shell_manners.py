"""A command among others: where it works, how it ends, and what shells make of it."""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock.__main__ import main
from penstock.cli.app import COMMANDS, build
from penstock.cli.exits import Exit
from penstock.cli.session import Session, Where
from penstock.errors import InvalidInput
from tests.integration.cli.shell import COMMAND, Done, Shell, environment, run


def until(process: subprocess.Popen[bytes], true: Callable[[], object]) -> None:
    """Wait for something that a process is about to do."""
    deadline = time.monotonic() + 60
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_where_comes_from_options_then_the_environment(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert run("topic", "create", "a", PENSTOCK_DATA=one).code == 0
    assert run("topic", "create", "b", "--data", two, PENSTOCK_DATA=one).code == 0
    names = [t["topic"] for t in run("topic", "list", "--json", PENSTOCK_DATA=two).json["topics"]]
    assert names == ["b"]
    by_flag = run("topic", "list", "--json", "--data", two, PENSTOCK_URL="http://127.0.0.1:9")
    assert by_flag.code == 0


@pytest.mark.parametrize(
    ("args", "environ", "says"),
    [
        ([], {}, "say where: --data FOLDER or --url URL"),
        (["--data", "x", "--url", "http://y"], {}, "give --data or --url, not both"),
        ([], {"PENSTOCK_DATA": "x", "PENSTOCK_URL": "y"}, "are both set"),
        (["--url", "localhost:8080"], {}, "did you mean http://localhost:8080?"),
    ],
)
def test_where_has_to_be_clear(args: list[str], environ: dict[str, str], says: str) -> None:
    done = run("topic", "list", *args, **environ)
    assert (done.code, says in done.err) == (2, True)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["peek", "orders", "--limit", "-1"], "Invalid value for '--limit'"),
        (["publish"], "Missing argument 'TOPIC'"),
        (["topic", "list", "--wrong"], "No such option: --wrong"),
        (["pubish", "x"], "No such command 'pubish'"),
        (["topic", "list"], "say where"),
    ],
)
def test_with_json_also_wrong_options_are_told_as_json(args: list[str], says: str) -> None:
    done = run(*args, "--json")
    assert (done.code, done.out) == (2, b"")
    error = json.loads(done.err)["error"]
    assert says in error.pop("message")
    assert error == {"code": "invalid_input", "retriable": False, "exit_code": 2}


def error_of(done: Done) -> dict[str, Any]:
    """What stderr says, which has to be one JSON document and no more."""
    (line,) = done.err.splitlines()
    error: dict[str, Any] = json.loads(line)["error"]
    assert error["exit_code"] == done.code
    return error


def test_with_json_a_bug_is_json_too_with_its_traceback(
    folder: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.client.client import Client

    def broken(self: Client) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Client, "all_stats", broken)
    folder("topic", "create", "orders")
    done = run("topic", "list", "--json", *folder.where)
    error = error_of(done)
    assert (done.code, done.out, error["code"]) == (Exit.FAILED, b"", "bug")
    assert error["message"] == "RuntimeError: a bug"
    assert "Traceback" in error["traceback"]


def test_with_json_what_was_done_before_an_error_is_in_it(folder: Shell) -> None:
    folder("topic", "create", "orders")
    done = folder(
        *("publish", "orders", "--json", "--batch", "1", "--format", "jsonl"),
        stdin=b'{"value": "a"}\n{"value": "b"}\nnonsense\n',
        code=2,
    )
    assert error_of(done)["notes"] == ["2 messages were published before that"]


def test_with_json_an_interrupt_is_told(folder: Shell) -> None:
    folder("topic", "create", "orders")
    folder("publish", "orders", "a")
    following = folder.start("consume", "orders", "-g", "g", "--follow", "--json")
    assert following.stdout is not None
    following.stdout.readline()
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=30)
    assert (following.returncode, out) == (Exit.INTERRUPTED, b"")
    assert error_of(Done(following.returncode, out, err.decode()))["code"] == "interrupted"


def test_with_json_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    session = Session(Where(Path("data"), None, None, "default"), as_json=True)
    with pytest.raises(InvalidInput, match="add --yes"):
        session.confirm("Delete topic orders?", yes=False)
    session.confirm("Delete topic orders?", yes=True)


def test_with_json_files_that_are_written_are_no_words_on_stderr(folder: Shell) -> None:
    folder("topic", "create", "orders")
    folder("publish", "orders", "a")
    done = folder("consume", "orders", "-g", "g", "--out", "x.jsonl", "--json")
    assert done.err == ""


def test_a_value_that_looks_like_the_option_is_a_value(folder: Shell) -> None:
    folder("topic", "create", "orders")
    done = run("publish", *folder.where, "orders", "--", "--json")
    assert done.code == 0
    assert "is at offset 0 of orders/0" in done.text
    assert folder("consume", "orders", "-g", "g").lines == ["--json"]


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_without_its_extra_the_command_says_what_to_install(words: list[str]) -> None:
    script = (
        "import sys; sys.modules['typer'] = None\n"
        f"sys.argv = ['penstock', 'topic', 'list', *{words!r}]\n"
        "from penstock.__main__ import main\n"
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert "pip install 'penstock[cli]'" in done.stderr
    if words:
        assert error_of(Done(done.returncode, b"", done.stderr))["code"] == "missing_extra"


def test_with_json_the_other_exit_codes_stay(folder: Shell) -> None:
    folder("topic", "create", "orders", "--json")
    folder("consume", "orders", "-g", "g", "--json", code=1)
    folder("topic", "create", "orders", "--json", code=4)
    assert "Usage" in folder("topic", "list", "--json", "--help").text


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_ends_it_and_gets_the_rest_back(
    folder: Shell, unbuffered: str
) -> None:
    folder("topic", "create", "orders", "backoff=1ms,1,1ms")
    folder("publish", "orders", stdin=b"".join(b"%099d\n" % n for n in range(20_000)))
    # Far more than a pipe holds, so that most of it cannot have been printed.
    line = " ".join([*COMMAND, "consume", "orders", "-g", "g", "--batch", "5000", *folder.where])
    done = subprocess.run(
        ["bash", "-c", f"{line} | head -n 1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment(PYTHONUNBUFFERED=unbuffered),
    )
    assert done.stdout.split() == [f"{0:099d}", str(int(Exit.BROKEN_PIPE))]
    assert done.stderr == ""
    left = folder("consume", "orders", "-g", "g", "--wait", "1s").lines
    assert int(left[-1]) == 19_999
    assert len(set(left)) == 20_000  # nothing of the batch that was not all printed is lost


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_ends_by_a_signal_and_acks_what_was_printed(
    folder: Shell, number: signal.Signals
) -> None:
    folder("topic", "create", "orders")
    folder("publish", "orders", "a", "b")
    following = folder.start("consume", "orders", "-g", "g", "--follow")
    assert following.stdout is not None
    assert [following.stdout.readline() for _ in range(2)] == [b"a\n", b"b\n"]
    following.send_signal(number)
    out, err = following.communicate(timeout=30)
    assert (following.returncode, out, err) == (Exit.INTERRUPTED, b"", b"")
    folder("consume", "orders", "-g", "g", code=1)


def test_a_file_that_was_not_finished_is_finished_at_the_signal(folder: Shell) -> None:
    folder("topic", "create", "orders")
    folder("publish", "orders", "a", "b")
    following = folder.start("consume", "orders", "-g", "g", "-f", "--out", "lake/")
    until(following, lambda: list((folder.cwd / "lake").glob("*.part")))
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=30)
    assert following.returncode == Exit.INTERRUPTED
    (file,) = (folder.cwd / "lake").iterdir()
    assert (file.suffix, file.read_text()) == (".txt", "a\nb\n")
    folder("consume", "orders", "-g", "g", code=1)


def test_killed_before_a_file_is_complete_everything_comes_again(folder: Shell) -> None:
    folder("topic", "create", "orders")
    folder("publish", "orders", "a", "b")
    (folder.cwd / "lake").mkdir()
    how = ["--out", "lake", "--visibility", "6s"]  # for a slow machine; it is waited for below
    following = folder.start("consume", "orders", "-g", "g", "-f", *how)
    until(following, lambda: list((folder.cwd / "lake").glob("*.part")))
    following.kill()
    following.communicate(timeout=30)
    assert sorted(folder("consume", "orders", "-g", "g", "--wait", "20s").lines) == ["a", "b"]


def test_a_pipe_is_published_as_it_comes(folder: Shell) -> None:
    folder("topic", "create", "orders")
    publishing = folder.start("publish", "orders", stdin=subprocess.PIPE)
    assert publishing.stdin is not None
    publishing.stdin.write(b"first\nsec")
    publishing.stdin.flush()
    log = folder.cwd / "data" / "topics" / "default" / "orders" / "00000" / "log"
    until(publishing, lambda: any(path.stat().st_size > 64 for path in log.glob("*.log")))
    publishing.stdin.write(b"ond\n")
    publishing.communicate(timeout=30)
    assert publishing.returncode == 0
    assert folder("consume", "orders", "-g", "g").lines == ["first", "second"]


def test_an_interrupted_publish_says_how_much_is_there(folder: Shell) -> None:
    folder("topic", "create", "orders")
    publishing = folder.start("publish", "orders", stdin=subprocess.PIPE)
    assert publishing.stdin is not None
    publishing.stdin.write(b"first\nsecond\nthi")
    publishing.stdin.flush()
    log = folder.cwd / "data" / "topics" / "default" / "orders" / "00000" / "log"
    until(publishing, lambda: any(path.stat().st_size > 64 for path in log.glob("*.log")))
    publishing.send_signal(signal.SIGINT)
    assert publishing.stderr is not None
    said = publishing.stderr.read()
    assert publishing.wait(30) == Exit.INTERRUPTED
    publishing.communicate()
    assert said == b"2 messages were published before that\n"
    assert folder("consume", "orders", "-g", "g").lines == ["first", "second"]


def test_an_interrupt_before_a_command_has_begun_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.__main__.import_module", interrupted)
    assert main() == Exit.INTERRUPTED


def test_every_command_explains_itself_and_teaches_by_example() -> None:
    for name in COMMANDS:
        done = run(name, "--help")
        assert done.code == 0, name
        app = build(name)
        assert isinstance(app, typer.Typer)
        module = importlib.import_module(f"penstock.cli.{COMMANDS[name].module}")
        if not hasattr(module, "commands"):
            assert f"penstock {name}" in done.text, f"{name} has no example"


def test_the_list_of_commands_says_what_the_commands_say() -> None:
    listed = run("--help").text
    for name, command in COMMANDS.items():
        assert command.help in listed
        module = importlib.import_module(f"penstock.cli.{command.module}")
        if not hasattr(module, "commands"):
            assert (getattr(module, name).__doc__ or "").splitlines()[0] == command.help


def test_help_is_quick_because_it_loads_no_command() -> None:
    script = (
        "import sys; sys.argv = ['penstock', '--help']\n"
        "from penstock.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'pyarrow', 'starlette', 'uvicorn', 'yaml', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "words", [["topic", "list"], ["publish", "orders", "a", "--key", "k"], ["stats", "orders"]]
)
def test_a_command_does_not_load_what_is_only_installed(folder: Shell, words: list[str]) -> None:
    folder("topic", "create", "orders")
    folder("publish", "orders", "a")
    script = (
        f"import sys; sys.argv = ['penstock', *{words!r}, *{folder.where!r}]\n"
        "from penstock.__main__ import command\n"
        "try:\n    command()\nexcept SystemExit:\n    pass\n"
        "heavy = {'pandas', 'pydantic', 'starlette', 'uvicorn', 'pyspark', 'rich.console'}\n"
        "heavy |= {'rich.progress', 'pyarrow.dataset', 'pyarrow.compute'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(("words", "is_frozen"), [(["topic", "list"], True), (["worker"], False)])
def test_a_command_does_not_look_for_garbage_as_it_ends(
    folder: Shell, words: list[str], is_frozen: bool
) -> None:
    folder("topic", "create", "orders")
    script = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 10_000, file=sys.stderr))\n"
        f"sys.argv = ['penstock', *{words!r}, *{folder.where!r}]\n"
        "from penstock.__main__ import command\n"
        "sys.exit(command())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == str(is_frozen)


def complete(*words: str) -> list[str]:
    """What bash is told when the tab key is pressed behind the last word."""
    environ = {
        "_PENSTOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("penstock", *words)),
        "COMP_CWORD": str(len(words)),
    }
    return [line for line in run(**environ).lines if line]


def test_a_shell_completes_commands_and_options() -> None:
    assert complete("to") == ["topic"]
    assert set(complete("topic", "")) >= {"create", "list", "describe", "alter"}
    assert complete("key", "create", "x", "--role", "re") == ["readonly"]
    assert "--priority" in complete("publish", "--pri")


def test_a_shell_completes_the_names_of_topics(sh: Shell) -> None:
    for name in ("orders", "orders-eu", "payments"):
        sh("topic", "create", name)
    assert complete("publish", *sh.where, "ord") == ["orders", "orders-eu"]
    assert complete("topic", "describe", *sh.where, "") == ["orders", "orders-eu", "payments"]
    assert complete("group", "list", *sh.where, "p") == ["payments"]
    assert complete("topic", "create", *sh.where, "ord") == []


def test_where_no_topics_can_be_found_the_shell_offers_none(tmp_path: Path) -> None:
    assert complete("publish", "--data", str(tmp_path / "nowhere"), "ord") == []
    assert complete("publish", "--url", "http://127.0.0.1:9", "ord") == []
    assert complete("publish", "ord") == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["pubish"], "No such command 'pubish'. Did you mean 'publish'?"),
        (["publish"], "Missing argument"),
        (["topic", "list", "--yaml"], "No such option"),
    ],
)
def test_wrong_words_are_exit_2(args: list[str], says: str) -> None:
    done = run(*args)
    assert (done.code, says in done.err) == (2, True), done.err


def test_a_bug_is_exit_7_and_shows_where(folder: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.client.client import Client

    def broken(self: Client) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Client, "all_stats", broken)
    folder("topic", "create", "orders")
    done = run("topic", "list", *folder.where)
    assert done.code == Exit.FAILED
    assert "RuntimeError: a bug" in done.err


def test_the_answer_no_at_a_question_changes_nothing(folder: Shell) -> None:
    folder("topic", "create", "orders")
    pid, terminal = os.forkpty()
    if pid == 0:  # the child, on a terminal of its own
        os.execve(
            sys.executable, [*COMMAND, "topic", "delete", "orders", *folder.where], environment()
        )
    shown = b""
    while b"?" not in shown:
        shown += os.read(terminal, 1024)
    os.write(terminal, b"n\n")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == Exit.NO
    assert folder("topic", "list", "--json").json["topics"][0]["topic"] == "orders"
