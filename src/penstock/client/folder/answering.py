"""The answers of an owner: each question of another process, put to the link of its own broker.

Those who ask are processes of the same user, who could write to the files of the folder just as
well: what they send is checked as what a client in this process gives, and no further.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.client.folder.protocol import (
    CALLS,
    SETTLE_TYPES,
    VERSION,
    AskCall,
    AskDelay,
    AskFetch,
    AskPublish,
    AskReceive,
    AskSettle,
    AskTransaction,
    Hello,
    Question,
    SocketFrame,
    answer_frame,
    decode_given,
    decode_question,
    problem_frame,
)
from penstock.client.local_link import LocalLink
from penstock.client.waiting import Steps
from penstock.errors import InvalidInput, PenstockError, ProtocolError, storage_error
from penstock.model.calls import ROUTES
from penstock.model.deliveries import Receive
from penstock.model.groups import Fetch
from penstock.model.messages import MessagePage, PublishedRuns, run_of
from penstock.model.names import TopicName
from penstock.record.plain import Single
from penstock.wire.columns import decode_batch, encode_compact, encode_delivered, encode_read
from penstock.wire.json_forms import fetched_view, form_of, page_view
from penstock.wire.transactions import decode_transaction

_logger = logging.getLogger("penstock.folder")


def answer(link: LocalLink, frame: SocketFrame, clients: Iterator[int]) -> Steps[bytes]:
    """The frame that answers a question. `clients` numbers those who say hello."""
    try:
        question = decode_question(frame.head)
        if isinstance(question, Hello):
            return _welcome(question, clients)
        return (yield from _answer(link, question, frame.body))
    except PenstockError as exc:
        return problem_frame(exc)
    except OSError as exc:
        return problem_frame(storage_error(exc))
    except Exception as exc:
        _logger.exception("a question of another process failed")
        return problem_frame(PenstockError(f"{type(exc).__name__}: {exc}"))


def _answer(link: LocalLink, question: Question, body: bytes) -> Steps[bytes]:
    match question:
        case AskPublish():
            return (yield from _publish(link, question, body))
        case AskReceive(namespace, topic, group, wanted):
            receive = decode_given(wanted, Receive)
            delivered = yield from link.receive(TopicName(namespace, topic), group, receive)
            compact = encode_compact(delivered)
            if compact is None:
                return answer_frame(b"", encode_delivered(delivered))
            stream, pieces = compact
            return answer_frame(pieces, stream)
        case AskSettle(verb, namespace, topic, group, named):
            settle = decode_given(named, SETTLE_TYPES[verb])
            name = TopicName(namespace, topic)
            refused, _ = yield from link.settle(verb, name, group, settle)
            return answer_frame(refused)
        case AskFetch(namespace, wanted):
            fetched = yield from link.fetch(namespace, decode_given(wanted, Fetch))
            about = msgspec.json.encode(fetched_view(fetched, with_messages=False))
            batches = [batch for part in fetched.parts for batch in part.batches]
            return answer_frame(body=encode_read(batches, about))
        case AskTransaction(namespace):
            staged = decode_transaction(body, namespace, decode_batch)
            return answer_frame((yield from link.transact(staged)))
        case AskDelay():
            return (yield from _delay(link, question, body))
        case AskCall():
            return (yield from _ask(link, question))
    raise AssertionError(question)


def _welcome(hello: Hello, clients: Iterator[int]) -> bytes:
    if hello.version != VERSION:
        raise ProtocolError(
            f"the owner of the folder speaks version {VERSION}, this process {hello.version}: "
            "use the same Penstock in both"
        )
    return answer_frame(next(clients))


def _publish(link: LocalLink, question: AskPublish, body: bytes) -> Steps[bytes]:
    name = TopicName(question.namespace, question.topic)
    batch, dedup_ids = (Single(body), None) if question.is_value else decode_batch(body)
    placed = yield from link.publish(
        name,
        batch,
        partition=question.partition,
        ttl=question.ttl,
        producer=question.producer,
        dedup_ids=dedup_ids,
        dedup_window=question.dedup_window,
        call=question.call,
    )
    runs = [run_of(each) for each in placed]
    return answer_frame(PublishedRuns(runs=runs, partitions=link.partitions(name)))


def _delay(link: LocalLink, question: AskDelay, body: bytes) -> Steps[bytes]:
    name = TopicName(question.namespace, question.topic)
    batch, dedup_ids = decode_batch(body)
    when: dict[str, Any]
    if question.delay_ns is not None:
        when = {"delay": question.delay_ns / 1e9}
    elif question.deliver_at_us is not None:
        when = {"deliver_at": question.deliver_at_us / 1e6}
    else:
        when = {"deliver_at": batch.timestamps_us()}
        batch = batch.stamped(None)
    ids, at_us = yield from link.delay(
        name,
        batch,
        partition=question.partition,
        ttl=question.ttl,
        dedup_ids=dedup_ids,
        dedup_window=question.dedup_window,
        call=question.call,
        **when,
    )
    delayed = [run_of(each) for each in ids.placed]
    partitions = link.partitions(name)
    return answer_frame(
        PublishedRuns(partitions=partitions, delayed=delayed, deliver_at_us=at_us or None)
    )


def _ask(link: LocalLink, question: AskCall) -> Steps[bytes]:
    kind = CALLS.get(question.name)
    if kind is None:
        raise InvalidInput(f"there is no call {question.name!r:.100}")
    found = yield from link.ask(decode_given(question.fields, kind))
    if isinstance(found, MessagePage):
        about = msgspec.json.encode(page_view(found, with_messages=False))
        return answer_frame(body=encode_read(found.batches, about))
    return answer_frame(form_of(ROUTES[kind].answer).to(found))
