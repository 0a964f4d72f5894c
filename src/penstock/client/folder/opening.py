"""Opening a data folder that other processes may have open: as its owner, or as its client."""

from __future__ import annotations

import os
import time

import msgspec

from penstock.broker.api import Api
from penstock.broker.broker import Broker, BrokerConfig
from penstock.client.folder.address import has_socket, remove
from penstock.client.folder.host import open_shared
from penstock.client.folder.link import FolderLink
from penstock.client.local_link import LocalLink
from penstock.client.waiting import run
from penstock.errors import DataFolderInUse, Unavailable
from penstock.log.local_engine import LocalEngine

_LISTENS_WITHIN_S = 1.0
"""An owner that shares the folder has its socket there as soon as it has the lock, and until it
lets go of that. One that has not wants the folder for itself."""


class FolderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a process works on a data folder."""

    auto_create: bool = False
    exclusive: bool = False
    timeout_s: float = 30.0
    retry_for_s: float = 30.0


def open_folder(folder: str, config: FolderConfig) -> LocalLink | FolderLink:
    """The link to the folder's broker: in this process, or in the one that has the folder."""
    folder = os.path.abspath(folder)
    began = time.monotonic()
    while True:
        try:
            return _own(folder, config)
        except DataFolderInUse:
            patience_s = config.retry_for_s if has_socket(folder) else _LISTENS_WITHIN_S
            if config.exclusive or time.monotonic() > began + patience_s:
                raise
        link = FolderLink(
            folder,
            lambda: _own(folder, config),
            timeout_s=config.timeout_s,
            retry_for_s=config.retry_for_s,
            auto_create=config.auto_create,
        )
        try:
            run(link.hello())
            return link
        except Unavailable:
            link.close()
            time.sleep(0.01)
        except BaseException:
            link.close()
            raise


def _own(folder: str, config: FolderConfig) -> LocalLink:
    engine = LocalEngine(folder)
    broker_config = BrokerConfig(auto_create=config.auto_create)
    if config.exclusive:
        remove(folder)  # that of an owner that was killed; nobody is to wait for it
        return LocalLink(Api(Broker(engine, broker_config)))
    broker, host = open_shared(engine, broker_config)
    api = Api(broker)
    host.serve(api)
    return LocalLink(api, host.close)
