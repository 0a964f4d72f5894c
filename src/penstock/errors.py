"""Every error that Penstock raises, under one root.

A caller decides by class, `code` or `retriable`; a person reads the message. The codes are stable:
they are also what goes over the wire.
"""

from __future__ import annotations

import errno
from datetime import timedelta
from typing import ClassVar


class PenstockError(Exception):
    """Something went wrong in Penstock."""

    code: ClassVar[str] = "error"
    retriable: ClassVar[bool] = False
    repeated: bool = False
    """Whether an earlier attempt, whose answer was lost, may have been carried out."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class InvalidInput(PenstockError, ValueError):
    """A value handed to Penstock is not allowed."""

    code = "invalid_input"


class MessageTooLarge(InvalidInput):
    """A message is longer than the limit of its topic."""

    code = "message_too_large"


class MissingExtra(PenstockError, ImportError):
    """An optional part of Penstock is not installed."""

    code = "missing_extra"

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs an extra: pip install 'penstock[{extra}]'")


# Frames: what bytes can be.


class FrameError(PenstockError):
    """A frame cannot be read."""

    code = "frame_error"

    def __init__(self, position: int, reason: str) -> None:
        self.position = position
        self.reason = reason
        super().__init__(f"frame at byte {position}: {reason}")


class FrameCorrupt(FrameError):
    """The bytes are not the frame that was written."""

    code = "frame_corrupt"


class FrameTruncated(FrameCorrupt):
    """The frame goes on past the bytes that are there."""

    code = "frame_truncated"


class FrameTooLarge(FrameError):
    """The frame is, or claims to be, larger than is ever written."""

    code = "frame_too_large"


# Logs: what a folder of segments can be.


class LogError(PenstockError):
    """A log cannot do what was asked."""

    code = "log_error"


class LogClosed(LogError):
    """The log was closed. Open it again to go on."""

    code = "log_closed"


class LogFailed(LogError):
    """The log stopped after a failed write or fsync. Reopen it to recover what is on disk."""

    code = "log_failed"

    def __init__(self, folder: str, cause: BaseException) -> None:
        super().__init__(
            f"log {folder} stopped accepting writes: {cause}. What was confirmed is safe; "
            "mend the disk, then reopen the log to recover."
        )


class LogNotFound(LogError):
    """There is no log in this folder."""

    code = "log_not_found"


class FormatOutdated(LogError):
    """The data is of an earlier format version. Opening its data folder for writing converts it."""

    code = "format_outdated"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is of an earlier format version. Open its data folder once with this version "
            "of Penstock, with penstock.connect or the server: that converts it."
        )


class FormatUnknown(LogError):
    """The data is of a later format version than this Penstock knows. Use a later one."""

    code = "format_unknown"

    def __init__(self, path: str, version: object) -> None:
        super().__init__(
            f"{path} is of format version {version}, which a later Penstock wrote: use that one"
        )


class DiskFull(LogError):
    """There is no room for the write. Nothing of it was stored; it can be tried again."""

    code = "disk_full"
    retriable = True


class TooManyOpenFiles(LogError, OSError):
    """The process has no file descriptor left. Nothing of the call happened; it can be tried again.

    An OSError too, so that it passes for the operating system's own where one is expected.
    """

    code = "too_many_open_files"
    retriable = True

    def __init__(self, path: str = "") -> None:
        super().__init__(
            f"{path or 'a file'} cannot be opened: this process has as many open files and "
            "connections as it may (ulimit -n). Close some or raise the limit, then try again."
        )
        self.errno = errno.EMFILE


class OffsetOutOfRange(LogError):
    """The offset is not, or no longer, in the log."""

    code = "offset_out_of_range"

    def __init__(self, offset: int, start: int, end: int) -> None:
        self.offset, self.start, self.end = offset, start, end
        super().__init__(f"offset {offset} is outside this log, which holds {start} up to {end}")


class DataLost(LogError):
    """Messages that were to be read are no longer there, or damaged."""

    code = "data_lost"


class LakeConflict(PenstockError):
    """Somebody else wrote to this lake table at the same time."""

    code = "lake_conflict"
    retriable = True


class JavaMissing(PenstockError):
    """Spark needs Java 17 or newer, and none was found."""

    code = "java_missing"


class SparkFailed(PenstockError):
    """Spark could not do its part."""

    code = "spark_failed"


class DataFolderInUse(LogError):
    """Another process works on this data folder."""

    code = "data_folder_in_use"

    def __init__(self, folder: str, owner: str) -> None:
        self.folder, self.owner = folder, owner
        super().__init__(
            f"{folder} is in use by {owner or 'another process'}. Connect to that process, "
            "stop it first, or use another folder."
        )


# Groups: what a member of a consumer group can be told.


class GroupError(PenstockError):
    """A consumer group cannot do what was asked."""

    code = "group_error"


class UnknownMember(GroupError):
    """The group does not have this member: it left, was silent too long, or never joined."""

    code = "unknown_member"

    def __init__(self, group: str, member_id: str) -> None:
        self.group, self.member_id = group, member_id
        super().__init__(
            f"group {group} does not have member {member_id}: it left, was silent for longer than "
            "its session, or the broker restarted. Join again."
        )


class StaleGeneration(GroupError):
    """The call speaks for a time that is over."""

    code = "stale_generation"

    def __init__(self, group: str, generation: int, since: int, what: str) -> None:
        self.group, self.generation, self.since = group, generation, since
        super().__init__(
            f"generation {generation} of group {group} is not valid for {what}, which counts from "
            f"generation {since}. Heartbeat for the present assignment, or join again."
        )


class StaleCommit(GroupError):
    """A later commit of the same member was here before; nothing was committed."""

    code = "stale_commit"


class PartitionNotOwned(GroupError):
    """The partition is not assigned to this member."""

    code = "partition_not_owned"

    def __init__(self, group: str, member_id: str, partition: str) -> None:
        self.group, self.member_id, self.partition = group, member_id, partition
        super().__init__(
            f"{partition} is not assigned to member {member_id} of group {group}; nothing was "
            "committed. Heartbeat for the present assignment."
        )


class GroupNotEmpty(GroupError):
    """The group has members; stop them first."""

    code = "group_not_empty"

    def __init__(self, group: str, members: int) -> None:
        self.group, self.members = group, members
        super().__init__(
            f"group {group} has {members} members. Stop them first, or let a member commit."
        )


# Delivery: what a consumer or a producer can be told.


class DeliveryError(PenstockError):
    """A message cannot be settled."""

    code = "delivery_error"


class LeaseLost(DeliveryError):
    """The consumer no longer holds the message: its lease ran out, or it gave the message back."""

    code = "lease_lost"

    def __init__(self, offset: int | None = None) -> None:
        self.offset = offset
        what = "" if offset is None else f" on message {offset}"
        super().__init__(
            f"the lease{what} is over: it ran out, or the message was given back. Nothing was "
            "changed; whoever receives the message next works on it. "
            "Longer work needs a longer visibility, or extend() in time."
        )


class AlreadySettled(DeliveryError):
    """The message is done: acked, among the dead letters, or purged."""

    code = "already_settled"

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(
            f"message {offset} is already done: acked, among the dead letters, or purged. "
            "Nothing was changed."
        )


class InvalidReceipt(DeliveryError, ValueError):
    """A receipt that was never given out, or that a seek or the end of its topic made void."""

    code = "invalid_receipt"

    def __init__(self, receipt: object) -> None:
        super().__init__(
            f"{receipt!r:.200} is no receipt that counts: it was never given out, its topic was "
            "deleted, or the group was set to another offset since. A receipt is "
            "topic:partition:offset:delivery_count:nonce, as it came with the message."
        )


class ProducerError(PenstockError):
    """A producer's batch cannot be taken."""

    code = "producer_error"


