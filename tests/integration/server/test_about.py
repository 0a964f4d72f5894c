"""The server itself: health, metrics, logs, its description, TLS, starting and stopping."""

from __future__ import annotations

import io
import json
import logging
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock.broker.broker import Broker
from penstock.cli.serve import _JsonLines
from penstock.clock import ManualClock
from penstock.errors import BrokerClosed, DataFolderInUse, InvalidInput, ProtocolError, Unavailable
from penstock.log.local_engine import LocalEngine
from penstock.server.access_log import AccessLog
from penstock.server.keys import KeyStore
from tests.integration.broker.world import Background, QuickFiles, until
from tests.integration.server.asking import Http, talk
from tests.integration.server.running import RunningServer


def test_health_readiness_and_version(http: Http, server: RunningServer) -> None:
    assert http.get("/healthz").json == {"status": "ok"}
    assert http.get("/readyz").json == {"status": "ready"}
    assert http.get("/version").json == {"name": "penstock", "version": penstock.__version__}
    server.door.stop()
    assert http.get("/healthz").status == 200
    assert http.get("/readyz").status == 503


def test_metrics_tell_what_there_is(http: Http) -> None:
    http.ask("PUT", "/v1/topics/orders", {"partitions": 2})
    messages = [{"value": "x", "priority": p, "partition": 0} for p in ("high", "low", "low")]
    http.post("/v1/topics/orders/messages", {"messages": [*messages, {"value": "y", "delay": 60}]})
    taken = http.post("/v1/topics/orders/groups/g/receive", {"max_messages": 2}).json["messages"]
    http.post("/v1/topics/orders/groups/g/reject", {"receipts": [taken[0]["receipt"]]})
    http.post("/v1/stream-groups/audit/join", {"topics": ["orders"]})
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.body.decode()
    for line in (
        'penstock_topic_depth{topic="orders"} 2.0',
        'penstock_topic_dead{topic="orders"} 1.0',
        'penstock_topic_delayed{topic="orders"} 1.0',
        'penstock_partition_end{partition="0",topic="orders"} 3.0',
        'penstock_group_depth{group="g",partition="0",topic="orders"} 2.0',
        'penstock_group_in_flight{group="g",priority="low",topic="orders"} 1.0',
        'penstock_group_ready{group="g",priority="low",topic="orders"} 1.0',
        'penstock_stream_lag{group="audit",partition="0",topic="orders"} 3.0',
        'penstock_messages_published_total{topic="orders"} 3.0',
        'penstock_messages_delivered_total{topic="orders"} 2.0',
        'penstock_messages_rejected_total{topic="orders"} 1.0',
        'penstock_messages_dead_lettered_total{topic="orders"} 1.0',
        'penstock_messages_acked_total{topic="orders"} 0.0',
        'penstock_requests_total{endpoint="publish",status="201"} 1.0',
        'penstock_request_seconds_count{endpoint="receive"} 1.0',
        "penstock_open_polls 0.0",
    ):
        assert line in text, line


def test_metrics_tell_how_long_messages_take(tmp_path: Path) -> None:
    clock = ManualClock()
    orders, waits_s = "/v1/namespaces/shop/topics/orders", (0.0003, 0.5, 3.0, 20_000.0)
    with (
        Broker(
            LocalEngine(tmp_path / "data", clock=clock, files=QuickFiles()), housekeeping=False
        ) as broker,
        RunningServer(broker) as server,
        Http(server.port) as http,
    ):
        http.ask("PUT", orders, {})
        for wait_s in waits_s:
            http.post(f"{orders}/messages", {"value": "x", "priority": "high"})
            clock.advance(wait_s)
            taken = http.post(f"{orders}/groups/g/receive", {}).json["messages"]
            clock.advance(0.25)
            http.post(f"{orders}/groups/g/ack", {"receipts": [taken[0]["receipt"]]})
            broker.housekeep()
        found = histograms(http.get("/metrics").body.decode())
        assert set(found) == {"penstock_wait_seconds", "penstock_handling_seconds"}
        ((labels, waited),) = found["penstock_wait_seconds"].items()
        assert labels == ("shop/orders", "g", "high")
        assert (waited["count"], waited["sum"]) == (4, pytest.approx(sum(waits_s)))
        assert waited["+Inf"] == 4
        edges = [le for le in waited if le not in ("count", "sum", "+Inf")]
        assert [float(le) for le in edges] == [4**n / 1e6 for n in range(4, 17)]
        for le in edges:  # all of them lie at edges that the finer buckets have too
            assert waited[le] == sum(wait_s < float(le) for wait_s in waits_s), le
        ((_, handled),) = found["penstock_handling_seconds"].items()
        assert (handled["count"], handled["sum"]) == (4, pytest.approx(1.0))
        http.ask("DELETE", orders)
        assert histograms(http.get("/metrics").body.decode()) == {}


