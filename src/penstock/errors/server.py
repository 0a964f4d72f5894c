"""A server: its configuration and keys, and what its clients can be told."""

from __future__ import annotations

from penstock.errors.base import InvalidInput, PenstockError


class InvalidConfig(InvalidInput):
    """A setting of the configuration is not allowed, or not known."""

    code = "invalid_config"


class PortInUse(PenstockError):
    """Another process listens on this port."""

    code = "port_in_use"

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        super().__init__(
            f"cannot listen on {host} port {port}: another process does. Stop that process, or "
            "take another port."
        )


class KeyNotFound(PenstockError):
    """There is no such API key."""

    code = "key_not_found"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no API key {name!r:.100}; it may have been revoked before")


class KeyExists(PenstockError):
    """There is an API key of this name already."""

    code = "key_exists"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is an API key {name!r} already; revoke it, or take another name")


class KeysUnreadable(PenstockError):
    """The file of API keys cannot be read, so that every request is refused."""

    code = "keys_unreadable"

    def __init__(self, path: str, cause: object) -> None:
        self.path = path
        super().__init__(
            f"{path} cannot be read: {cause}. Every request is refused until it can; restore it, "
            "or remove it and make new keys."
        )


class Unauthenticated(PenstockError):
    """The request has no API key, or one that is not valid."""

    code = "unauthenticated"


class Forbidden(PenstockError):
    """The API key does not allow this."""

    code = "forbidden"


class NotFound(PenstockError):
    """There is nothing at this address."""

    code = "not_found"


class MethodNotAllowed(PenstockError):
    """This cannot be done with what is at this address."""

    code = "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        self.allow = allow
        """The methods that work, as the header of that name lists them."""
        super().__init__(message)


class RequestTooLarge(InvalidInput):
    """A request is larger than the server takes."""

    code = "request_too_large"


class UnsupportedMediaType(InvalidInput):
    """The server does not take a body of this media type."""

    code = "unsupported_media_type"


class RequestTimeout(PenstockError):
    """The request did not arrive in time."""

    code = "request_timeout"
    retriable = True


class Unavailable(PenstockError):
    """The server cannot be reached, or cannot take the request now."""

    code = "unavailable"
    retriable = True


class ProtocolError(PenstockError):
    """What came back is not the answer of a Penstock server."""

    code = "protocol_error"


class WebhookNotFound(NotFound):
    """There is no webhook of this name."""

    code = "webhook_not_found"
