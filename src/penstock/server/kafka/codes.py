"""Error codes of the protocol, and which of them stands for an error of Penstock."""

from __future__ import annotations

from enum import IntEnum

from penstock import errors


class Code(IntEnum):
    """Those that are used here, by their names in the protocol."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_NOT_AVAILABLE = 15
    INVALID_TOPIC_EXCEPTION = 17
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123


class Refused(Exception):
    """A request, or a part of one, is answered with an error."""

    def __init__(self, code: Code, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message or code.name


_CODES: tuple[tuple[type[errors.PenstockError], Code], ...] = (
    (errors.TopicNotFound, Code.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.PartitionNotFound, Code.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.OffsetOutOfRange, Code.OFFSET_OUT_OF_RANGE),
    (errors.TopicExists, Code.TOPIC_ALREADY_EXISTS),
    (errors.GroupNotFound, Code.GROUP_ID_NOT_FOUND),
    (errors.GroupNotEmpty, Code.NON_EMPTY_GROUP),
    (errors.UnknownMember, Code.UNKNOWN_MEMBER_ID),
    (errors.StaleGeneration, Code.ILLEGAL_GENERATION),
    (errors.OutOfOrderSequence, Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (errors.ProducerFenced, Code.INVALID_PRODUCER_EPOCH),
    (errors.Forbidden, Code.TOPIC_AUTHORIZATION_FAILED),
    (errors.Unauthenticated, Code.SASL_AUTHENTICATION_FAILED),
    (errors.SchemaMismatch, Code.INVALID_RECORD),
    (errors.NotOwner, Code.NOT_LEADER_OR_FOLLOWER),
    (errors.QuotaExceeded, Code.POLICY_VIOLATION),
    (errors.MessageTooLarge, Code.MESSAGE_TOO_LARGE),
    (errors.FrameTooLarge, Code.MESSAGE_TOO_LARGE),
    (errors.InvalidInput, Code.INVALID_REQUEST),
    (errors.LogError, Code.KAFKA_STORAGE_ERROR),
)


def refusal_of(error: errors.PenstockError) -> Refused:
    """What a client is told of an error: one that it retries if that may help."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return Refused(code, str(error))
    if error.retriable:
        return Refused(Code.REQUEST_TIMED_OUT, str(error))
    return Refused(Code.UNKNOWN_SERVER_ERROR, str(error))
