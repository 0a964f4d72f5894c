"""What the parts of a broker share: its state, and whether it is open."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.errors import BrokerClosed, LogError

if TYPE_CHECKING:
    from penstock.broker.broker import BrokerConfig
    from penstock.broker.catalog import Catalog
    from penstock.broker.chores import TopicChores
    from penstock.broker.claims import Claims
    from penstock.broker.counters import Counters
    from penstock.broker.history import History
    from penstock.broker.housekeeper import Housekeeper
    from penstock.broker.latencies import Latencies
    from penstock.broker.resting_stats import RestingStats
    from penstock.broker.retention import TopicRetention
    from penstock.broker.schemas import SchemaRegistry
    from penstock.broker.store import Store
    from penstock.broker.streams import Streams
    from penstock.broker.tenants import Tenants
    from penstock.broker.topic import Topic
    from penstock.broker.transactions import Transactions
    from penstock.broker.unopened import UnopenedTopics
    from penstock.broker.waiters import Waiters
    from penstock.clock import Clock
    from penstock.log.engine import Engine
    from penstock.model.names import TopicName


class BrokerPart:
    """`Broker` makes all of it, and is what the rest of the room knows."""

    folder: str
    config: BrokerConfig
    clock: Clock
    latencies: Latencies
    counters: Counters
    history: History
    schemas: SchemaRegistry
    streams: Streams
    tenants: Tenants
    _engine: Engine
    _store: Store
    _catalog: Catalog
    _housekeeper: Housekeeper
    _retention: TopicRetention
    _resting_stats: RestingStats
    _transactions: Transactions
    _unopened: UnopenedTopics

    _lock: threading.RLock
    """Held by who makes, changes or deletes a topic; taken before those of partitions."""
    _claims: Claims
    """On the topics that are being opened."""
    _closed: bool
    _abandoned: bool
    _lost: LogError | None
    _topics: dict[TopicName, Topic]
    """Those that are open."""
    _chores: dict[TopicName, TopicChores]
    _waiters: dict[TopicName, Waiters]

    def _check_open(self) -> None:
        if self._abandoned:
            raise BrokerClosed(
                f"the broker on {self.folder} was opened by the process that this one was forked "
                "from; connect after the fork, or serve the folder (penstock serve) for both"
            )
        if self._lost is not None:
            raise self._engine.loss()
        if self._closed:
            raise BrokerClosed(f"the broker on {self.folder} was closed; connect again to go on")
