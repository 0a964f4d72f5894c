"""How `killed.tar.gz` and `closed.tar.gz` were made, by the last code of the first version.

It is kept to show what is in them (`python make.py FOLDER`): code of today makes data folders of
another version. `closed` was closed; `killed` is the same folder a moment before.
"""

from __future__ import annotations

import shutil
import sys

from penstock.broker.broker import Broker
from penstock.client.client import Client
from penstock.clock import ManualClock


def main(folder: str) -> None:
    clock = ManualClock()
    with Client(Broker(f"{folder}/closed", clock=clock, housekeeping=False), "default") as ps:
        queue(ps)
        clock.advance(1)
        streams(ps)
        shutil.copytree(f"{folder}/closed", f"{folder}/killed")


def queue(ps: Client) -> None:
    ps.create_topic("orders", partitions=2, segment_bytes=4096, max_retries=0, codec="zstd")
    for number in range(40):
        value = b"order %02d " % number + bytes(range(256))
        ps.publish("orders", value, key=b"k%d" % (number % 7), priority=number % 5)
    ps.publish("orders", b"squeezed " * 500, key="k0", headers={"trace": "1"})
    for message in ps.receive("orders", group="billing", max_messages=10):
        message.ack()
    for message in ps.receive("orders", group="billing", max_messages=2):
        message.reject("does not add up")
    ps.receive("orders", group="billing", max_messages=1, visibility="1h")
    ps.publish("orders", b"later", delay="30d", key="k1")
    ps.cancel("orders", ps.publish("orders", b"never", delay="30d").id)
    ps.publish("orders", b"once", dedup_id="d-1")


def streams(ps: Client) -> None:
    ps.create_topic("prices", compacted=True, segment_bytes=4096)
    for number in range(60):
        ps.publish("prices", b"%03d" % number * 100, key=b"p%d" % (number % 3))
    prices = ps._broker.topics("default")[-1]
    ps._broker.topic(prices).partitions[0].log.compact(0, keyed=True)
    for namespace in ("default", "eu"):
        client = ps.in_namespace(namespace)
        if namespace == "eu":
            client.create_topic("orders")
            client.publish_batch("orders", [b"eins", b"zwei", b"drei"])
        with client.stream("orders", group="audit", start="earliest") as stream:
            for _ in range(2):
                stream.next(5)
            stream.commit()


if __name__ == "__main__":
    main(sys.argv[1])
