"""Which of several handlers of one topic and group takes a message: by filter, or by type."""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import msgspec

from penstock.errors import InvalidInput
from penstock.worker.awaiting import was_dropped
from penstock.worker.bodies import Undecodable
from penstock.worker.jobs import Job

if TYPE_CHECKING:
    from penstock.worker.consumers import Consumer


class HandlerRouter:
    """A filter counts first, in the order of the handlers, then the tag of the body, and last the
    handler that has neither."""

    def __init__(self, consumers: Sequence[Consumer]) -> None:
        self._only = consumers[0] if len(consumers) == 1 and consumers[0].filter is None else None
        self._filtered = [c for c in consumers if c.filter is not None]
        self._by_tag: dict[Any, Consumer] = {}
        self._plain: Consumer | None = None
        tag_field = None
        for consumer in consumers:
            if consumer.filter is not None:
                continue
            tags = tags_of(consumer.handler.body_type)
            for field, tag in tags:
                self._by_tag[tag], tag_field = consumer, field
            if not tags:
                self._plain = consumer
        self._tag = None if tag_field is None else _tag_decoder(tag_field)

    def find(self, message: Any) -> Consumer:
        """Raises Undecodable if no handler takes it, and what a filter raises."""
        if self._only is not None:
            return self._only
        for consumer in self._filtered:
            assert consumer.filter is not None
            takes = consumer.filter(Job(consumer, [message]).delivery)
            if was_dropped(takes):
                raise InvalidInput(
                    f"the filter of {consumer.handler.name} is async; nobody awaits it"
                )
            if takes:
                return consumer
        found = self._by_tag.get(self._tag_of(message.value), self._plain)
        if found is None:
            raise Undecodable("no handler takes this message")
        return found

    def _tag_of(self, value: bytes | None) -> Any:
        if self._tag is None or value is None:
            return None
        try:
            return self._tag.decode(value).tag
        except ValueError:  # no JSON, or no object
            return None


def tags_of(kind: Any) -> list[tuple[str, Any]]:
    """The field and the value of the tag of a struct, or of each in a union; or nothing."""
    members = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
    found = []
    for member in members:
        config = getattr(member, "__struct_config__", None)
        if config is None or config.tag is None:
            return []
        found.append((config.tag_field, config.tag))
    return found


def _tag_decoder(field: str) -> msgspec.json.Decoder[Any]:
    tag = msgspec.defstruct("Tag", [("tag", str | int | None, None)], rename={"tag": field})
    return msgspec.json.Decoder(tag)
