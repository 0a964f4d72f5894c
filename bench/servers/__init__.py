"""Message servers, each in a process of its own, and asked through a Python client."""

from __future__ import annotations

from collections.abc import Sequence

from bench.servers.base import Peer
from bench.servers.beanstalkd import Beanstalkd
from bench.servers.nats import Nats
from bench.servers.penstock import Penstock
from bench.servers.rabbitmq import RabbitMQ
from bench.servers.redis import Redis

PEERS: Sequence[type[Peer]] = (Penstock, Redis, Nats, RabbitMQ, Beanstalkd)
