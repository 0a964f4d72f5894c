"""The calls of the API that look at messages, and take none."""

from __future__ import annotations

from functools import partial

import msgspec

from penstock.broker.api_part import ApiPart, moment_us, topic_of
from penstock.broker.decoding import as_json, with_decoded
from penstock.broker.matching import MessageFilter
from penstock.broker.peek import offsets_at, peek, read_partition
from penstock.broker.search import SearchRange, search
from penstock.errors import InvalidInput
from penstock.model import calls
from penstock.model.messages import MessagePage
from penstock.model.searches import FoundPage
from penstock.record.schema import parse_priority


class MessageApi(ApiPart):
    """Messages: as a group would get them, as they lie in a partition, or by what is in them."""

    def peek(self, call: calls.Peek) -> MessagePage:
        _whole("limit", call.limit)
        topic = self._broker.topic(topic_of(call), create=False)
        return peek(topic, call.at, call.partition, call.limit, self._answer_bytes_max)

    def read(self, call: calls.Read) -> MessagePage:
        topic = self._broker.topic(topic_of(call), create=False)
        offset = offsets_at(topic, call.at, call.partition)[call.partition]
        max_bytes = call.max_bytes
        if self._answer_bytes_max is not None:
            max_bytes = min(max_bytes, self._answer_bytes_max)
        return read_partition(topic.partition(call.partition), offset, max_bytes)

    def search_messages(self, call: calls.SearchMessages) -> FoundPage:
        topic = self._broker.topic(topic_of(call), create=False)
        wanted = MessageFilter(
            key=call.key,
            value=call.value,
            header=call.header,
            pointer=call.pointer,
            equals=call.equals,
            priority=None if call.priority is None else int(parse_priority(call.priority)),
            json_of=partial(as_json, self._broker.schemas, call.namespace),
        )
        wanted.check()
        until_us = moment_us("until", call.until)
        begin = call.after or SearchRange(call.at, call.backward)
        bytes_max = self._answer_bytes_max
        page = search(
            topic, call.partition, begin, wanted, until_us, call.limit, bytes_max, self.clock
        )
        found = with_decoded(self._broker.schemas, call.namespace, page.found)
        return msgspec.structs.replace(page, found=found)


def _whole(name: str, value: int) -> None:
    if type(value) is not int or value < 0:
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number from 0 up")
