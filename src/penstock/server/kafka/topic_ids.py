"""Ids of topics, by which newer requests name them."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Any
from uuid import UUID

from penstock.broker.api import Api
from penstock.errors import TopicNotFound
from penstock.model import calls
from penstock.model.names import TopicName
from penstock.model.topics import TopicDescription

_KNOWN_MAX = 10_000


class TopicIds:
    """Which topic has an id. An id belongs to one topic for ever: one that is made again under the
    name of another has another id, because its incarnation is another one."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: OrderedDict[UUID, TopicName] = OrderedDict()

    def describe(self, name: TopicName) -> tuple[UUID, TopicDescription]:
        """Raises TopicNotFound."""
        described: Any = self._api.ask(
            calls.DescribeTopic(topic=name.topic, namespace=name.namespace)
        )
        id_ = _id_of(name, described.incarnation)
        self._known[id_] = name
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        return id_, described

    def find(self, id_: UUID | None, namespace: str) -> TopicName | None:
        """The topic of a namespace with this id, if there is one; a look at all of them if it was
        not seen lately."""
        if id_ is None:
            return None
        known = self._known.get(id_)
        names = self._api.partition_counts(namespace) if known is None else [known.topic]
        for topic in names:
            name = TopicName(namespace, topic)
            try:
                if self.describe(name)[0] == id_:
                    return name
            except TopicNotFound:
                continue
        return None


def _id_of(name: TopicName, incarnation: str) -> UUID:
    text = f"{name.namespace}/{name.topic}/{incarnation}"
    return UUID(bytes=blake2b(text.encode(), digest_size=16).digest(), version=4)
