"""The API of Amazon SQS: boto3 sends to, receives and deletes from Penstock and ElasticMQ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import botocore.session

from bench.cpu_time import used_s
from bench.figures import Spread, at_least, at_most
from bench.harness import Bench, Contender, Sample, stopwatch
from bench.peers import elasticmq
from bench.servers.penstock import Penstock

_BATCH = 10
_BODY = "x" * 100
_MESSAGES = 10_000
_MESSAGES_QUICK = 3_000
_SINGLES = 1_000
_WARM_UP = 5_000

_queues = count()


class _Work(Protocol):
    def __call__(self, server: _Server, messages: int) -> Sample: ...


class _Server:
    """One of the servers, and boto3 as it comes in front of it."""

    def __init__(self, name: str, url: str, process: int) -> None:
        self.name = name
        self.process = process
        self.cpu_s: list[float] = []
        """For each run of the race that is on."""
        self.sqs: Any = botocore.session.Session().create_client(
            "sqs",
            endpoint_url=url,
            region_name="eu-west-1",
            aws_access_key_id="bench",
            aws_secret_access_key="bench",
        )

    def new_queue(self) -> str:
        return str(self.sqs.create_queue(QueueName=f"bench-{next(_queues)}")["QueueUrl"])

    @contextmanager
    def timed(self, messages: int) -> Iterator[Sample]:
        before = used_s(self.process)
        with stopwatch(messages) as sample:
            yield sample
        self.cpu_s.append(used_s(self.process) - before)


def run(bench: Bench) -> None:
    bench.progress.show("fetching ElasticMQ")
    missing = elasticmq.fetch(bench.cache)
    messages = _MESSAGES_QUICK if bench.quick else _MESSAGES
    with bench.folder() as folder, ExitStack() as running:
        servers = [running.enter_context(_penstock(folder / "penstock"))]
        if not missing:
            url, process = running.enter_context(
                elasticmq.server(bench.cache, folder / "elasticmq")
            )
            servers.append(_Server("ElasticMQ", url, process))
        bench.progress.show("warming up")
        for server in servers:
            for work in (_send, _receive, _delete, _one_by_one):
                work(server, _WARM_UP)
        _compare(bench, servers, missing, f"send {_BATCH}", _send, messages)
        _compare(bench, servers, missing, f"receive {_BATCH}", _receive, messages)
        _compare(bench, servers, missing, f"delete {_BATCH}", _delete, messages)
        _compare(bench, servers, missing, "send, receive and delete 1", _one_by_one, _SINGLES)
    bench.note(
        f"{messages:,} messages of {len(_BODY)} B in batches of {_BATCH}, or {_SINGLES:,} one by "
        f"one; one boto3 client on the same machine, the same for both, and by far the slowest "
        f"part. {elasticmq.SETTINGS}, a heap of 1 GB, warmed up with {_WARM_UP:,} messages of "
        "each kind. Penstock: penstock serve with its defaults, all on disk, fsync every second."
    )


def _compare(
    bench: Bench, servers: Sequence[_Server], missing: str, title: str, work: _Work, messages: int
) -> None:
    ours, theirs = Penstock.name, "ElasticMQ"
    for server in servers:
        server.cpu_s.clear()
    contenders = [
        Contender(server.name, lambda _, server=server: work(server, messages))
        for server in servers
    ]
    if missing:
        contenders.append(Contender(theirs, _nothing, missing=missing))
    race = bench.race(title, contenders)
    bench.compare(race, ours, theirs, at_least(1), "messages", f"boto3, {title} / ElasticMQ")
    used = [server.cpu_s[1:] for server in servers]  # without the warm-up
    share = None if missing else Spread.of(a / b for a, b in zip(*used, strict=True))
    each = " / ".join(f"{Spread.of(seconds).median * 1e6 / messages:.0f} µs" for seconds in used)
    bench.figure(
        f"boto3, {title}: CPU time of the server / ElasticMQ's",
        share,
        target=at_most(0.5),
        detail=missing or f"{each} for each message",
    )


def _send(server: _Server, messages: int) -> Sample:
    url = server.new_queue()
    with server.timed(messages) as sample:
        _send_all(server, url, messages)
    return sample


def _receive(server: _Server, messages: int) -> Sample:
    url = server.new_queue()
    _send_all(server, url, messages)
    with server.timed(messages) as sample:
        _receive_all(server, url, messages)
    return sample


def _delete(server: _Server, messages: int) -> Sample:
    url = server.new_queue()
    _send_all(server, url, messages)
    handles = _receive_all(server, url, messages)
    with server.timed(messages) as sample:
        for batch in handles:
            done = server.sqs.delete_message_batch(QueueUrl=url, Entries=batch)
            assert len(done["Successful"]) == len(batch)
    return sample


def _one_by_one(server: _Server, messages: int) -> Sample:
    url, sqs = server.new_queue(), server.sqs
    with server.timed(messages) as sample:
        for _ in range(messages):
            sqs.send_message(QueueUrl=url, MessageBody=_BODY)
            (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return sample


def _send_all(server: _Server, url: str, messages: int) -> None:
    entries = [{"Id": str(number), "MessageBody": _BODY} for number in range(_BATCH)]
    for _ in range(messages // _BATCH):
        done = server.sqs.send_message_batch(QueueUrl=url, Entries=entries)
        assert len(done["Successful"]) == _BATCH


def _receive_all(server: _Server, url: str, messages: int) -> list[list[dict[str, str]]]:
    """Their receipt handles, as the entries of batches that delete them."""
    found: list[list[dict[str, str]]] = []
    received = 0
    while received < messages:
        answer = server.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=_BATCH)
        taken = answer["Messages"]
        found.append(
            [
                {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                for number, message in enumerate(taken)
            ]
        )
        received += len(taken)
    return found


def _nothing(_: Path) -> Sample:
    raise AssertionError("who is missing takes no part")


@contextmanager
def _penstock(folder: Path) -> Iterator[_Server]:
    server = Penstock(folder)
    server.start()
    try:
        assert server.process is not None
        yield _Server(Penstock.name, server.url, server.process.pid)
    finally:
        server.stop()
