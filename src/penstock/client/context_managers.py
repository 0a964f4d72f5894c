"""What the faces of clients share: `with` blocks, and streams that are iterated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Generator, Iterator
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from penstock.client.stream_progress import StreamMessage


class Closing(ABC):
    """Is closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClosing(ABC):
    """Is closed at the end of an `async with` block."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class _Member(Protocol):
    def next(self) -> StreamMessage | None: ...

    def leave(self, *, failed: bool = False) -> None: ...


class Iterated:
    """A stream for `for`. It leaves its group at the end of a `with` block."""

    def close(self: _Member) -> None:
        self.leave()

    def __iter__(self: _Member) -> Iterator[StreamMessage]:
        while True:
            message = self.next()
            if message is not None:
                yield message

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self: _Member,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave(failed=exc is not None)


class _AsyncMember(Protocol):
    async def next(self) -> StreamMessage | None: ...

    async def leave(self, *, failed: bool = False) -> None: ...

    async def _enter(self) -> None: ...


_M = TypeVar("_M", bound=_AsyncMember)


class AsyncIterated:
    """A stream for `async for`. It joins its group at the start of `async with`, when it is awaited
    itself, or with the first message that is asked for."""

    async def close(self: _AsyncMember) -> None:
        await self.leave()

    def __await__(self: _M) -> Generator[Any, None, _M]:
        return _entered(self).__await__()

    async def __aiter__(self: _AsyncMember) -> AsyncIterator[StreamMessage]:
        while True:
            message = await self.next()
            if message is not None:
                yield message

    async def __aenter__(self: _M) -> _M:
        return await _entered(self)

    async def __aexit__(
        self: _AsyncMember,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.leave(failed=exc is not None)


async def _entered(member: _M) -> _M:
    await member._enter()
    return member