def histograms(text: str) -> dict[str, dict[tuple[str, ...], dict[str, float]]]:
    """The latencies of messages as Prometheus reads them: by name, labels and edge."""
    found: dict[str, dict[tuple[str, ...], dict[str, float]]] = {}
    for family in text_string_to_metric_families(text):
        if family.name in ("penstock_wait_seconds", "penstock_handling_seconds"):
            assert family.type == "histogram"
            for sample in family.samples:
                labels = sample.labels
                place = labels["topic"], labels["group"], labels["priority"]
                what = labels.get("le", sample.name.rpartition("_")[2])
                found.setdefault(family.name, {}).setdefault(place, {})[what] = sample.value
    return found


def test_a_thousand_topics_are_told_of_quickly(http: Http, broker: Broker) -> None:
    from penstock.model.names import topic_name

    for number in range(1000):
        broker.create_topic(topic_name(f"t{number}"), {})
    for path in ("/v1/stats", "/v1/stats/topics?sort=depth", "/metrics"):
        began = time.monotonic()
        assert http.get(path).status == 200
        assert time.monotonic() - began < 5, path


def test_every_request_is_a_line_in_the_log(broker: Broker) -> None:
    out = io.BytesIO()
    with RunningServer(broker, log=AccessLog(out)) as server, Http(server.port) as http:
        http.get("/v1/topics", traceparent="00-abc-def-01")
        http.post("/v1/topics/none/messages", {"value": "x"})
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("GET", "/v1/topics", 200),
        ("POST", "/v1/topics/none/messages", 404),
    ]
    assert lines[0]["trace"] == "00-abc-def-01"
    assert (lines[1]["code"], lines[1]["bytes_in"]) == ("topic_not_found", 14)
    assert all(line["client"] == "127.0.0.1" and line["ms"] >= 0 for line in lines)


def test_the_log_says_whose_key_was_refused_and_when(broker: Broker, tmp_path: Path) -> None:
    out = io.BytesIO()
    keys = KeyStore.open(tmp_path / "data")
    token = keys.create("till", "producer").token
    log = AccessLog(out)
    with (
        RunningServer(broker, keys, log, rate_per_key=0.001, burst_per_key=2) as server,
        Http(server.port, token) as http,
        Http(server.port, "psk_wrong") as stranger,
    ):
        statuses = [http.get(path).status for path in ("/v1/topics", "/v1/keys", "/v1/topics")]
        statuses.append(stranger.get("/v1/topics").status)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert statuses == [200, 403, 429, 401] == [line["status"] for line in lines]
    assert [line.get("key") for line in lines] == ["till", "till", "till", None]
    assert token not in out.getvalue().decode()
    record = logging.makeLogRecord({"msg": "started"})
    written = json.loads(_JsonLines().format(record))["time"]
    for line in lines:
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
        assert re.sub(r"\d", "0", line["time"]) == re.sub(r"\d", "0", written)
    assert abs(datetime.fromisoformat(lines[-1]["time"]).timestamp() - record.created) < 60


def test_head_works_where_get_does(server: RunningServer) -> None:
    end = b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    for path in (b"/healthz", b"/docs", b"/v1/topics", b"/v1/stats?", b"/v1/topics/none"):
        head, _, body = talk(server.port, b"GET " + path + end).partition(b"\r\n\r\n")
        assert body
        assert talk(server.port, b"HEAD " + path + end) == head + b"\r\n\r\n", path


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/healthz", "GET, HEAD"),
        ("PATCH", "/v1/topics/orders/messages", "DELETE, GET, HEAD, POST"),
        ("HEAD", "/v1/fetch", "POST"),
        ("OPTIONS", "/v1/namespaces/a/topics/orders", "DELETE, GET, HEAD, PATCH, PUT"),
    ],
)
def test_what_does_not_work_says_what_does(http: Http, method: str, path: str, allow: str) -> None:
    answer = http.ask(method, path)
    assert (answer.status, answer.headers["allow"]) == (405, allow)


def test_the_page_needs_nothing_from_outside(http: Http) -> None:
    answer = http.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.findall(rb"(?:https?:)?//[a-z]", answer.body.replace(b"// ", b""))


def test_the_description_names_every_address(http: Http) -> None:
    description = http.get("/openapi.json").json
    assert description["openapi"] == "3.1.0"
    paths = description["paths"]
    assert "/v1/topics/{topic}/messages" in paths
    assert "/v1/namespaces/{namespace}/topics/{topic}/messages" in paths
    ids = [op["operationId"] for methods in paths.values() for op in methods.values()]
    assert len(ids) == len(set(ids))
    described = json.dumps(description)
    refs = set(re.findall(r"#/components/schemas/(\w+)", described))
    assert refs <= description["components"]["schemas"].keys()
    new = description["components"]["schemas"]["NewMessage"]["properties"]
    assert new["dedup_id"]["description"].startswith("A message with an id that was seen")


