"""RabbitMQ: a durable queue and persistent messages, through pika's blocking connection."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from bench.servers.base import Peer, free_port

try:
    import pika
except ImportError:
    pika = None

# The wrapper of some packages insists on a user of its own; the script behind it does not.
_SERVER = next(
    filter(
        os.path.exists,
        ["/usr/lib/rabbitmq/bin/rabbitmq-server", shutil.which("rabbitmq-server") or ""],
    ),
    None,
)


class RabbitMQ(Peer):
    name = "RabbitMQ"
    settings = (
        "durable queue, persistent messages, publisher confirms as pika's blocking channel waits "
        "for them, one a message; a single ack for all of a receive"
    )
    share = 0.01
    missing = "" if pika and _SERVER else "rabbitmq-server is not installed (Debian's package)"

    def command(self) -> list[str]:
        return [_SERVER or "rabbitmq-server"]

    def environment(self) -> dict[str, str]:
        folder = str(self.folder)
        return os.environ | {
            "HOME": folder,
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": folder,
            "RABBITMQ_LOG_BASE": folder,
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_CONFIG_FILE": f"{folder}/none",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def connect(self) -> None:
        self._connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=0)
        )
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()

    def create(self, queue: str) -> None:
        self._channel.queue_declare(queue, durable=True)

    def publish(self, queue: str, value: bytes) -> None:
        persistent = pika.BasicProperties(delivery_mode=2)
        self._channel.basic_publish("", queue, value, persistent)

    def publish_batch(self, queue: str, values: Sequence[bytes]) -> None:
        for value in values:
            self.publish(queue, value)

    def take(self, queue: str, count: int) -> int:
        total, tag = 0, 0
        for _ in range(count):
            method, _, body = self._channel.basic_get(queue)
            total, tag = total + len(body), method.delivery_tag
        self._channel.basic_ack(tag, multiple=True)
        return total

    def disconnect(self) -> None:
        self._connection.close()
