"""A program that works on a data folder until it is interrupted: `python -m ... folder mode`."""

from __future__ import annotations

import asyncio
import sys

import penstock
import penstock.aio


def work(folder: str) -> None:
    with penstock.connect(folder) as ps:
        ps.create_topic("orders", partitions=2, exist_ok=True)
        ps.publish("orders", b"later", delay="1h")
        print("ready", flush=True)
        with ps.producer("orders") as out:
            number = 0
            while True:
                out.send(b"%d" % number)
                number += 1
                for message in ps.receive("orders", "g", 10):
                    message.ack()


def wait(folder: str) -> None:
    with penstock.connect(folder) as ps:
        ps.create_topic("orders", exist_ok=True)
        ps.publish("orders", b"kept")
        print("ready", flush=True)
        ps.receive("orders", "other", partition=0)
        ps.receive("orders", "other", wait="30s")


async def stream(folder: str) -> None:
    async with penstock.aio.connect(folder) as ps:
        await ps.create_topic("orders", exist_ok=True)
        await ps.publish("orders", b"kept")
        async with ps.stream("orders", "audit") as messages:
            await messages.next()
            print("ready", flush=True)
            await messages.next()


if __name__ == "__main__":
    target, mode = sys.argv[1:]
    if mode == "stream":
        asyncio.run(stream(target))
    else:
        {"work": work, "wait": wait}[mode](target)
