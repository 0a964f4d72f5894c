"""HTTP/1.1 without I/O: requests as bytes, and answers out of bytes."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from penstock import __version__
from penstock.errors import InvalidInput, MissingExtra, ProtocolError
from penstock.model.published import CallId
from penstock.wire.columns import PIECES_HEADER
from penstock.wire.routes import CALL_HEADER, OWNER_HEADER

try:
    import httptools
except ImportError as exc:
    raise MissingExtra("remote", "connecting to a server") from exc

ANSWER_BYTES_MAX = 1 << 30
_HEAD_BYTES_MAX = 64 << 10
_PIECES = PIECES_HEADER.encode()
_OWNER = OWNER_HEADER.encode()
_USUAL = re.compile(
    rb"HTTP/1\.1 ([2-5]\d\d) [^\r\n]*\r\n"
    rb"content-type: ([^\r\n;]*)\r\n"
    rb"(?:%b: ([^\r\n]*)\r\n)?"
    rb"content-length: (\d{1,9})\r\n\r\n" % _PIECES
)
"""How the answers of a Penstock server begin, where nobody in between has changed them."""


class Address(NamedTuple):
    """Where a server is."""

    scheme: str
    host: str
    port: int
    base: str
    """A path in front of all others, where the server is behind a proxy."""

    @classmethod
    def parse(cls, url: str) -> Address:
        try:
            parts = urlsplit(url)
            port = parts.port
            host = (parts.hostname or "").encode("idna").decode("ascii")
        except ValueError as exc:
            raise InvalidInput(f"{url!r:.200} is not a URL: {exc}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise InvalidInput(
                f"{url!r:.200}: give a folder, http://host:port or https://host:port"
            )
        if parts.query or parts.fragment or parts.username is not None:
            raise InvalidInput(
                f"{url!r:.200}: a URL of a server has neither user, query nor fragment"
            )
        if not parts.path.isascii():
            raise InvalidInput(f"{url!r:.200}: in a path, write such letters percent-encoded")
        default = 443 if parts.scheme == "https" else 80
        return cls(parts.scheme, host, port or default, parts.path.rstrip("/"))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.base}"


class ServerRequest(msgspec.Struct, frozen=True, gc=False):
    """What is asked of the server."""

    method: str
    path: str
    body: bytes | None = None
    content_type: str = ""
    accept: str = ""
    wait_s: float = 0
    """How long the server may take on top of the usual, because it waits for messages."""
    repeatable: bool = True
    """Whether it may be sent again when nobody knows if it has arrived."""
    call: CallId | None = None
    """By which the server knows it, if it is sent again."""


class Reply(msgspec.Struct, gc=False):
    status: int
    content_type: str
    body: bytes
    pieces: bytes = b""
    """The header of that name."""
    owner: str = ""
    """In a cluster: the URL of the node that had to be asked, if it was another one."""


class RequestWriter:
    """Lays down requests to one server."""

    def __init__(self, address: Address, api_key: str | None) -> None:
        host = f"[{address.host}]" if ":" in address.host else address.host
        default = address.port == (443 if address.scheme == "https" else 80)
        lines = [
            f"host: {host}" if default else f"host: {host}:{address.port}",
            f"user-agent: penstock/{__version__}",
        ]
        if api_key is not None:
            if not api_key.isascii() or not api_key.isprintable():
                raise InvalidInput("the API key has characters that no key has")
            lines.append(f"authorization: Bearer {api_key}")
        self.authorization = {"authorization": f"Bearer {api_key}"} if api_key is not None else {}
        self._api_key = api_key
        self._common = "".join(f"{line}\r\n" for line in lines)
        self._base = address.base

    def at(self, address: Address) -> RequestWriter:
        """The same for another server."""
        return RequestWriter(address, self._api_key)

    def bytes(self, request: ServerRequest) -> bytes:
        body = request.body
        head = f"{request.method} {self._base}{request.path} HTTP/1.1\r\n{self._common}"
        if request.accept:
            head += f"accept: {request.accept}\r\n"
        if request.call is not None:
            head += f"{CALL_HEADER}: {request.call}\r\n"
        if body is None:
            return f"{head}\r\n".encode("ascii")
        about = f"content-type: {request.content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
        return f"{head}{about}".encode("ascii") + body


class Reader:
    """Takes the bytes of a connection and gives answers; one at a time."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._content_type = ""
        self._pieces = b""
        self._owner = ""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._in_head = True
        self._reply: Reply | None = None
        self.began = False
        """Whether some of the present answer has come."""
        self.keep_alive = True

    def feed(self, data: bytes) -> Reply | None:
        """The answer, once it is complete."""
        if not self.began:
            # One of ours, and all of it: nothing is left for the parser to find out.
            usual = _USUAL.match(data)
            if usual is not None and usual.end() + int(usual[4]) == len(data):
                kind, body = usual[2].decode("latin-1"), data[usual.end() :]
                return Reply(int(usual[1]), kind, body, usual[3] or b"")
        self.began = True
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise ProtocolError("the server speaks another protocol") from None
        except httptools.HttpParserError as exc:
            raise ProtocolError(f"the answer is not HTTP: {exc}") from None
        if self._in_head and self._head_bytes > _HEAD_BYTES_MAX:
            raise ProtocolError("the head of the answer does not end")
        reply, self._reply = self._reply, None
        if reply is not None:
            self.began = False
            if reply.status == 101:
                raise ProtocolError("the server speaks another protocol")
        return reply

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._content_type = ""
        self._pieces = b""
        self._owner = ""
        self._body = []
        self._body_bytes = 0
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer
        name = name.lower()
        if name == b"content-type":
            self._content_type = value.decode("latin-1").partition(";")[0]
        elif name == _PIECES:
            self._pieces = value
        elif name == _OWNER:
            self._owner = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._in_head = False
        status = self._parser.get_status_code()
        if status >= 200:  # others go on with another head, and may not do so for ever
            self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > ANSWER_BYTES_MAX:
            raise ProtocolError("the answer is longer than any of a Penstock server")
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        status = self._parser.get_status_code()
        self._reply = Reply(status, self._content_type, body, self._pieces, self._owner)
        self.keep_alive = self._parser.should_keep_alive()
        self._in_head = True
