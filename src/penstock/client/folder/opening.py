"""Opening a data folder that other processes may have open: as its owner, or as its client."""

from __future__ import annotations

import os
import time

import msgspec

from penstock.broker.api import Api
from penstock.broker.broker import Broker, BrokerConfig
from penstock.client.folder.address import has_socket, is_listening, remove
from penstock.client.folder.host import open_shared
from penstock.client.folder.link import FolderLink
from penstock.client.link import Link
from penstock.client.local_link import LocalLink
from penstock.client.read_only_link import ReadOnlyLink
from penstock.client.waiting import run
from penstock.errors import DataFolderInUse, LogNotFound, Unavailable, storage_error
from penstock.log.local_engine import LocalEngine
from penstock.log.overlay import OverlayFiles
from penstock.model.catalog import CATALOG_LOG

_LISTENS_WITHIN_S = 1.0
"""An owner that shares the folder has its socket there as soon as it has the lock, and until it
lets go of that. One that has not wants the folder for itself."""


class FolderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a process works on a data folder."""

    auto_create: bool = False
    exclusive: bool = False
    read_only: bool = False
    timeout_s: float = 30.0
    retry_for_s: float = 30.0


def open_folder(folder: str, config: FolderConfig) -> Link:
    """The link to the folder's broker: in this process, or in the one that has the folder."""
    try:
        if config.read_only:
            return ReadOnlyLink(_open_to_look(os.path.abspath(folder), config))
        return _open(os.path.abspath(folder), config)
    except OSError as exc:
        raise storage_error(exc, f"{folder} cannot be opened") from exc


def _open(folder: str, config: FolderConfig) -> LocalLink | FolderLink:
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


def _open_to_look(folder: str, config: FolderConfig) -> LocalLink | FolderLink:
    """Through the owner, if there is one that listens; otherwise at the folder as it is now."""
    if not os.path.isdir(os.path.join(folder, CATALOG_LOG)):
        raise LogNotFound(f"there is no data folder {folder}")
    if is_listening(folder):
        link = FolderLink(
            folder,
            lambda: _look(folder),
            timeout_s=config.timeout_s,
            retry_for_s=config.retry_for_s,
            auto_create=False,
        )
        try:
            run(link.hello())
            return link
        except Unavailable:
            link.close()  # it has just gone
        except BaseException:
            link.close()
            raise
    return _look(folder)


def _look(folder: str) -> LocalLink:
    """A broker whose files are those of the folder, and whose writes go nowhere."""
    engine = LocalEngine(folder, files=OverlayFiles())
    return LocalLink(Api(Broker(engine, housekeeping=False)))


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
