"""Three nodes and three NATS servers, real processes, whichever node is asked or ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

import penstock
from penstock.cluster.local_nodes import LocalCluster
from penstock.cluster.placement import shard_of
from penstock.cluster.safety import check_nats
from penstock.errors import InvalidInput, NotInCluster
from tests.integration.cluster.checker import (
    GROUP,
    TOPIC,
    Checker,
    Load,
    bills_of,
    drain,
    logs_of,
    make_topics,
)
from tests.integration.sqs.clients import client as sqs_client

pytestmark = pytest.mark.timeout(240)


def get(url: str, headers: dict[str, str] | None = None) -> Any:
    return ask(urllib.request.Request(url, headers=headers or {}))


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(
        url, data=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    return ask(request)


def ask(request: urllib.request.Request) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            data = answer.read()
            return json.loads(data) if data else None
    except urllib.error.HTTPError as exc:
        exc.close()
        raise


def owner_of(cluster: LocalCluster, namespace: str = "default", but: int | None = None) -> int:
    """The number of the node that owns a namespace."""
    for number, url in enumerate(cluster.urls):
        process = cluster.processes[number]
        if number != but and process is not None and process.poll() is None:
            owners = get(f"{url}/v1/cluster/routes")["owners"]
            return int(owners[str(shard_of(namespace))][1:])
    raise AssertionError("no node is there")


def until(what, timeout_s: float = 30) -> float:  # type: ignore[no-untyped-def]
    """Wait; how long it took."""
    began = time.monotonic()
    while time.monotonic() - began < timeout_s:
        try:
            if what():
                return time.monotonic() - began
        except (OSError, AssertionError):
            pass
        time.sleep(0.05)
    raise AssertionError("it never came to be")


def test_any_node_takes_any_request(cluster: LocalCluster) -> None:
    with ExitStack() as closing:
        clients = [closing.enter_context(penstock.connect(url)) for url in cluster.urls]
        clients[0].create_topic("any", partitions=2)
        for number in range(30):
            clients[number % 3].publish("any", b"%d" % number)
        got = []
        for client in clients:
            for message in client.receive("any", group="g", max_messages=10, wait=1):
                got.append(int(message.value))
                message.ack()
        assert sorted(got) == list(range(30))
        assert clients[1].receive("any", group="g") == []
        assert len(clients[2].peek("any", limit=100)) == 30


def test_delays_letters_schedules_and_streams_work_through_any_node(cluster: LocalCluster) -> None:
    with ExitStack() as closing:
        _use_parts(*(closing.enter_context(penstock.connect(url)) for url in cluster.urls))


def _use_parts(first: penstock.Client, second: penstock.Client, third: penstock.Client) -> None:
    first.create_topic("parts", max_retries=0)
    second.publish("parts", b"late", delay=0.5)
    (late,) = third.receive("parts", group="g", wait=5)
    late.reject("not wanted")
    (letter,) = first.dead_letters("parts").list()
    assert letter.message.value == b"late"
    assert second.dead_letters("parts").redrive() == 1
    assert [message.value for message in third.receive("parts", group="g", wait=2)] == [b"late"]
    third.create_topic("bills")
    with first.transaction() as tx:
        tx.publish("parts", b"with a bill")
        tx.publish("bills", b"the bill")
    assert [message.value for message in second.peek("bills")] == [b"the bill"]
    with second.stream("parts", group="s", start="earliest") as stream:
        message = next(iter(stream))
        assert message.value == b"late"
        stream.commit()


def test_namespaces_are_put_together_from_all_nodes(cluster: LocalCluster) -> None:
    names = [f"n{number}" for number in range(6)]
    for number, name in enumerate(names):
        with penstock.connect(cluster.urls[number % 3], namespace=name) as client:
            client.create_topic("t")
            client.publish("t", b"x")
    assert len({owner_of(cluster, name) for name in names}) > 1
    for url in cluster.urls:
        assert set(names) <= set(get(f"{url}/v1/namespaces")["namespaces"])
        assert get(f"{url}/v1/stats")["topics"] >= len(names)
        table = get(f"{url}/v1/stats/topics?sort=messages&descending=true&limit=2")
        assert len(table["topics"]) == 2
        assert table["total"] >= len(names)
        lanes = get(f"{url}/priority/stats?limit=1000")
        assert {f"{name}/t" for name in names} <= {each["topic"] for each in lanes["topics"]}
        assert lanes == get(f"{url}/v1/priority/stats?limit=1000") | {"topics": lanes["topics"]}
        assert [each["topic"] for each in get(f"{url}/priority/stats?limit=2")["topics"]] == [
            each["topic"] for each in lanes["topics"][:2]
        ]
        assert get(f"{url}/delay/stats").keys() == get(f"{url}/v1/delayed/stats").keys()


def test_what_does_not_work_in_a_cluster_is_refused(cluster: LocalCluster) -> None:
    with penstock.connect(cluster.urls[0]) as client:
        with pytest.raises(NotInCluster, match="compacted"):
            client.create_topic("compacted", compacted=True)
        client.create_topic("plain")
        with pytest.raises(NotInCluster, match="compacted"):
            client.alter_topic("plain", compacted=True)


def test_clients_of_sqs_ask_any_node(cluster: LocalCluster) -> None:
    sqs = [sqs_client(url) for url in cluster.urls]
    url = sqs[0].create_queue(QueueName="sqs.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    assert url == f"{cluster.urls[0]}/000000000000/sqs.fifo"
    same = sqs[1].get_queue_url(QueueName="sqs.fifo")["QueueUrl"]
    assert same == f"{cluster.urls[1]}/000000000000/sqs.fifo"
    for number in range(6):
        sqs[number % 3].send_message(
            QueueUrl=url,
            MessageBody=f"{number}",
            MessageGroupId="g",
            MessageDeduplicationId=f"{number // 2}",
        )
    for asked, bodies in ((sqs[2], ["0", "2"]), (sqs_client(cluster.urls[1], query=True), ["4"])):
        found = asked.receive_message(
            QueueUrl=url, MaxNumberOfMessages=len(bodies), WaitTimeSeconds=5
        )["Messages"]
        assert [message["Body"] for message in found] == bodies
        for message in found:
            asked.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert "Messages" not in sqs[0].receive_message(QueueUrl=url)
    for each in sqs:
        with pytest.raises(each.exceptions.QueueDoesNotExist):
            each.send_message(QueueUrl=url.replace("sqs.fifo", "none"), MessageBody="x")
        each.close()


def test_clients_learn_who_has_what_they_ask_for(cluster: LocalCluster) -> None:
    owner = owner_of(cluster)
    with penstock.connect(cluster.urls[(owner + 1) % 3]) as client:
        ways = client._link.server.ways  # type: ignore[attr-defined]
        assert str(ways.best.address) == cluster.urls[(owner + 1) % 3]
        client.create_topic("learned")
        assert str(ways.best.address) == cluster.urls[owner]
        cluster.signal(owner)
        client.publish("learned", b"after a kill")
        cluster.start(owner)
        until(lambda: cluster.is_ready(owner), 60)
        until(lambda: client.topics() and ways.best.address.port in cluster.ports)
        assert [message.value for message in client.peek("learned")] == [b"after a kill"]


def test_who_is_asked_directly_names_the_owner(cluster: LocalCluster) -> None:
    owner = owner_of(cluster)
    other = cluster.urls[(owner + 1) % 3]
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(f"{other}/v1/topics", {"penstock-forwarded": "me"})
    assert refused.value.code == 421
    assert refused.value.headers["penstock-owner"] == cluster.urls[owner]


def test_a_drained_node_has_no_shards_and_nothing_is_lost(cluster: LocalCluster) -> None:
    node = owner_of(cluster)
    with penstock.connect(cluster.urls[(node + 1) % 3]) as client:
        client.create_topic("drained", exist_ok=True)
        client.publish("drained", b"before")
        post(f"{cluster.urls[node]}/v1/cluster/drain", {"node": f"p{node}"})
        until(lambda: owner_of(cluster) != node)
        client.publish("drained", b"after")
        assert [m.value for m in client.peek("drained")] == [b"before", b"after"]
    post(f"{cluster.urls[node]}/v1/cluster/drain", {"node": f"p{node}", "on": False})


def penstock_cluster(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, at the first node."""
    command = [sys.executable, "-m", "penstock", "cluster", *words, "--url", cluster.urls[0]]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_finds_a_shard_that_is_on_its_way(cluster: LocalCluster) -> None:
    shard = shard_of("default")
    target = (owner_of(cluster) + 1) % 3
    assert penstock_cluster(cluster, "move", str(shard), f"p{target}").returncode == 0
    try:
        verified = penstock_cluster(cluster, "verify", str(shard))
        assert verified.returncode == 0, verified.stderr
        until(lambda: owner_of(cluster) == target)
    finally:
        assert penstock_cluster(cluster, "move", str(shard), "-").returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("drain", "p9"), "there is no node 'p9'; there are p0, p1, p2"),
        (("move", "3", "p9"), "there is no node 'p9'"),
        (("move", "99", "p0"), "there is no shard 99; they go up to 15"),
        (("verify", "99"), "there is no shard 99; they go up to 15"),
        (("replace", "p0"), "node p0 is there; drain and stop it first"),
    ],
)
def test_the_command_says_what_is_wrong(
    cluster: LocalCluster, words: tuple[str, ...], told: str
) -> None:
    refused = penstock_cluster(cluster, *words)
    assert refused.returncode == 2
    assert told in refused.stderr
    assert "invalid_input" in refused.stderr


