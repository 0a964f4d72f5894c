"""What goes over the socket of a data folder: one question, one answer, in turns.

Both are frames: the lengths of a head and of a body, 4 and 8 bytes, little endian; the head as
MessagePack; the body, which is messages as an Arrow IPC stream, or the value of one. The head of a
question is one of the structs below. That of an answer is a problem or a result.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_type_hints

import msgspec

from penstock.errors import InvalidInput, PenstockError, ProtocolError
from penstock.model.calls import ROUTES
from penstock.model.deliveries import Extend, Nack, Rejection, Settle, Verb
from penstock.model.problem import Problem, error_of, problem_of
from penstock.model.published import CallId, ProducerSequence

VERSION = 1
T = TypeVar("T", bound=msgspec.Struct)

_LENGTHS = struct.Struct("<IQ")


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first question of a client."""

    version: int = VERSION


class AskCall(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A call of `penstock.model.calls`, by its name."""

    name: str
    fields: msgspec.Raw


class AskPublish(msgspec.Struct, frozen=True, array_like=True, tag="publish"):
    namespace: str
    topic: str
    partition: Any
    ttl: str | None
    producer: ProducerSequence | None
    call: CallId | None
    is_value: bool
    """The body is the value of one message, and not a stream."""
    dedup_window: str | None = None


class AskDelay(msgspec.Struct, frozen=True, array_like=True, tag="delay"):
    namespace: str
    topic: str
    partition: Any
    ttl: str | None
    delay_ns: int | None
    deliver_at_us: int | None
    """Without either, the column `timestamp` says when each row falls due."""
    call: CallId | None
    dedup_window: str | None = None


class AskTransaction(msgspec.Struct, frozen=True, array_like=True, tag="transaction"):
    """The body is the transaction."""

    namespace: str


class AskReceive(msgspec.Struct, frozen=True, array_like=True, tag="receive"):
    namespace: str
    topic: str
    group: str
    wanted: msgspec.Raw
    """A `Receive`."""


class AskSettle(msgspec.Struct, frozen=True, array_like=True, tag="settle"):
    verb: Verb
    namespace: str
    topic: str
    group: str
    named: msgspec.Raw


class AskFetch(msgspec.Struct, frozen=True, array_like=True, tag="fetch"):
    namespace: str
    wanted: msgspec.Raw
    """A `Fetch`."""


Question: TypeAlias = (
    Hello | AskCall | AskPublish | AskDelay | AskTransaction | AskReceive | AskSettle | AskFetch
)

CALLS = {call.__name__: call for call in ROUTES}
SETTLE_TYPES: dict[Verb, type[Settle]] = {
    "ack": Settle,
    "nack": Nack,
    "reject": Rejection,
    "extend": Extend,
}


class AnswerHead(msgspec.Struct, frozen=True, array_like=True):
    problem: Problem | None = None
    result: msgspec.Raw = msgspec.Raw(b"\xc0")  # nil


class SocketFrame(NamedTuple):
    head: bytes
    body: bytes


_encoder = msgspec.msgpack.Encoder()
_questions = msgspec.msgpack.Decoder(Question)
_answers = msgspec.msgpack.Decoder(AnswerHead)
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def encode(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, UnicodeEncodeError, OverflowError) as exc:
        raise InvalidInput(f"this cannot be sent: {exc}") from None


def decode(data: bytes | msgspec.Raw, kind: Any) -> Any:
    """What was sent, or InvalidInput."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidInput(str(exc)) from None


def decode_given(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """What a caller gave, with fields that are wrong as they are: the broker refuses those, in the
    words in which it refuses them to a caller in its own process."""
    try:
        return decode(data, kind)  # type: ignore[no-any-return]
    except InvalidInput:
        given = decode(data, Any)
        types = get_type_hints(kind, include_extras=True)
        if not isinstance(given, dict) or not given.keys() <= set(kind.__struct_fields__):
            raise  # none of our clients sent this
        try:
            return kind(**{name: _as_given(each, types[name]) for name, each in given.items()})
        except TypeError:  # a field is missing
            pass
        raise


def _as_given(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return value


def question_frame(question: Question, body: bytes = b"") -> bytes:
    return _frame(encode(question), body)


def decode_question(head: bytes) -> Question:
    try:
        question: Question = _questions.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"the question cannot be understood: {exc}") from None
    return question


def answer_frame(result: Any = None, body: bytes = b"") -> bytes:
    return _frame(_encoder.encode(AnswerHead(None, msgspec.Raw(_encoder.encode(result)))), body)


def problem_frame(error: PenstockError) -> bytes:
    return _frame(_encoder.encode(AnswerHead(problem_of(error))), b"")


def decode_answer(head: bytes) -> msgspec.Raw | PenstockError:
    """The result, still packed, or the error that an embedded client would have raised."""
    try:
        answer = _answers.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ProtocolError(f"the answer cannot be understood: {exc}") from None
    return answer.result if answer.problem is None else error_of(answer.problem)


class FrameReader:
    """Puts a frame together from what a socket gives."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._received_bytes = 0
        self._frame_bytes = _LENGTHS.size

    @property
    def is_between_frames(self) -> bool:
        return not self._received_bytes

    def feed(self, data: bytes) -> SocketFrame | None:
        """The frame, once all of it is there. There is never more: each waits for the other."""
        self._parts.append(data)
        self._received_bytes += len(data)
        if self._received_bytes < self._frame_bytes:
            return None
        data = data if len(self._parts) == 1 else b"".join(self._parts)
        head_bytes, body_bytes = _LENGTHS.unpack_from(data)
        body_at = _LENGTHS.size + head_bytes
        self._frame_bytes = body_at + body_bytes
        if self._received_bytes < self._frame_bytes:
            self._parts = [data]
            return None
        if self._received_bytes > self._frame_bytes:
            raise ProtocolError("more came than one frame")
        self._parts, self._received_bytes, self._frame_bytes = [], 0, _LENGTHS.size
        return SocketFrame(data[_LENGTHS.size : body_at], data[body_at:])


def _frame(head: bytes, body: bytes) -> bytes:
    return b"".join((_LENGTHS.pack(len(head), len(body)), head, body))
