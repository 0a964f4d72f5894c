"""The gRPC door of a server beside its HTTP door."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from itertools import count
from typing import Any

import grpc

import penstock
from bench import messages
from bench.cpu_time import ServerCpu, process_at
from bench.figures import at_least
from bench.harness import Bench, Contender, Sample
from bench.served import served
from penstock.client.client import Client
from penstock.server.grpc.descriptors import message
from penstock.wire.columns import decode_delivered

_BATCH = 100
_BATCHES = 200
_ACK = 1

_PUBLISHED, _PUBLISHED_HTTP = "gRPC publish stream", "HTTP publish"
_LEASED, _LEASED_ARROW, _RECEIVED_HTTP = "gRPC lease stream", "the same, Arrow", "HTTP receive, ack"

_topics = count()


def run(bench: Bench) -> None:
    values = messages.values(_BATCH * _BATCHES)
    batches = messages.in_batches(values, _BATCH)
    address = f"127.0.0.1:{_free_port()}"
    with (
        bench.folder() as folder,
        served(str(folder / "data"), PENSTOCK_GRPC=address) as url,
        penstock.connect(url) as ps,
        grpc.insecure_channel(address) as channel,
    ):
        cpu = ServerCpu(process_at(url))

        def leased(name: str, arrow: bool) -> Sample:
            return asyncio.run(_lease_stream(cpu, name, address, _filled(ps, values), arrow))

        rounds = 2 * bench.rounds - 1  # short runs, close ratios
        race = bench.race(
            "publish in batches",
            [
                Contender("gRPC", lambda _: _publish_stream(cpu, ps, channel, batches)),
                Contender("HTTP", lambda _: _publish(cpu, ps, batches)),
            ],
            rounds=rounds,
        )
        title = "gRPC publish stream, 100 a message: HTTP"
        bench.compare(race, "gRPC", "HTTP", at_least(0.6), "messages", title=title)
        race = bench.race(
            "receive and ack in batches",
            [
                Contender("gRPC", lambda _: leased(_LEASED, arrow=False)),
                Contender("gRPC, Arrow", lambda _: leased(_LEASED_ARROW, arrow=True)),
                Contender("HTTP", lambda _: _receive(cpu, ps, _filled(ps, values))),
            ],
            rounds=rounds,
        )
        for name in ("gRPC", "gRPC, Arrow"):
            title = f"{name}: lease stream, 100 a message, acked: HTTP"
            bench.compare(race, name, "HTTP", at_least(0.6), "messages", title=title)
        for name in (_PUBLISHED, _PUBLISHED_HTTP, _LEASED, _LEASED_ARROW, _RECEIVED_HTTP):
            spent = cpu.us_a_message(name)
            bench.figure(f"{name}: CPU of the server", spent, unit="µs", detail="a message")
    bench.note(
        f"A server on loopback, messages of 100 B, {_BATCHES} batches of {_BATCH}; both clients in "
        "Python, one connection each. Without Arrow, gRPC carries messages one by one in a list; "
        "the HTTP client speaks Arrow always."
    )


def _publish_stream(
    cpu: ServerCpu, ps: Client, channel: grpc.Channel, batches: list[list[bytes]]
) -> Sample:
    topic = _made(ps)
    call = _method(channel, "Messages/PublishStream", "PublishResponse")
    new, list_, request = message("NewMessage"), message("MessageList"), message("PublishRequest")

    def requests() -> Iterator[Any]:
        for seq, batch in enumerate(batches):
            given = list_(messages=[new(value=value) for value in batch])
            yield request(topic=topic, list=given, seq=seq)

    with cpu.timed(_PUBLISHED, _BATCH * len(batches)) as sample:
        answered = sum(answer.runs[0].count for answer in call(requests()))
    assert answered == _BATCH * len(batches)
    return sample


def _publish(cpu: ServerCpu, ps: Client, batches: list[list[bytes]]) -> Sample:
    topic = _made(ps)
    with cpu.timed(_PUBLISHED_HTTP, _BATCH * len(batches)) as sample:
        for batch in batches:
            ps.publish_batch(topic, batch)
    return sample


async def _lease_stream(cpu: ServerCpu, name: str, address: str, topic: str, arrow: bool) -> Sample:
    """By the client of asyncio: that with threads needs twice its time for a stream that goes both
    ways."""
    request = message("LeaseRequest")
    subscribe = message("Subscribe")(
        topic=topic, group="g", credit=4 * _BATCH, max_batch=_BATCH, arrow=arrow, pieces=True
    )
    got = settled = 0
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        call = _method(channel, "Queue/Lease", "LeaseResponse")()
        with cpu.timed(name, _BATCH * _BATCHES) as sample:
            await call.write(request(subscribe=subscribe))
            while settled < _BATCHES:
                answer = await call.read()
                settled += len(answer.settled)
                if not answer.HasField("delivered"):
                    continue
                count = _looked_at(answer.delivered)
                got += count
                settle = {
                    "verb": _ACK,
                    "leases": answer.delivered.leases,
                    "ref": got,
                    "credit": {"messages": count},
                }
                await call.write(request(settle=settle))
        await call.done_writing()
    assert got == _BATCH * _BATCHES
    return sample


def _looked_at(delivered: Any) -> int:
    if not delivered.arrow:
        return len([each.message.value for each in delivered.messages])
    return sum(each.count for each in decode_delivered(delivered.arrow, delivered.pieces.encode()))


def _receive(cpu: ServerCpu, ps: Client, topic: str) -> Sample:
    with cpu.timed(_RECEIVED_HTTP, _BATCH * _BATCHES) as sample:
        done = None
        for _ in range(_BATCHES):
            done = ps.receive_batch(topic, "g", _BATCH, ack=done)
        assert done is not None
        done.ack()
    return sample


def _filled(ps: Client, values: list[bytes]) -> str:
    topic = _made(ps)
    ps.publish_batch(topic, values)
    return topic


def _made(ps: Client) -> str:
    topic = f"t{next(_topics)}"
    ps.create_topic(topic)
    return topic


def _method(channel: Any, name: str, answer: str) -> Any:
    return channel.stream_stream(
        f"/penstock.v1.{name}",
        request_serializer=lambda each: each.SerializeToString(),
        response_deserializer=message(answer).FromString,
    )


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