def test_damaged_files_are_noticed_and_fetched_again(cluster: LocalCluster) -> None:
    node, shard = owner_of(cluster), shard_of("default")
    with penstock.connect(cluster.urls[node]) as client:
        client.create_topic("rotten", exist_ok=True)
        for number in range(20):
            client.publish("rotten", b"value %d" % number * 10)
        folder = cluster.folder(node) / "shards" / f"{shard:02d}" / "logs"
        (victim,) = [p for p in folder.glob("*/*.log") if b"value 7value 7" in p.read_bytes()]
        flip(victim, victim.read_bytes().index(b"value 7value 7"))
        found = post(f"{cluster.urls[node]}/v1/cluster/verify", {"shard": shard})
        assert found["damaged"]
        assert found["repaired"]
        until(lambda: len(client.peek("rotten", limit=100)) == 20)

    def is_whole() -> bool:
        url = cluster.urls[owner_of(cluster)]
        return not post(f"{url}/v1/cluster/verify", {"shard": shard})["damaged"]

    until(is_whole)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_owners_that_are_killed_and_paused_lose_nothing(cluster: LocalCluster) -> None:
    checker = Checker()
    with penstock.connect(cluster.urls[0]) as client:
        make_topics(client)
    load = Load(cluster.urls, checker)
    load.start()
    try:
        time.sleep(2)
        victim = owner_of(cluster)
        killed = time.monotonic()
        cluster.signal(victim)
        until(lambda: max(checker.confirmed.values()) > killed + 0.2)
        cluster.start(victim)
        until(lambda: cluster.is_ready(victim), 60)
        paused = owner_of(cluster)
        cluster.signal(paused, signal.SIGSTOP)
        until(lambda: owner_of(cluster, but=paused) != paused)
        cluster.signal(paused, signal.SIGCONT)
        time.sleep(2)
    finally:
        load.stop()
    with penstock.connect(cluster.urls[owner_of(cluster)]) as client:
        drain(client, checker)
        problems = checker.check(logs_of(client), bills_of(client))
        depth = sum(g.depth for g in client.stats(TOPIC).groups if g.group == GROUP)
    assert not load.errors
    assert not problems, problems[:10]
    assert depth == 0
    assert len(checker.confirmed) > 50


