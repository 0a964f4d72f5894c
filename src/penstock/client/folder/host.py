"""The owner's side of a shared data folder: it listens on the folder's socket, and answers.

A thread for each connection: it asks the broker as a client in this process would, and waits where
that would wait. A thread that waits for messages ends when its client goes away, so that none is
handed out to nobody.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import threading
import time
from concurrent.futures import FIRST_COMPLETED
from concurrent.futures import wait as wait_for
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Self, TypeVar

from penstock.at_exit import rest_at_exit
from penstock.broker.api import Api
from penstock.broker.broker import Broker, BrokerConfig
from penstock.client.folder import address
from penstock.client.folder.answering import answer
from penstock.client.folder.protocol import FrameReader, problem_frame
from penstock.client.local_link import LocalLink
from penstock.client.waiting import Signal, Steps, Wait
from penstock.errors import ProtocolError, Unavailable
from penstock.forks import abandon_in_children
from penstock.log.local_engine import LocalEngine

T = TypeVar("T")

CONNECTIONS_MAX = 256
ANSWER_BYTES_MAX = 64 << 20
_CLOSE_S_MAX = 5.0
_READ_BYTES = 256 << 10

_logger = logging.getLogger("penstock.folder")


class Host:
    """Listens from the moment the folder is locked, so that nobody takes it for deserted while it
    is recovered; answers from `serve` on, until `close`, which comes before that of the broker."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._guests: dict[int, _Guest] = {}
        self.clients = count()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None
        try:
            self._listener = address.listen(folder)
        except OSError as exc:  # not every file system has sockets
            _logger.warning("%s cannot be shared with other processes: %s", folder, exc)
            return
        self._poller = select.epoll()
        self._poller.register(self._listener, select.EPOLLIN)
        abandon_in_children(self)
        rest_at_exit(self)

    def serve(self, api: Api) -> None:
        if self._listener is not None:
            link = LocalLink(api.limited(ANSWER_BYTES_MAX))
            self._thread = threading.Thread(
                target=self._run, args=(link,), name="penstock-folder", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Finish calls under way; clients that wait for messages look for the next owner."""
        if self._listener is None or self._closed:
            return
        with self._lock:
            self._closed = True
            guests = list(self._guests.values())
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        if self._thread is not None:
            self._thread.join()
        self._listener.close()
        self._poller.close()
        for guest in guests:
            guest.dismiss()
        deadline = time.monotonic() + _CLOSE_S_MAX
        for guest in guests:
            guest.thread.join(max(0.0, deadline - time.monotonic()))

    def rest(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def abandon(self) -> None:
        """This is a forked process: the socket is its parent's, and stays where it is."""
        self._lock = threading.Lock()
        self._closed = True
        assert self._listener is not None
        self._listener.close()
        self._poller.close()
        for guest in self._guests.values():
            guest.sock.close()

    def _run(self, link: LocalLink) -> None:
        assert self._listener is not None
        listening = self._listener.fileno()
        while not self._closed:
            for fd, _ in self._poller.poll():
                if fd == listening:
                    self._accept(link)
                else:
                    self._hung_up(fd)

    def _accept(self, link: LocalLink) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError as exc:
            if exc.errno in (errno.EMFILE, errno.ENFILE):
                _logger.warning("another process cannot connect: %s", exc)
                time.sleep(0.1)
            return
        with self._lock:
            if len(self._guests) >= CONNECTIONS_MAX or self._closed:
                with suppress(OSError):
                    sock.sendall(problem_frame(Unavailable("too many connections; try again")))
                sock.close()
                return
            guest = _Guest(self, link, sock)
            self._guests[sock.fileno()] = guest
            self._poller.register(sock, select.EPOLLRDHUP)
        try:
            guest.thread.start()
        except RuntimeError as exc:  # there are as many threads as there may be
            _logger.warning("another process cannot connect: %s", exc)
            self.left(guest)

    def _hung_up(self, fd: int) -> None:
        with self._lock, suppress(OSError):
            guest = self._guests.get(fd)
            self._poller.unregister(fd)
            if guest is not None:
                guest.gone.fire()

    def left(self, guest: _Guest) -> None:
        with self._lock:  # the number of the socket may be given to another at once
            self._guests.pop(guest.sock.fileno(), None)
            with suppress(OSError, ValueError):  # it is not watched any more
                self._poller.unregister(guest.sock)
            guest.sock.close()


def open_shared(engine: LocalEngine, config: BrokerConfig) -> tuple[Broker, Host]:
    """A broker on a folder that was just locked, and who answers for it to other processes."""
    host = Host(engine.folder)
    # Last of all: as long as it lies there, those who connect know that they only have to wait.
    engine.before_release = lambda: address.remove(engine.folder)
    try:
        return Broker(engine, config), host
    except BaseException:
        host.close()
        raise


class _Guest:
    """A connection of another process, and the thread that answers it."""

    def __init__(self, host: Host, link: LocalLink, sock: socket.socket) -> None:
        self._host = host
        self._link = link
        self.sock = sock
        self.gone = Signal()
        self.thread = threading.Thread(target=self._run, name="penstock-guest", daemon=True)

    def dismiss(self) -> None:
        """Let it finish what was asked, but for a wait for messages."""
        self.gone.fire()
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RD)

    def _run(self) -> None:
        reader = FrameReader()
        try:
            while data := self.sock.recv(_READ_BYTES):
                frame = reader.feed(data)
                if frame is not None:
                    self.sock.sendall(self._wait(answer(self._link, frame, self._host.clients)))
        except (OSError, ProtocolError, _Gone):
            pass  # a client that went away, or was none of ours
        finally:
            self._host.left(self)

    def _wait(self, steps: Steps[T]) -> T:
        """As `run`, but it does not wait for messages once the client is gone."""
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Wait) and step.timeout_s is not None:
                        came: object = self._poll(step)
                    else:
                        came = step.block()
                except _Gone:
                    steps.close()
                    raise
                except BaseException as exc:  # noqa: BLE001 - the operation hears of it
                    step = steps.throw(exc)
                else:
                    step = steps.send(came)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _poll(self, step: Wait) -> bool:
        wait_for([step.future, self.gone.future], step.timeout_s, FIRST_COMPLETED)
        if self.gone.future.done():
            raise _Gone
        return step.future.done()


class _Gone(Exception):
    """Nobody waits for the answer."""
