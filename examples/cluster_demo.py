"""Orders flow through a cluster while its nodes are killed one after the other; the counts agree.

make cluster-demo
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path

import penstock
from penstock.cluster.local_nodes import LocalCluster
from penstock.errors import PenstockError

ROOT = Path("demo-output/cluster")
FLOW_S = 6.0  # between two kills


class Shop:
    """Publishes orders and bills them, through whichever node answers."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.confirmed: list[str] = []
        self.billed: set[str] = set()
        self.stop = threading.Event()

    def sell(self) -> None:
        client, number = self._connect(0), 0
        while not self.stop.is_set():
            order, sent = f"order-{len(self.confirmed) + 1}", False
            while not sent:
                try:
                    client.publish("orders", order.encode(), dedup_id=order)
                    sent = True
                except PenstockError:
                    client.close()
                    number += 1
                    client = self._connect(number)
            self.confirmed.append(order)
            time.sleep(0.005)
        client.close()

    def bill(self) -> None:
        client, number = self._connect(1), 1
        while not (self.stop.is_set() and len(self.billed) >= len(self.confirmed)):
            try:
                for message in client.receive("orders", group="billing", max_messages=50, wait=1):
                    self.billed.add(message.value.decode())
                    message.ack()
            except PenstockError:
                client.close()
                number += 1
                client = self._connect(number)
        client.close()

    def _connect(self, number: int) -> penstock.Client:
        while True:
            for shift in range(len(self.urls)):
                try:
                    url = self.urls[(number + shift) % len(self.urls)]
                    return penstock.connect(url, retry_for="8s")
                except PenstockError:
                    continue
            time.sleep(0.2)


def main() -> int:
    shutil.rmtree(ROOT, ignore_errors=True)
    cluster = LocalCluster(ROOT)
    print("starting three NATS servers and three nodes ...", flush=True)
    try:
        cluster.start_all()
        return sell_while_nodes_die(cluster)
    finally:
        cluster.stop()


def sell_while_nodes_die(cluster: LocalCluster) -> int:
    with penstock.connect(cluster.urls[0]) as client:
        client.create_topic("orders", visibility="5s")
    shop = Shop(cluster.urls)
    threads = [threading.Thread(target=work) for work in (shop.sell, shop.bill)]
    for thread in threads:
        thread.start()
    for number in range(len(cluster.urls)):
        time.sleep(FLOW_S)
        before = len(shop.confirmed)
        cluster.signal(number)
        print(f"killed node p{number} after {before} orders", flush=True)
        began = time.monotonic()
        while len(shop.confirmed) < before + 2:
            time.sleep(0.05)
        print(f"  the next were confirmed {time.monotonic() - began:.1f} s later", flush=True)
        cluster.start(number)
        cluster.wait_ready()
    time.sleep(FLOW_S)
    shop.stop.set()
    for thread in threads:
        thread.join()
    with penstock.connect(cluster.urls[0]) as client:
        stored = client.stats("orders").messages
    sold, billed = len(shop.confirmed), len(shop.billed & set(shop.confirmed))
    print(f"{sold} orders were confirmed, {stored} are stored, {billed} were billed")
    # Whatever was sold is stored once and billed; one more may be on its way when the shop closes.
    return 0 if sold == billed and stored == sold else 1


if __name__ == "__main__":
    sys.exit(main())