def test_keys_are_good_at_every_node(cluster: LocalCluster) -> None:
    """The last test: from now on every request needs a key."""
    with penstock.connect(cluster.urls[0]) as client:
        client.create_topic("keyed", exist_ok=True)
    made = post(f"{cluster.urls[0]}/v1/keys", {"name": "ops", "role": "admin"})
    bearer = {"authorization": f"Bearer {made['token']}"}
    until(lambda: all(get(f"{url}/v1/topics", bearer) for url in cluster.urls))

    def is_asked_for() -> bool:
        for url in cluster.urls:
            try:
                get(f"{url}/v1/topics")
            except urllib.error.HTTPError as exc:
                if exc.code != 401:
                    return False
            else:
                return False
        return True

    until(is_asked_for)
    for url in cluster.urls:
        with penstock.connect(url, api_key=made["token"]) as client:
            client.publish("keyed", b"with a key")
        signed = sqs_client(
            url, aws_access_key_id=made["id"], aws_secret_access_key=made["sqs_secret"]
        )
        queue = signed.create_queue(QueueName="signed")["QueueUrl"]
        signed.send_message(QueueUrl=queue, MessageBody=url)
        signed.close()
        wrong = sqs_client(
            url, aws_access_key_id=made["id"], aws_secret_access_key="something else"
        )
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            wrong.send_message(QueueUrl=queue, MessageBody="x")
        wrong.close()


def test_nats_that_may_lose_what_it_confirmed_is_refused() -> None:
    with pytest.raises(InvalidInput, match="sync_interval: always"):
        check_nats((), declared=False)
    check_nats((), declared=True)
