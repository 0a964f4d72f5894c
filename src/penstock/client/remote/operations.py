"""Everything that a client can ask of a server, written once for threads and event loops.

The arguments are those of `penstock.client.operations`, and are checked in the same words before
anything is sent.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from penstock.model.names import group_name
from penstock.model.settings import TopicSettings, parse_settings
from penstock.model.stats import LatencyRow, TopicStats
from penstock.model.groups import StreamGroup
from penstock.model.messages import DelayedMessage
from penstock.model.stats import DelayStats
from penstock.client.arguments import Position, parse_start
from penstock.client.base import P, S
from penstock.client.remote.asking import JSON, decode, encode
from penstock.client.remote.http import Request
from penstock.client.remote.paths import query, segment
from penstock.client.remote.publishing import Publishing
from penstock.client.remote.queues import Queues
from penstock.client.waiting import Steps
from penstock.durations import Moment, parse_us
from penstock.errors import InvalidInput
from penstock.log.base import Batches, Damage
from penstock.record.batch import Message
from penstock.wire.columns import ARROW_TYPE, decode_read
from penstock.model.groups import Reset, StreamGroups, StreamGroupView, group_of
from penstock.model.messages import DelayedPage, MessagePage, delayed_of
from penstock.model.topics import (
    Count,
    Found,
    Groups,
    LatencyPage,
    Namespaces,
    Seek,
    TopicNames,
    TopicTable,
    TopicView,
)
from penstock.model.values import place_text

_STATS_PAGE = 500
_PEEK_MAX = 100_000


class RemoteOperations(Publishing[S, P], Queues[S, P]):
    # Topics.

    def ask_create_topic(
        self, /, topic: str, *, exist_ok: bool = False, **settings: Any
    ) -> Steps[TopicSettings]:
        """Make a topic. Settings: partitions, visibility, max_retries, backoff, ttl, retention,
        fsync and more; a wrong one says what is allowed."""
        path = f"{self._topic(topic)}?exist_ok=true" if exist_ok else self._topic(topic)
        body = _settings(settings)
        return (yield from self._tell("PUT", path, body, TopicView, repeat=exist_ok)).settings

    def ask_alter_topic(self, /, topic: str, **settings: Any) -> Steps[TopicSettings]:
        """Change settings, or add partitions, while it is in use."""
        body = _settings(settings)
        view = yield from self._tell("PATCH", self._topic(topic), body, TopicView)
        self._asking.partitions[self._name(topic)] = view.settings.partitions
        return view.settings

    def ask_delete_topic(self, topic: str) -> Steps[None]:
        """With all its messages. Its dead letters stay until their own topic is deleted."""
        yield from self._asking.ask(Request("DELETE", self._topic(topic), repeatable=False))

    def ask_namespaces(self) -> Steps[list[str]]:
        """Every namespace that has a topic, and "default"."""
        return (yield from self._get("/v1/namespaces", Namespaces)).namespaces

    def ask_topics(self) -> Steps[list[str]]:
        """The topics of this client's namespace, those of dead letters too."""
        return (yield from self._get(f"{self._base}/topics", TopicNames)).topics

    def ask_describe_topic(self, topic: str) -> Steps[TopicSettings]:
        """Its settings, with the defaults where none was given."""
        return (yield from self._get(self._topic(topic), TopicView)).settings

    def ask_stats(self, topic: str) -> Steps[TopicStats]:
        return (yield from self._get(f"{self._topic(topic)}/stats", TopicStats))

    def ask_all_stats(self) -> Steps[list[TopicStats]]:
        """Of every topic of this client's namespace."""
        path = f"/v1/namespaces/{self._namespace}/stats/topics?details=true&limit={_STATS_PAGE}"
        found: list[TopicStats] = []
        offset, total = 0, 1
        while offset < total:
            page = yield from self._get(f"{path}&offset={offset}", TopicTable)
            found += page.details
            offset, total = offset + _STATS_PAGE, page.total
        return found

    def ask_latencies(
        self, topic: str, *, since: Moment | None = None, until: Moment | None = None
    ) -> Steps[list[LatencyRow]]:
        """How long messages waited for their first hand-out, and were worked on until their ack:
        by minute, queue group and priority. By default of the last hour, the present minute too."""
        given = {"since": since, "until": until}
        asked = {
            name: f"{max(parse_us(moment, name), 0) / 1e6:.6f}"
            for name, moment in given.items()
            if moment is not None
        }
        found: list[LatencyRow] = []
        while True:
            path = f"{self._topic(topic)}/latencies{query(asked)}"
            page = yield from self._get(path, LatencyPage)
            found += page.rows
            if page.next is None:
                return found
            asked["since"] = str(page.next)

    # Delays.

    def ask_cancel(self, topic: str, id_: str) -> Steps[bool]:
        """Take back a delayed message; False if it is delivered or cancelled already."""
        path = f"{self._topic(topic)}/delayed/{segment(str(id_) or '-')}"
        reply, again = yield from self._asking.ask_again(Request("DELETE", path))
        return decode(reply, Found).found or again

    def ask_delayed_page(
        self, topic: str, after: int, limit: int
    ) -> Steps[tuple[list[DelayedMessage], int | None]]:
        """Some of the messages that wait, and where to go on."""
        path = f"{self._topic(topic)}/delayed?after={after}&limit={limit}"
        page = yield from self._get(path, DelayedPage)
        return [delayed_of(each) for each in page.delayed], page.next

    def ask_delay_stats(self, topic: str) -> Steps[DelayStats]:
        return (yield from self._get(f"{self._topic(topic)}/delayed/stats", DelayStats))

    # Queue groups.

    def ask_groups(self, topic: str) -> Steps[list[str]]:
        """The groups that read a topic as a queue."""
        return (yield from self._get(f"{self._topic(topic)}/groups", Groups)).groups

    def ask_delete_group(self, topic: str, group: str) -> Steps[bool]:
        path = f"{self._topic(topic)}/groups/{group_name(group)}"
        reply, again = yield from self._asking.ask_again(Request("DELETE", path))
        return decode(reply, Found).found or again

    # Stream groups, from outside.

    def ask_stream_groups(self) -> Steps[list[str]]:
        """The groups that read as streams; in a namespace, those that read its topics."""
        return (yield from self._get(f"{self._base}/stream-groups", StreamGroups)).groups

    def ask_describe_stream_group(self, group: str) -> Steps[StreamGroup]:
        """Its members and their partitions, what is committed, and the lag on each partition."""
        path = f"{self._base}/stream-groups/{segment(group)}"
        return group_of((yield from self._get(path, StreamGroupView)))

    def ask_reset_stream_group(
        self, group: str, topic: str, to: Position, *, partition: int | None = None
    ) -> Steps[None]:
        """Let a stream group start elsewhere: "earliest", "latest", an offset or a time.

        Only while it has no members. It need not exist yet.
        """
        self._name(topic)
        body = Reset(topic=topic, to=_place(to), partition=partition)
        path = f"{self._base}/stream-groups/{group_name(group)}/reset"
        yield from self._asking.ask(Request("POST", path, encode(body), JSON))

    def ask_delete_stream_group(self, group: str) -> Steps[None]:
        """Forget what a stream group has committed. Only while it has no members."""
        path = f"{self._base}/stream-groups/{segment(group)}"
        yield from self._asking.ask(Request("DELETE", path, repeatable=False))

    # Moving about.

    def ask_seek(
        self, topic: str, group: str, to: Position, *, partition: int | None = None
    ) -> Steps[None]:
        """Let a group start again: at "earliest", "latest", an offset, or a time."""
        body = Seek(to=_place(to), partition=partition)
        path = f"{self._topic(topic)}/groups/{group_name(group)}/seek"
        yield from self._asking.ask(Request("POST", path, encode(body), JSON))

    def ask_peek(
        self, topic: str, *, partition: int = 0, at: Position = "earliest", limit: int = 10
    ) -> Steps[list[Message]]:
        """Look at messages without consuming them."""
        if type(limit) is not int or limit < 0:
            raise InvalidInput(f"limit is {limit!r}; it must be a whole number from 0 up")
        found: list[Message] = []
        while True:  # an answer may end before the limit
            left = min(limit - len(found), _PEEK_MAX)
            options = {"partition": partition, "at": _place(at), "limit": left}
            path = f"{self._topic(topic)}/messages{query(options)}"
            reply = yield from self._asking.ask(Request("GET", path, accept=ARROW_TYPE))
            batches, about = decode_read(reply.body)
            found += [message for batch in batches for message in batch.messages()]
            page = msgspec.json.decode(about, type=MessagePage)
            if len(found) >= limit or page.next_offset >= page.end:
                return found
            at = page.next_offset

    def ask_read(
        self, topic: str, partition: int, at: Position, max_bytes: int = 4 << 20
    ) -> Steps[Batches]:
        """Messages of a partition as columns, as they lie in the log, and where to go on."""
        options = {"at": _place(at), "max_bytes": max_bytes}
        path = f"{self._topic(topic)}/partitions/{partition}/messages{query(options)}"
        reply = yield from self._asking.ask(Request("GET", path, accept=ARROW_TYPE))
        batches, about = decode_read(reply.body)
        page = msgspec.json.decode(about, type=MessagePage)
        damage = [Damage(**msgspec.structs.asdict(each)) for each in page.damage]
        return Batches(batches, page.next_offset, damage)

    def ask_purge(self, topic: str, *, group: str | None = None) -> Steps[int]:
        """Drop every message of a topic, or skip them all for one group; how many there were."""
        path = f"{self._topic(topic)}/messages"
        if group is not None:
            path += f"?group={group_name(group)}"
        reply = yield from self._asking.ask(Request("DELETE", path, repeatable=False))
        return decode(reply, Count).count


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """Settings as JSON has them; wrong ones are told of as embedded, before they are sent."""
    parse_settings({name: value for name, value in given.items() if name != "partitions"})
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def _place(position: Position) -> str | int:
    parse_start(position)  # in its own words, before anything is sent
    return place_text(position)