class ProducerFenced(ProducerError):
    """A newer producer has taken over this producer id."""

    code = "producer_fenced"

    def __init__(self, producer_id: int, epoch: int, current: int) -> None:
        self.producer_id, self.epoch, self.current = producer_id, epoch, current
        super().__init__(
            f"producer {producer_id} of epoch {epoch} was replaced by epoch {current}; "
            "nothing of the batch was stored. Only the newer one may go on."
        )


class OutOfOrderSequence(ProducerError):
    """A batch of an idempotent producer came before the one that precedes it."""

    code = "out_of_order_sequence"

    def __init__(self, producer_id: int, sequence: int, expected: int) -> None:
        self.producer_id, self.sequence, self.expected = producer_id, sequence, expected
        super().__init__(
            f"producer {producer_id} sent sequence {sequence} where {expected} comes next; "
            "nothing of the batch was stored. Send what is missing, or start a new epoch at 0."
        )


# Topics: what can be asked of a broker.


class TopicError(PenstockError):
    """A topic cannot do what was asked."""

    code = "topic_error"


class TopicNotFound(TopicError):
    """There is no such topic."""

    code = "topic_not_found"

    def __init__(self, topic: str, nearest: str | None = None) -> None:
        """`nearest` is a topic that there is, and that may have been meant."""
        self.topic, self.nearest = topic, nearest
        what_to_do = (
            f"did you mean {nearest!r}?" if nearest else "create it first with create_topic()"
        )
        super().__init__(f"there is no topic {topic!r}; {what_to_do}")


