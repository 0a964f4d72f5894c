"""What is behind a client in this process, for tests that play retention, damage or a server."""

from __future__ import annotations

from penstock.broker.broker import Broker
from penstock.client.client import Client
from penstock.client.local_link import LocalLink


def broker_of(client: Client) -> Broker:
    link = client.link
    assert isinstance(link, LocalLink)
    return link._api._broker
