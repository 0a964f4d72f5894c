"""The gRPC door, through clients of grpcio: what it stores, hands out, refuses and describes."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from penstock.broker.broker import Broker
from penstock.record.schema import new_batch_ulid, ulid_text
from penstock.server.grpc import descriptors
from penstock.server.grpc.descriptors import PACKAGE, message
from penstock.server.keys import KeyStore
from penstock.wire.columns import decode_delivered
from tests.integration.broker.world import until
from tests.integration.server.grpc_client import Client, Leasing, code_of, publish_of, seconds
from tests.integration.server.running import RunningServer

FOLDER = Path(descriptors.__file__).parent
_BUILD_S_MAX = 300  # with the modules that it needs


@pytest.fixture
def server(broker: Broker) -> Iterator[RunningServer]:
    with RunningServer(broker, grpc="127.0.0.1:0", grpc_reflection=True) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    client = Client(server.server.grpc.port)  # type: ignore[union-attr]
    client.ask("create_topic", topic="orders")
    yield client
    client.channel.close()


def test_messages_are_published_received_and_settled(client: Client) -> None:
    published = client.publish(b"a", b"b", b"c")
    assert [(run.offset, run.count) for run in published.runs] == [(0, 3)]
    got = client.receive().messages
    assert [each.message.value for each in got] == [b"a", b"b", b"c"]
    assert [each.delivery_count for each in got] == [1, 1, 1]
    assert got[0].message.id == published.runs[0].id
    receipts = [each.receipt for each in got]
    assert client.settle(1, receipts[:1]) == []
    assert client.settle(2, receipts[1:2], delay=seconds(0.001), error="again") == []
    assert client.settle(3, receipts[2:], error="broken") == []
    (again,) = client.receive(wait=seconds(10)).messages
    assert (again.message.value, again.delivery_count) == (b"b", 2)
    assert client.settle(4, [again.receipt], visibility=seconds(60)) == []
    (refused,) = client.settle(1, receipts[:1])
    assert (refused.code, refused.receipt) == ("already_settled", receipts[0])
    assert (
        client.ask("list_dead_letters", topic="orders")["letters"][0]["origin"]["error"] == "broken"
    )


def test_what_can_be_said_of_a_message_comes_out_again(client: Client) -> None:
    new = message("NewMessage")(value=b"\xff", key=b"k", priority=1)
    new.headers.add(name="h", value=b"\xfe")
    new.headers.add(name="none")
    new.ttl.seconds = 3600
    request = message("PublishRequest")(topic="orders")
    request.list.messages.append(new)
    client("Messages.Publish", request)
    (got,) = client.receive().messages
    assert (got.message.value, got.message.key, got.message.priority) == (b"\xff", b"k", 1)
    headers = {h.name: h.value if h.HasField("value") else None for h in got.message.headers}
    assert headers == {"h": b"\xfe", "none": None}
    assert got.message.expires_at.seconds > got.message.timestamp.seconds + 3500
    empty = message("NewMessage")(key=b"k")
    client(
        "Messages.Publish", message("PublishRequest")(topic="orders", list={"messages": [empty]})
    )
    (got,) = client.receive().messages
    assert not got.message.HasField("value")


def test_delays_and_dedup_ids_are_obeyed(client: Client) -> None:
    request = message("PublishRequest")(topic="orders")
    for delay in (0.3, 3600):
        new = request.list.messages.add(value=b"later", dedup_id=f"d{delay}")
        new.delay.CopyFrom(seconds(delay))
    first = client("Messages.Publish", request)
    assert [run.offset for run in first.runs] == [-1, -1]
    again = client("Messages.Publish", request)
    assert [run.duplicate for run in again.runs] == [True, True]
    assert [each.message.value for each in client.receive(wait=seconds(10)).messages] == [b"later"]
    delayed = client.ask("list_delayed", topic="orders")["delayed"]
    assert [each["id"] for each in delayed] == [first.runs[1].id]
    assert client.ask("cancel_delayed", topic="orders", id=first.runs[1].id) == {"found": True}


def test_a_call_that_is_made_again_is_stored_once(client: Client) -> None:
    first = client.publish(b"a", call="abc-1")
    again = client.publish(b"a", call="abc-1")
    assert first.runs[0].id == again.runs[0].id
    assert len(client.receive().messages) == 1


def test_arrow_goes_in_and_comes_out(client: Client) -> None:
    table = pa.table({"value": pa.array([b"a", b"b"], pa.binary())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    request = message("PublishRequest")(topic="orders", arrow=sink.getvalue().to_pybytes())
    assert client("Messages.Publish", request).runs[0].count == 2
    with pa.ipc.open_stream(client.receive(arrow=True).arrow) as stream:
        assert stream.read_all().column("value").to_pylist() == [b"a", b"b"]


def test_arrow_leaves_out_what_is_the_same_for_all_if_that_is_understood(client: Client) -> None:
    client.publish(b"a", b"b")
    got = client.receive(max_messages=1, arrow=True, pieces=True)
    with pa.ipc.open_stream(got.arrow) as stream:
        assert stream.schema.names == ["value"]
    (delivered,) = decode_delivered(got.arrow, got.pieces.encode())
    assert [message.value for batch, _ in delivered.pieces for message in batch.messages()] == [
        b"a"
    ]
    assert (delivered.partition, delivered.nonce) == (got.leases[0].partition, got.leases[0].lease)
    leasing = Leasing(client, credit=1, arrow=True, pieces=True)
    pushed = leasing.next().delivered
    (delivered,) = decode_delivered(pushed.arrow, pushed.pieces.encode())
    ((batch, delivery_count),) = delivered.pieces
    assert (batch.messages()[0].offset, delivery_count) == (1, 1)
    leasing.end()


def test_messages_that_differ_in_all_they_can_come_out_as_they_went_in(client: Client) -> None:
    request = message("PublishRequest")(topic="orders")
    request.list.messages.add(value=b"a", priority=1, ttl=seconds(3600))
    request.list.messages.add(value=b"b", priority=3)
    request.list.messages.add(value=b"c", priority=3, ttl=seconds(7200))
    client("Messages.Publish", request)
    got = [each.message for each in client.receive().messages]
    assert [(each.value, each.priority) for each in got] == [(b"a", 1), (b"b", 3), (b"c", 3)]
    lasts = [each.expires_at.seconds - each.timestamp.seconds for each in got]
    assert lasts[0] == pytest.approx(3600, abs=1)
    assert lasts[2] == pytest.approx(7200, abs=1)
    assert not got[1].HasField("expires_at")


def test_a_stream_of_publishes_is_answered_in_order_and_outlives_a_refusal(client: Client) -> None:
    requests = [publish_of(b"%d" % n, seq=n) for n in range(50)]
    requests[7] = publish_of(b"x", topic="nowhere", seq=7)
    answers = list(client("Messages.PublishStream", iter(requests)))
    assert [each.seq for each in answers] == list(range(50))
    assert [each.seq for each in answers if each.HasField("problem")] == [7]
    assert answers[7].problem.code == "topic_not_found"
    assert len(client.receive(max_messages=100).messages) == 49


def test_reading_on_waits_for_news(client: Client) -> None:
    client.publish(b"a", b"b")
    at = {"topic": "orders", "partition": 0, "offset": 1}
    (part,) = client("Messages.Fetch", message("FetchRequest")(positions=[at])).parts
    assert ([each.value for each in part.messages], part.next_offset) == ([b"b"], 2)
    timer = threading.Timer(0.2, lambda: client.publish(b"c"))
    timer.start()
    request = message("FetchRequest")(positions=[{**at, "offset": 2}], wait=seconds(10))
    (part,) = client("Messages.Fetch", request).parts
    assert [each.value for each in part.messages] == [b"c"]
    timer.join()


def test_a_lease_stream_spends_its_credit_and_settles(client: Client) -> None:
    client.publish(*(b"%d" % n for n in range(10)))
    leasing = Leasing(client, credit=3)
    first = leasing.next().delivered
    assert ([each.message.value for each in first.messages], first.seq) == ([b"0", b"1", b"2"], 1)
    receipts = [each.receipt for each in first.messages]
    leasing.ask(settle={"verb": 1, "receipts": receipts, "ref": 5})
    (settled,) = leasing.next().settled
    assert (settled.ref, list(settled.refused)) == (5, [])
    leasing.ask(settle={"verb": 1, "receipts": receipts[:1], "ref": 6})
    assert leasing.next().settled[0].refused[0].code == "already_settled"
    leasing.ask(settle={"ref": 7})
    assert leasing.next().settled[0].problem.code == "invalid_input"
    leasing.ask(credit={"messages": 2})
    delivered = leasing.next().delivered
    assert len(delivered.messages) == 2
    leasing.ask(settle={"verb": 2, "leases": delivered.leases, "delay": seconds(3600), "ref": 8})
    assert leasing.next().settled[0].ref == 8
    leasing.ask(settle={"verb": 1, "receipts": ["x"], "credit": {"messages": 2}})
    problem, delivered = leasing.settled_and_delivered()
    assert problem.problem.code == "invalid_receipt"  # without a ref only refusals are answered
    leasing.ask(settle={"verb": 1, "receipts": [delivered.messages[0].receipt]})
    assert leasing.end() == []
    stats = client.ask("describe_stats", topic="orders")
    assert (stats["in_flight"], stats["depth"]) == (1, 6)


def test_leases_are_kept_until_they_are_settled(client: Client) -> None:
    client.publish(b"a", b"b")
    leasing = Leasing(client, credit=10, visibility=seconds(0.5), auto_extend=True)
    receipts = [each.receipt for each in leasing.next().delivered.messages]
    assert client.receive(group="g", wait=seconds(1.5)).messages == []
    leasing.ask(settle={"verb": 1, "receipts": receipts, "ref": 1})
    assert list(leasing.next().settled[0].refused) == []
    leasing.end()
    client.publish(b"c")
    leasing = Leasing(client, credit=1, visibility=seconds(0.5), auto_extend=True)
    leasing.next()
    leasing.end()
    (got,) = client.receive(wait=seconds(10)).messages  # nobody keeps it any more
    assert (got.message.value, got.delivery_count) == (b"c", 2)


def test_a_server_that_stops_says_so(server: RunningServer, client: Client) -> None:
    leasing = Leasing(client, credit=1)
    client.publish(b"a")
    leasing.next()
    leasing.ask(credit={"messages": 1})
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    assert leasing.next().HasField("draining")
    assert leasing.end() == []
    stopping.join()


def test_a_transaction_is_committed_once(client: Client) -> None:
    client.publish(b"order")
    (order,) = client.receive().messages
    asked: dict[str, Any] = {
        "id": _new_id(),
        "publish": [{"topic": "orders", "messages": [{"value": "invoice", "key": "k"}]}],
        "settle": [{"group": "g", "receipts": [order.receipt]}],
    }
    outcomes = [client.ask("commit_transaction", **asked) for _ in range(2)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0]["state"] == "committed"
    (invoice,) = client.receive().messages
    assert (invoice.message.value, invoice.message.key) == (b"invoice", b"k")
    late = asked | {"id": _new_id()}  # its receipt is settled by now
    refused = code_of(lambda: client.ask("commit_transaction", **late))
    assert refused == (grpc.StatusCode.ABORTED, "transaction_refused")
    assert client.receive().messages == []
    assert client.ask("list_transactions")["transactions"][0]["state"] == "refused"


def _new_id() -> str:
    return ulid_text(new_batch_ulid(time.time_ns()))


def test_everything_else_is_asked_as_over_http(client: Client) -> None:
    made = client.ask("create_topic", topic="t", settings={"partitions": 2, "weights": [1] * 5})
    assert made["settings"]["weights"] == [1] * 5
    assert client.ask("list_topics")["topics"] == ["orders", "t"]
    client.ask("delete_topic", topic="t")
    registered = client.ask("register_schema", subject="s", schema='{"type": "object"}')
    assert registered["id"] == 1
    assert client.ask("summarize")["topics"] == 1
    client.publish(b"a")
    assert client.ask("peek", topic="orders")["messages"][0]["value"] == "a"
    client.receive()
    client.ask("seek", topic="orders", group="g", to="earliest")
    assert len(client.receive().messages) == 1


@pytest.mark.parametrize(
    ("call", "code", "reason"),
    [
        (lambda c: c.publish(b"", topic="nowhere"), "NOT_FOUND", "topic_not_found"),
        (lambda c: c.publish(b"", topic="a b"), "INVALID_ARGUMENT", "invalid_input"),
        (lambda c: c.ask("create_topic", topic="orders"), "ALREADY_EXISTS", "topic_exists"),
        (lambda c: c.ask("no_call"), "NOT_FOUND", "not_found"),
        (lambda c: c.ask("peek", topic="orders", what=1), "INVALID_ARGUMENT", "invalid_input"),
        (lambda c: c.receive(max_messages=-1), "INVALID_ARGUMENT", "invalid_input"),
        (lambda c: c.receive(wait=seconds(31)), "INVALID_ARGUMENT", "invalid_input"),
        (lambda c: c.receive(group="~x"), "INVALID_ARGUMENT", "invalid_input"),
        (lambda c: c.settle(0, ["x"]), "INVALID_ARGUMENT", "invalid_input"),
        (lambda c: c.settle(1, ["x"]), "INVALID_ARGUMENT", "invalid_receipt"),
        (lambda c: c.settle(4, []), "INVALID_ARGUMENT", "invalid_input"),
        (lambda c: Leasing(c, max_batch=5000).next(), "INVALID_ARGUMENT", "invalid_input"),
        (lambda c: Leasing(c, topic="nowhere").next(), "NOT_FOUND", "topic_not_found"),
        (
            lambda c: next(c("Queue.Lease", iter([message("LeaseRequest")(credit={})]))),
            "INVALID_ARGUMENT",
            "invalid_input",
        ),
    ],
)
def test_errors_have_a_status_and_a_reason(
    client: Client, call: Any, code: str, reason: str
) -> None:
    assert code_of(lambda: call(client)) == (grpc.StatusCode[code], reason)


@pytest.mark.parametrize("call", ["receive", "lease"])
def test_what_waits_ends_when_its_key_is_revoked(broker: Broker, call: str) -> None:
    keys = KeyStore.open(broker.folder)
    admin, doomed = keys.create("ops", "admin"), keys.create("app", "consumer")
    with RunningServer(broker, keys, grpc="127.0.0.1:0") as server:
        port = server.server.grpc.port  # type: ignore[union-attr]
        ops, app = Client(port, admin.token), Client(port, doomed.token)
        ops.ask("create_topic", topic="orders")

        def wait() -> Any:
            if call == "receive":
                return app.receive(wait=seconds(18))
            return Leasing(app, credit=1).next()

        with ThreadPoolExecutor(1) as beside:
            waiting = beside.submit(code_of, wait)
            until(lambda: len(server.door.polls) == 1)
            keys.revoke("app")
            code, reason = waiting.result(10)
        assert (code, reason) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")


def test_a_key_is_needed_and_good_for_what_its_role_is(broker: Broker) -> None:
    keys = KeyStore.open(broker.folder)
    admin = keys.create("admin", role="admin").token
    producer = keys.create("producer", role="producer", namespace="eu").token
    with RunningServer(broker, keys, grpc="127.0.0.1:0") as server:
        port = server.server.grpc.port  # type: ignore[union-attr]
        Client(port, admin).ask("create_topic", namespace="eu", topic="orders")
        assert Client(port, producer).publish(b"a", namespace="eu").runs[0].count == 1
        bare = Client(port, metadata=(("x-api-key", producer),))
        assert bare.publish(b"b", namespace="eu").runs[0].count == 1
        for token, code in ((None, "UNAUTHENTICATED"), ("psk_wrong", "UNAUTHENTICATED")):
            refused, _ = code_of(lambda token=token: Client(port, token).receive())
            assert refused == grpc.StatusCode[code]
        for call in (
            lambda: Client(port, producer).publish(b"a"),
            lambda: Client(port, producer).receive(namespace="eu"),
            lambda: Client(port, producer).ask("purge", namespace="eu", topic="orders"),
            lambda: Client(port, producer).ask(
                "commit_transaction",
                namespace="eu",
                id=_new_id(),
                settle=[{"group": "g", "topic": "orders", "leases": []}],
            ),
            lambda: Leasing(Client(port, producer), namespace="eu").next(),
        ):
            assert code_of(call) == (grpc.StatusCode.PERMISSION_DENIED, "forbidden")
        with pytest.raises(grpc.RpcError) as caught:  # reflection is off unless it is asked for
            list(Client(port, admin)(*_listing()))
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


def test_a_revoked_key_ends_its_lease_streams(broker: Broker) -> None:
    """Also one whose credit is spent: it would extend what it holds for as long as it is open."""
    keys = KeyStore.open(broker.folder)
    admin = keys.create("admin", role="admin").token
    worker = keys.create("worker", role="consumer")
    with RunningServer(broker, keys, grpc="127.0.0.1:0") as server:
        port = server.server.grpc.port  # type: ignore[union-attr]
        Client(port, admin).ask("create_topic", topic="orders")
        Client(port, admin).publish(b"a")
        spent = Leasing(Client(port, worker.token), credit=1, auto_extend=True)
        assert len(spent.next().delivered.messages) == 1
        waiting = Leasing(Client(port, worker.token), credit=1)
        keys.revoke(worker.key.id)
        began_s = time.monotonic()
        for stream in (spent, waiting):
            refused, _ = code_of(stream.next)
            assert refused == grpc.StatusCode.UNAUTHENTICATED
        assert time.monotonic() - began_s < 15  # not when a poll or the call times out
        assert Client(port, admin).publish(b"b").runs[0].count == 1


def _listing() -> tuple[str, Any, str]:
    package = "grpc.reflection.v1"
    asked = message("ServerReflectionRequest", package)(list_services="*")
    return "ServerReflection.ServerReflectionInfo", iter([asked]), package


def test_health_and_reflection(client: Client) -> None:
    health = message("HealthCheckRequest", "grpc.health.v1")
    for service in ("", "penstock.v1.Queue"):
        assert client("Health.Check", health(service=service), "grpc.health.v1").status == 1
    with pytest.raises(grpc.RpcError):
        client("Health.Check", health(service="nobody"), "grpc.health.v1")
    watch = client("Health.Watch", health(), "grpc.health.v1")
    assert next(watch).status == 1
    watch.cancel()
    (answer,) = client(*_listing())
    names = [each.name for each in answer.list_services_response.service]
    assert "penstock.v1.Messages" in names
    asked = message("ServerReflectionRequest", "grpc.reflection.v1")(
        file_containing_symbol="penstock.v1.Queue"
    )
    (answer,) = client("ServerReflection.ServerReflectionInfo", iter([asked]), "grpc.reflection.v1")
    files = answer.file_descriptor_response.file_descriptor_proto
    assert descriptor_pb2.FileDescriptorProto.FromString(files[0]).package == PACKAGE


def test_a_caller_that_goes_away_leaves_no_poll(server: RunningServer, client: Client) -> None:
    leasing = Leasing(client, credit=1)
    polling = client.channel.unary_unary(
        "/penstock.v1.Queue/Receive",
        request_serializer=lambda each: each.SerializeToString(),
    ).future(message("ReceiveRequest")(topic="orders", group="h", wait=seconds(20)))
    until(lambda: len(server.door.polls) == 2)
    polling.cancel()
    leasing._call.cancel()
    until(lambda: len(server.door.polls) == 0)


def test_the_descriptors_are_those_of_the_proto_files(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc")
    made = tmp_path / "descriptors.binpb"
    files = [str(path) for path in sorted(FOLDER.glob("*.proto"))]
    known = Path(protoc.__file__).parent / "_proto"
    options = [f"-I{FOLDER}", f"-I{known}", "--include_imports", f"--descriptor_set_out={made}"]
    protoc.main(["", *options, *files])
    given, expected = (
        {
            file.name: file
            for file in descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file
            if not file.name.startswith("google/protobuf/")
        }
        for path in (FOLDER / "descriptors.binpb", made)
    )
    assert given == expected, "compile them again: see descriptors.py"


@pytest.mark.timeout(2 * _BUILD_S_MAX)
def test_a_program_in_another_language_gets_its_message(
    server: RunningServer, tmp_path: Path
) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not on this machine")
    folder = shutil.copytree(FOLDER.parents[3] / "examples" / "grpc", tmp_path / "example")
    as_it_is = {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    program = tmp_path / "program"
    built = subprocess.run(
        [go, "build", "-o", str(program), "."],
        cwd=folder,
        env=os.environ | as_it_is,
        capture_output=True,
        text=True,
        check=False,
        timeout=_BUILD_S_MAX,
    )
    if built.returncode:
        pytest.skip(f"the example cannot be built here: {built.stderr[-200:]}")
    address = f"127.0.0.1:{server.server.grpc.port}"  # type: ignore[union-attr]
    done = subprocess.run(
        [str(program), address, str(FOLDER / "descriptors.binpb")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "orders:0: 12 apples\n"), done.stderr
    assert Client(server.server.grpc.port).receive("billing").messages == []  # type: ignore[union-attr]
