"""From a target to a client: a folder is opened here, a URL is another process's broker."""

from __future__ import annotations

import os

from penstock.broker.broker import Broker, BrokerConfig
from penstock.broker.names import topic_name
from penstock.client.async_client import AsyncClient
from penstock.client.client import Client
from penstock.errors import InvalidInput


def open_broker(target: str | os.PathLike[str], namespace: str, auto_create: bool) -> Broker:
    text = os.fspath(target)
    topic_name("any", namespace)  # before a folder is made and locked for nothing
    if "://" in text:
        raise InvalidInput(f"{text}: only data folders can be opened; remote brokers are to come")
    return Broker(text, BrokerConfig(auto_create=auto_create))


def connect_sync(target: str | os.PathLike[str], namespace: str, auto_create: bool) -> Client:
    return Client(open_broker(target, namespace, auto_create), namespace)


def connect_async(target: str | os.PathLike[str], namespace: str, auto_create: bool) -> AsyncClient:
    return AsyncClient(open_broker(target, namespace, auto_create), namespace)
