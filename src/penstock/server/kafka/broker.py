"""What clients of Kafka see as a broker: groups, transactions and topics behind one door."""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

from penstock.config import host_and_port
from penstock.server.door import Door, Placement
from penstock.server.kafka.call import KafkaSession
from penstock.server.kafka.consumer import ConsumerMembers
from penstock.server.kafka.coordinator import GroupCoordinator
from penstock.server.kafka.share_members import ShareGroups
from penstock.server.kafka.topic_ids import TopicIds
from penstock.server.kafka.transactions import StagedTransactions

_ALONE = 0


class BrokerAddress(NamedTuple):
    """A broker, as clients are told of it."""

    id: int
    host: str
    port: int


class KafkaBroker:
    """Everything that the connections share whose clients ask behind this door."""

    def __init__(self, door: Door, placement: Placement | None) -> None:
        self.door = door
        self.groups = GroupCoordinator(door)
        self.consumers = ConsumerMembers()
        self.shares = ShareGroups()
        self.transactions = StagedTransactions(door.gate.buffers)
        self.topic_ids = TopicIds(door.api)
        config = door.config
        name = os.path.realpath(config.data) if placement is None else config.cluster_name
        self.cluster_id = blake2b(name.encode(), digest_size=11).hexdigest()
        self._placement = placement
        self.id = _ALONE if placement is None else _id_of(placement.me)

    def address_for(self, session: KafkaSession) -> BrokerAddress:
        """Where this client finds us, which has all that there is in its namespace."""
        return next(each for each in self.all_for(session) if each.id == self.id)

    def all_for(self, session: KafkaSession) -> list[BrokerAddress]:
        """Whom this client may ask. All nodes of a cluster, since any of them sends on."""
        if self._placement is None:
            advertised = self.door.config.kafka_advertised
            host, port = (session.host, session.port)
            if advertised:
                host, port = host_and_port(advertised)
            return [BrokerAddress(self.id, host, port)]
        return [
            BrokerAddress(_id_of(name), *host_and_port(node.kafka))
            for name, node in self._placement.nodes().items()
            if node.kafka
        ]


def _id_of(node: str) -> int:
    """The same at every node, and after a restart."""
    return crc32(node.encode()) >> 1
