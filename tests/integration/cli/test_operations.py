"""What operators do: statistics, keys, configuration, a benchmark, a server."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import urllib.request
from pathlib import Path

import pytest
import trustme

from penstock.server.keys import KeyStore
from tests.integration.cli.shell import COMMAND, Shell, environment, run


def test_stats_of_all_and_of_some(sh: Shell) -> None:
    sh("topic", "create", "orders")
    sh("topic", "create", "payments")
    sh("publish", "orders", "a", "b")
    sh("consume", "orders", "-g", "g", "--max", "1")
    everything = sh("stats", "--json").json
    assert everything["totals"]["messages"] == 2
    assert [t["topic"].rpartition("/")[2] for t in everything["topics"]] == ["orders", "payments"]
    assert len(sh("stats", "payments").lines) == 2
    assert sh("stats", "orders", "--json").json["topics"][0]["depth"] == 1
    sh("stats", "nowhere", code=3)


def test_stats_of_a_topic_say_how_long_its_messages_take(sh: Shell) -> None:
    sh("topic", "create", "orders")
    sh("publish", "orders", "a", "b")
    sh("consume", "orders", "-g", "billing", "--max", "2")
    (group,) = sh("stats", "orders", "--json").json["topics"][0]["groups"]
    assert (group["waited"]["count"], group["handled"]["count"]) == (2, 2)
    assert 0 < group["waited"]["p50_us"] <= group["waited"]["max_us"]
    head, row = sh("stats", "orders").lines[3:5]
    assert head.split()[:6] == ["topic", "group", "to", "do", "in", "flight"]
    assert re.search(
        r"orders +billing +0 +0 +[\d.]+ +[\d.]+ \w+ +[\d.]+ \w+ +[\d.]+ \w+ +[\d.]+ \w+$", row
    )


def test_stats_by_priority(sh: Shell) -> None:
    sh("topic", "create", "orders")
    sh("publish", "orders", "a", "b", "--priority", "high")
    sh("publish", "orders", "c")
    head, *rows = sh("stats", "orders", "--priorities").lines
    assert head.split()[:3] == ["topic", "priority", "ready"]
    ready = [row.split()[1:3] for row in rows]
    assert ready == [
        ["critical", "0"],
        ["high", "2"],
        ["normal", "1"],
        ["low", "0"],
        ["background", "0"],
    ]
    (stats,) = sh("stats", "orders", "--priorities", "--json").json["topics"]
    assert stats["partitions"][0]["lanes"]["high"]["ready"] == 2
    assert "named" in sh("stats", "--priorities", code=2).err


def test_stats_count_what_became_of_messages(sh: Shell) -> None:
    sh("topic", "create", "orders")
    head, row = sh("stats", "orders", "--counters").lines
    assert head.split()[1:4] == ["published", "delivered", "acked"]
    assert row.split()[1:] == ["0"] * 7
    assert sh("stats", "--counters", "--json").json["topics"][0]["counters"]["published"] == 0


def test_watching_goes_on_until_it_is_interrupted(sh: Shell) -> None:
    sh("topic", "create", "orders")
    watching = sh.start("stats", "--watch", "--every", "100ms", "--json")
    assert watching.stdout is not None
    assert watching.stderr is not None
    seen = [json.loads(watching.stdout.readline()) for _ in range(3)]
    assert len({each["time"] for each in seen}) == 3
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=30)
    assert (watching.returncode, err) == (0, b"")


def test_the_live_screen_shows_every_topic(folder: Shell) -> None:
    folder("topic", "create", "orders")
    folder("publish", "orders", "a")
    pid, terminal = os.forkpty()
    if pid == 0:  # the child, on a terminal of its own
        os.execve(
            sys.executable,
            [*COMMAND, "stats", "--watch", "--every", "100ms", *folder.where],
            environment(TERM="xterm", LINES="30"),
        )
    screen = b""
    while screen.count(b"Ctrl-C ends") < 2:
        screen += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"orders" in screen
    assert b"1 topics, 1 messages" in screen


def test_watching_without_a_terminal_prints_tables(folder: Shell) -> None:
    folder("topic", "create", "orders")
    watching = folder.start("stats", "--watch", "--every", "100ms")
    assert watching.stdout is not None
    lines = [watching.stdout.readline().split() for _ in range(6)]
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=30)
    assert watching.returncode == 0
    assert [line[0] for line in lines[1::3]] == [b"topic", b"topic"]
    assert [line[0] for line in lines[2::3]] == [b"orders", b"orders"]


def test_a_benchmark_measures_and_leaves_nothing(sh: Shell) -> None:
    sh("topic", "create", "orders")
    done = sh("bench", "--seconds", "100ms", "--clients", "2", "--size", "10", "--json").json
    assert [phase["phase"].partition(",")[0] for phase in done["phases"]] == [
        "publish",
        "publish",
        "receive + ack",
    ]
    published = sum(phase["messages"] for phase in done["phases"][:2])
    assert 0 < done["phases"][2]["messages"] <= published
    for phase in done["phases"]:
        assert 0 < phase["p50_us"] <= phase["p95_us"] <= phase["p99_us"] <= phase["max_us"]
        assert phase["rate"] == pytest.approx(phase["messages"] / phase["seconds"], rel=0.01)
    assert [
        t["topic"].rpartition("/")[2] for t in sh("topic", "list", "--json").json["topics"]
    ] == ["orders"]
    assert "publish, 100 at once" in sh("bench", "--seconds", "50ms").text


def test_keys_are_made_listed_and_revoked(folder: Shell) -> None:
    made = folder("key", "create", "ops", "--role", "admin")
    assert made.text.startswith("psk_")
    assert "never shown again" in made.err
    folder("key", "create", "shop", "--role", "producer", "--namespace", "shop")
    listed = folder("key", "list", "--json").json["keys"]
    assert [(k["name"], k["role"], k["namespace"]) for k in listed] == [
        ("ops", "admin", None),
        ("shop", "producer", "shop"),
    ]
    assert "sha256" not in folder("key", "list", "--json").text
    assert made.text.strip() not in folder("key", "list").text
    store = KeyStore.open(folder.cwd / "data")
    assert store.authenticate(made.text.strip()) is not None
    folder("key", "revoke", listed[0]["id"])
    assert store.authenticate(made.text.strip()) is None
    assert "[key_not_found]" in folder("key", "revoke", "ops", code=3).err
    assert "[key_exists]" in folder("key", "create", "shop", "--role", "admin", code=4).err
    folder("key", "create", "x", "--role", "king", code=2)


def test_a_damaged_key_file_is_exit_5(folder: Shell) -> None:
    folder("key", "create", "ops", "--role", "admin")
    (folder.cwd / "data" / "keys.json").write_text("{")
    assert "[keys_unreadable]" in folder("key", "list", code=5).err


def test_config_show_says_what_is_in_force_and_where_from(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text("port: 9000\nidle_timeout: 2m\n")
    how = ["--config", "penstock.yaml", "--set", "polls_max=7"]
    done = run("config", "show", *how, "--json", cwd=tmp_path, PENSTOCK_HOST="localhost").json
    assert done["port"] == {"value": 9000, "from": "penstock.yaml:1"}
    assert done["idle_timeout_ms"] == {"value": 120_000, "from": "penstock.yaml:2"}
    assert done["host"] == {"value": "localhost", "from": "PENSTOCK_HOST"}
    assert done["polls_max"] == {"value": 7, "from": "--set polls_max"}
    assert done["log_level"]["from"] == "default"
    shown = run("config", "show", cwd=tmp_path, PENSTOCK_CONFIG="penstock.yaml").lines
    assert ["port", "9000", "penstock.yaml:1"] in [line.split() for line in shown]
    (tmp_path / "penstock.yaml").write_text("prot: 9000\n")
    wrong = run("config", "show", *how, cwd=tmp_path)
    assert (wrong.code, "did you mean port?" in wrong.err) == (2, True)


def test_a_server_starts_and_stops_in_order(tmp_path: Path) -> None:
    shell = Shell(cwd=tmp_path, PENSTOCK_LOG_LEVEL="info")
    server = shell.start("serve", "--data", "data", "--port", "0")
    assert server.stderr is not None
    (line,) = [json.loads(server.stderr.readline())]
    assert line["level"] == "info"
    url = line["message"].removeprefix("listening on ")
    with urllib.request.urlopen(f"{url}/healthz", timeout=30) as answer:
        assert answer.status == 200
    assert run("topic", "list", "--data", tmp_path / "data").code == 0  # through its socket
    in_use = run("serve", "--data", tmp_path / "data", "--port", "0")
    assert in_use.code == 4
    assert url in in_use.err
    port = url.rpartition(":")[2]
    taken = run("serve", "--data", tmp_path / "other", "--port", port)
    assert (taken.code, "[port_in_use]" in taken.err) == (4, True)
    server.send_signal(signal.SIGTERM)
    out, err = server.communicate(timeout=30)
    assert server.returncode == 0
    assert b"Traceback" not in err
    assert all(json.loads(line) for line in [*out.splitlines(), *err.splitlines()])
    assert run("topic", "create", "orders", "--data", tmp_path / "data").code == 0


def test_a_running_server_notices_keys_that_the_command_line_makes(tmp_path: Path) -> None:
    shell = Shell(cwd=tmp_path)
    server = shell.start("serve", "--data", "data", "--port", "0")
    try:
        assert server.stderr is not None
        url = json.loads(server.stderr.readline())["message"].removeprefix("listening on ")
        where = ["--url", url]
        assert run("key", "list", *where, "--json").json == {"keys": []}
        token = run("key", "create", "ops", "--role", "admin", "--data", tmp_path / "data").text
        key = {"PENSTOCK_API_KEY": token.strip()}
        denied = run("key", "list", *where)
        assert (denied.code, "[unauthenticated]" in denied.err) == (5, True)
        made = run("key", "create", "ro", "--role", "readonly", *where, "--json", **key).json
        assert made["token"].startswith("psk_")
        names = [k["name"] for k in run("key", "list", *where, "--json", **key).json["keys"]]
        assert names == ["ops", "ro"]
        ro = {"PENSTOCK_API_KEY": made["token"]}
        assert run("key", "list", *where, **ro).code == 5
        again = run("key", "create", "ro", "--role", "readonly", *where, **key)
        assert (again.code, "[key_exists]" in again.err) == (4, True)
        assert run("key", "revoke", "ro", *where, **key).code == 0
        assert run("key", "revoke", "ro", *where, **key).code == 3
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)


def test_a_server_with_tls_and_an_authority_of_its_own(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    shell = Shell(cwd=tmp_path)
    how = ["--tls-cert", "both.pem", "--tls-key", "both.pem"]
    server = shell.start("serve", "--data", "data", "--port", "0", *how)
    try:
        assert server.stderr is not None
        url = json.loads(server.stderr.readline())["message"].removeprefix("listening on ")
        assert url.startswith("https://")
        trusting = ["--url", url, "--tls-ca", tmp_path / "ca.pem"]
        assert run("topic", "create", "orders", *trusting).code == 0
        assert run("key", "list", *trusting).code == 0
        by_environment = run(
            "topic", "list", PENSTOCK_URL=url, PENSTOCK_TLS_CA=f"{tmp_path}/ca.pem"
        )
        assert by_environment.code == 0
        for command in (["topic", "list"], ["key", "list"]):
            wary = run(*command, "--url", url)
            assert wary.code in (6, 7), wary
            assert "certificate" in wary.err
            assert run(*command, "--url", url, "--tls-ca", "nowhere.pem").code == 2
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)


TLS = ["--port", "0", "--data", "data", "--tls-cert"]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["serve", "--port", "70000"], 2, "from 0 to 65535"),
        (["serve", "--set", "prot=1"], 2, "did you mean port?"),
        (["serve", "--host", "0.0.0.0", "--port", "0"], 2, "penstock key create"),
        (["serve", "--tls-cert", "x.pem"], 2, "TLS needs both"),
        (["serve", *TLS, "none.pem", "--tls-key", "note"], 3, "none.pem: there is no such file"),
        (["serve", *TLS, "note", "--tls-key", "note"], 2, "tls_cert note is not a PEM file"),
        (["serve", *TLS, "cert.pem", "--tls-key", "cert.pem"], 2, "tls_key cert.pem is not a PEM"),
        (["serve", *TLS, "cert.pem", "--tls-key", "key.pem"], 2, "key.pem are damaged, or the key"),
        (["serve", *TLS, ".", "--tls-key", "key.pem"], 2, "tls_cert . cannot be read: Is a dir"),
        (["serve", "--port", "0", "--data", "note"], 2, "note is a file; data is the path of a"),
        (["topic", "create", "x", "--data", "note"], 2, "note is a file; --data takes"),
        (["key", "list", "--data", "note"], 2, "note is a file; --data takes"),
        (["serve", "--config", "nowhere.yaml"], 2, "there is no configuration file"),
        (["key", "list", "--url", "http://127.0.0.1:9"], 6, "no answer from"),
        (["key", "list", "--url", "ftp://x"], 2, "is not the URL of a server"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_a_code(
    tmp_path: Path, args: list[str], code: int, says: str
) -> None:
    (tmp_path / "note").write_text("not a folder, and not PEM")
    (tmp_path / "cert.pem").write_bytes(trustme.CA().issue_cert("a").cert_chain_pems[0].bytes())
    (tmp_path / "key.pem").write_bytes(trustme.CA().issue_cert("b").private_key_pem.bytes())
    done = run(*args, cwd=tmp_path)
    assert (done.code, done.out) == (code, b"")
    assert says in done.err
    assert "Traceback" not in done.err


def test_an_import_says_where_it_connects_to_before_it_waits(folder: Shell, tmp_path: Path) -> None:
    pytest.importorskip("kafka")
    (tmp_path / "kafka.toml").write_text("bootstrap_timeout_ms = 300\n")
    done = folder("import", "kafka", "127.0.0.1:1", "--settings", "kafka.toml", code=6)
    first, *rest = done.err.splitlines()
    assert first == "connecting to Kafka at 127.0.0.1:1"
    assert "no Kafka answers at 127.0.0.1:1" in "".join(rest)
