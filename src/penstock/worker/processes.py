"""Processes for handlers that compute."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_SPAWN = multiprocessing.get_context("spawn")  # a fork would take the broker and its threads along


class HandlerProcessDied(Exception):
    """The process of a handler ended before the handler did."""


class Processes:
    """Some processes, each of which works on one call at a time.

    A call that is cancelled kills its process; so a time limit holds for whatever a handler does.
    Function, arguments and result are pickled: the function is one of a module, by its name.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()

    async def call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """There must never be more calls than processes."""
        work = pickle.dumps((function, arguments))
        child = self._idle.pop() if self._idle else _Child(self._name)
        self._children.add(child)
        try:
            answer = await child.call(work)
        except BaseException:
            self._children.discard(child)
            child.kill()
            raise
        self._idle.append(child)
        result, error = pickle.loads(answer)
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        for child in self._children:
            child.kill()
        self._children.clear()
        self._idle.clear()


class _Child:
    def __init__(self, name: str) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_work, args=(theirs,), name=name, daemon=True)
        self._process.start()
        theirs.close()  # so that the pipe ends when the process does

    async def call(self, work: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        try:
            await loop.run_in_executor(None, self._pipe.send_bytes, work)
            loop.add_reader(self._pipe.fileno(), _wake, readable)
            try:
                await readable
            finally:
                loop.remove_reader(self._pipe.fileno())
            return await loop.run_in_executor(None, self._pipe.recv_bytes)
        except (EOFError, OSError):
            self._process.join(1)
            code = self._process.exitcode
            raise HandlerProcessDied(f"the process of the handler ended with {code}") from None

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _work(pipe: Connection) -> None:
    """In the process: call after call, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which ends us
    while True:
        try:
            work = pipe.recv_bytes()
        except EOFError:
            return
        result, error = None, None
        try:
            function, arguments = pickle.loads(work)
            result = function(**arguments)
        except BaseException as exc:  # noqa: BLE001 - it goes where the call came from
            error = exc
        pipe.send_bytes(_pickled(result, error))


def _pickled(result: Any, error: BaseException | None) -> bytes:
    try:
        answer = pickle.dumps((result, error))
        pickle.loads(answer)  # an exception may pickle, and not come back
    except Exception as exc:  # noqa: BLE001 - whatever their types do when they are pickled
        kept = error if error is not None else exc
        answer = pickle.dumps((None, RuntimeError(f"{type(kept).__name__}: {kept}")))
    return answer
