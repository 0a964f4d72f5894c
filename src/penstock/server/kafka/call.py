"""One request of a client, as its handler sees it, and what is known of its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.api import Api
from penstock.errors import InvalidInput
from penstock.model.names import DEFAULT_NAMESPACE, TopicName, topic_name
from penstock.server.gate import check_right
from penstock.server.kafka.codes import Code, Refused
from penstock.server.kafka.messages import Head
from penstock.server.keys import Key, Right

if TYPE_CHECKING:
    from penstock.server.kafka.broker import KafkaBroker


class KafkaSession:
    """What a connection has said of itself."""

    def __init__(self, address: str, host: str, port: int) -> None:
        """`host` and `port` are where the client reached us."""
        self.address = address
        self.host = host
        self.port = port
        self.key: Key | None = None
        self.namespace = DEFAULT_NAMESPACE
        self.is_authenticated = False
        self.is_forwarded = False
        """Another node of the cluster speaks, for a client of its own."""
        self.mechanism_agreed = False
        self.turn = 0
        """Which partition a fetch begins with, so that each has its turn."""


class KafkaCall:
    """A request that was read, and the server that it came to."""

    def __init__(
        self, broker: KafkaBroker, session: KafkaSession, head: Head, client_id: str, body: Any
    ) -> None:
        self.broker = broker
        self.door = broker.door
        self.session = session
        self.version = head.version
        self.client_id = client_id
        self.body = body

    @property
    def api(self) -> Api:
        return self.door.api

    @property
    def namespace(self) -> str:
        return self.session.namespace

    def check(self, right: Right) -> None:
        """Raise Forbidden unless the client's key allows it in its namespace."""
        check_right(self.session.key, right, self.session.namespace)

    def may(self, right: Right) -> bool:
        key = self.session.key
        return key is None or key.may(right, self.session.namespace)

    def topic(self, name: str) -> TopicName:
        """A topic of the client's namespace. Raises Refused if it cannot be the name of one."""
        try:
            return topic_name(name, self.session.namespace)
        except InvalidInput as exc:
            raise Refused(Code.INVALID_TOPIC_EXCEPTION, str(exc)) from None