# TLS.


def test_tls_with_an_authority_of_your_own(broker: Broker, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    cert = authority.issue_cert("127.0.0.1")
    cert.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    cert.private_key_pem.write_to_path(tmp_path / "key.pem")
    with RunningServer(
        broker, tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem")
    ) as server:
        with penstock.connect(server.url, tls_ca=tmp_path / "ca.pem") as ps:
            ps.create_topic("orders")
            ps.publish_batch("orders", [b"x" * 1000] * 1000)
            assert len(ps.receive_batch("orders", "g", 1000)) == 1000
            assert ps.receive("orders", "g", wait="20ms") == []
        with pytest.raises(Unavailable, match="certificate"):
            penstock.connect(server.url, retry_for=0)
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with (
            socket.create_connection(("127.0.0.1", server.port)) as sock,
            context.wrap_socket(sock, server_hostname="127.0.0.1") as safe,
        ):
            safe.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert b"200 OK" in safe.recv(1000)


# Connecting.


@pytest.mark.parametrize(
    "url", ["http://", "ftp://x", "http://x:y", "http://u:p@x", "http://x?a=b", "http://x:99999"]
)
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        penstock.connect(url)


def test_a_server_that_is_not_there_is_told_of() -> None:
    with pytest.raises(Unavailable, match="cannot be reached"):
        penstock.connect("http://127.0.0.1:1", retry_for="100ms")


def test_something_else_that_answers_is_told_of() -> None:
    def answer(sock: socket.socket) -> None:
        with sock.accept()[0] as connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 404 Nope\r\ncontent-length: 2\r\n\r\nno")

    with socket.create_server(("127.0.0.1", 0)) as sock:
        answering = Background(lambda: answer(sock))
        with pytest.raises(ProtocolError, match="not in the way of a Penstock server"):
            penstock.connect(f"http://127.0.0.1:{sock.getsockname()[1]}", retry_for=0)
        answering.result()


def test_a_closed_client_says_so(server: RunningServer) -> None:
    ps = penstock.connect(server.url)
    ps.create_topic("orders")
    waiting = Background(lambda: ps.receive("orders", "g", wait="20s"))
    until(lambda: len(server.door.polls) == 1)
    ps.close()
    ps.close()
    with pytest.raises(BrokerClosed):
        waiting.result()
    with pytest.raises(BrokerClosed):
        ps.publish("orders", b"x")


# Starting and stopping, as a process.

Start = Callable[..., tuple["subprocess.Popen[str]", str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def start(**config: Any) -> tuple[subprocess.Popen[str], str]:
        script = (
            "import sys, msgspec\n"
            "from penstock.config import ServerConfig\n"
            "from penstock.server.run import serve\n"
            "serve(msgspec.json.decode(sys.argv[1], type=ServerConfig),"
            " lambda url: print(url, flush=True))\n"
        )
        given = {"data": str(tmp_path / "data"), "port": 0, "log_level": "error"} | config
        process = subprocess.Popen(
            [sys.executable, "-c", script, json.dumps(given)], stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_answers_polls_and_leaves_a_clean_folder(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    process, url = start(free_bytes_min=0)
    port = int(url.rpartition(":")[2])
    with Http(port) as http:
        http.ask("PUT", "/v1/topics/orders")
        http.post("/v1/topics/orders/messages", {"value": "kept"})

        def poll() -> Any:
            with Http(port) as other:
                return other.post(
                    "/v1/topics/orders/groups/g/receive", {"partition": 0, "wait": 25}
                )

        assert poll().json["messages"][0]["value"] == "kept"
        waiting = Background(poll)
        until(lambda: http.get("/v1/stats").json["polls"] == 1)
        began = time.monotonic()
        process.send_signal(number)
        answer = waiting.result()
        assert (answer.status, answer.json["messages"]) == (200, [])
        assert answer.headers["connection"] == "close"
        assert process.wait(20) == 0
        assert time.monotonic() - began < 8
    with penstock.connect(tmp_path / "data") as ps:
        assert ps.peek("orders")[0].value == b"kept"


def test_the_folder_says_where_its_server_is(start: Start, tmp_path: Path) -> None:
    _, url = start(free_bytes_min=0)
    with pytest.raises(DataFolderInUse, match=re.escape(f"the server at {url} (process ")):
        penstock.connect(tmp_path / "data", exclusive=True)