class TopicExists(TopicError):
    """There is such a topic already."""

    code = "topic_exists"

    def __init__(self, topic: str, how: str = "already") -> None:
        self.topic = topic
        super().__init__(f"topic {topic!r} exists {how}; alter_topic() changes its settings")


class PartitionNotFound(TopicError):
    """The topic does not have so many partitions."""

    code = "partition_not_found"

    def __init__(self, topic: str, partition: object, count: int) -> None:
        super().__init__(f"topic {topic!r} has partitions 0 to {count - 1}, not {partition!r}")


class BrokerClosed(PenstockError):
    """The broker was closed. Connect again to go on."""

    code = "broker_closed"


class GroupNotFound(GroupError):
    """There is no such group."""

    code = "group_not_found"

    def __init__(self, group: str) -> None:
        self.group = group
        super().__init__(f"there is no stream group {group!r}")


# Keys and configuration: what an operator can be told.


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
    """The file of API keys cannot be read, so that nobody is let in."""

    code = "keys_unreadable"

    def __init__(self, path: str, cause: object) -> None:
        self.path = path
        super().__init__(
            f"{path} cannot be read: {cause}. Nobody is let in until it can; restore it, or "
            "remove it and make new keys."
        )


class PortInUse(PenstockError):
    """Another process listens on this port."""

    code = "port_in_use"

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        super().__init__(
            f"cannot listen on {host} port {port}: another process does. Stop that process, or "
            "take another port."
        )


class InvalidConfig(InvalidInput):
    """A setting of the configuration is not allowed, or not known."""

    code = "invalid_config"


# The server: what a client far away can be told.


class Unauthenticated(PenstockError):
    """The request has no API key, or one that is not good."""

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
    """The body of a request is of a kind that is not understood."""

    code = "unsupported_media_type"


class RequestTimeout(PenstockError):
    """The request did not arrive in time."""

    code = "request_timeout"
    retriable = True


class TooManyRequests(PenstockError):
    """The client makes more requests than it may."""

    code = "too_many_requests"
    retriable = True

    def __init__(self, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(f"too many requests; try again in {retry_after_s:.3g} s")


class Unavailable(PenstockError):
    """The server cannot be reached, or cannot take the request now."""

    code = "unavailable"
    retriable = True


class InvalidPayload(PenstockError, ValueError):
    """The value of a message is not what it was to be read as."""

    code = "invalid_payload"


class ProtocolError(PenstockError):
    """What came back is not the answer of a Penstock server."""

    code = "protocol_error"


# Workers: what a handler may raise to say what it wants.


class Reject(PenstockError):
    """Raised by a handler: no retry would help, so the message goes to the dead letters."""

    code = "rejected"


class Retry(PenstockError):
    """Raised by a handler: not now. The message comes again, after `delay` if it is given."""

    code = "retry"
    retriable = True

    def __init__(
        self, message: str | None = None, *, delay: str | float | timedelta | None = None
    ) -> None:
        self.delay = delay
        super().__init__(message)


class HandlerFailed(PenstockError):
    """The message whose result is asked for was given up: its handler failed."""

    code = "handler_failed"
