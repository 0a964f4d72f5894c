"""What can be asked of a broker: one struct for each question, with the type of its answer.

A call is what the API takes (`penstock.broker.api`), what a client sends, and what a door checks a
key against. Its route says how it travels over HTTP: fields in braces go into the path; of a GET or
a DELETE all others go into the query, of the rest into the JSON body. Publishing, receiving,
settling and fetching carry columns of messages, and have doors and API methods of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from penstock.model.dead_letters import Letter, LetterPage, LetterPlace, RedriveTo
from penstock.model.groups import (
    CommittedOffsets,
    MemberStanding,
    PartitionOffset,
    PartitionRef,
    StreamGroup,
    StreamGroups,
)
from penstock.model.messages import DelayedPage, MessagePage
from penstock.model.names import DEFAULT_NAMESPACE
from penstock.model.settings import SettingsGiven
from penstock.model.stats import (
    DelayStats,
    InFlightPage,
    LatencyPage,
    SortBy,
    Summary,
    TopicStats,
    TopicTable,
)
from penstock.model.topics import (
    Compacted,
    Count,
    Found,
    Groups,
    Namespaces,
    PartitionBounds,
    TopicDescription,
    TopicNames,
)
from penstock.model.values import Seconds, Short, Small, StreamPosition, Time, Whole

T_co = TypeVar("T_co", covariant=True)
CallType = TypeVar("CallType", bound="type[Call[Any]]")

Right: TypeAlias = Literal["publish", "consume", "look", "describe", "manage"]
Method: TypeAlias = Literal["GET", "PUT", "POST", "PATCH", "DELETE"]


class Route(NamedTuple):
    """How a call travels over HTTP, and what a key must be good for."""

    method: Method
    path: str
    """Below `/v1`, or below `/v1/namespaces/{namespace}`."""
    right: Right
    tag: str
    answer: Any
    """The type of the answer; None: there is none."""
    status: int
    body: str | None
    """The field that is the body by itself; the others then go into the query."""
    repeatable: bool
    """Whether it does no harm, and gives the same answer, if it is carried out twice."""


class Call(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to a broker whose answer is a `T_co`."""

    namespace: str = DEFAULT_NAMESPACE


ROUTES: dict[type[Call[Any]], Route] = {}
"""Every call, in the order of the reference."""


def _asked(
    method: Method,
    path: str,
    right: Right,
    answer: Any = None,
    *,
    tag: str,
    status: int | None = None,
    body: str | None = None,
    repeatable: bool | None = None,
) -> Callable[[CallType], CallType]:
    def note(call: CallType) -> CallType:
        ROUTES[call] = Route(
            method,
            path,
            right,
            tag,
            answer,
            status or (204 if answer is None else 200),
            body,
            method == "GET" if repeatable is None else repeatable,
        )
        return call

    return note


class TopicCall(Call[T_co], Generic[T_co], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question about one topic."""

    topic: str


class GroupCall(
    TopicCall[T_co], Generic[T_co], frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A question about one queue group of a topic."""

    group: str


class StreamGroupCall(
    Call[T_co], Generic[T_co], frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A question about one stream group of a namespace."""

    group: str


# Topics.


@_asked("GET", "/namespaces", "describe", Namespaces, tag="topics")
class ListNamespaces(Call[Namespaces], frozen=True, kw_only=True):
    """Every namespace that has a topic, and "default"."""


@_asked("GET", "/topics", "describe", TopicNames, tag="topics")
class ListTopics(Call[TopicNames], frozen=True, kw_only=True):
    """The topics of a namespace, those of dead letters too."""


@_asked(
    "PUT", "/topics/{topic}", "manage", TopicDescription, tag="topics", status=201, body="settings"
)
class CreateTopic(TopicCall[TopicDescription], frozen=True, kw_only=True):
    """Make a topic."""

    settings: SettingsGiven = {}
    exist_ok: bool = False
    """A topic that is there already is left as it is."""


@_asked("GET", "/topics/{topic}", "describe", TopicDescription, tag="topics")
class DescribeTopic(TopicCall[TopicDescription], frozen=True, kw_only=True):
    """The settings of a topic."""


@_asked("PATCH", "/topics/{topic}", "manage", TopicDescription, tag="topics", body="settings")
class AlterTopic(TopicCall[TopicDescription], frozen=True, kw_only=True):
    """Change settings, or add partitions, while the topic is in use."""

    settings: SettingsGiven


@_asked("DELETE", "/topics/{topic}", "manage", tag="topics")
class DeleteTopic(TopicCall[None], frozen=True, kw_only=True):
    """With all its messages, delays and groups; its dead letters stay."""


@_asked("GET", "/topics/{topic}/partitions/{partition}", "describe", PartitionBounds, tag="topics")
class DescribePartition(TopicCall[PartitionBounds], frozen=True, kw_only=True):
    """Which offsets a partition holds, and which is at a position or time."""

    partition: Small
    at: StreamPosition | None = None
    """Also tell the offset at this position."""


@_asked("POST", "/sync", "publish", tag="topics", repeatable=True)
class Sync(Call[None], frozen=True, kw_only=True):
    """Make durable, whatever the fsync policies say, all that was done in a namespace before."""


# Messages.


@_asked("GET", "/topics/{topic}/messages", "look", MessagePage, tag="messages")
class Peek(TopicCall[MessagePage], frozen=True, kw_only=True):
    """Look at messages without consuming them, from a position that is brought within what the
    partition holds."""

    partition: Small | None = None
    """By default all partitions, their messages in the order of time."""
    at: StreamPosition = "earliest"
    limit: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 10


@_asked(
    "GET", "/topics/{topic}/partitions/{partition}/messages", "look", MessagePage, tag="messages"
)
class Read(TopicCall[MessagePage], frozen=True, kw_only=True):
    """Read a partition on from an offset or a time, as it lies in the log."""

    partition: Small
    at: StreamPosition = "earliest"
    """An offset that is not in the log is an error; a time is always somewhere."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=64 << 20)] = 1 << 20
    """About; at least one batch is read if there is one."""


@_asked("DELETE", "/topics/{topic}/messages", "manage", Count, tag="messages")
class Purge(TopicCall[Count], frozen=True, kw_only=True):
    """Drop every message of a topic, or skip them all for one group; how many there were."""

    group: str | None = None
    """Only skip them for this group."""


@_asked("POST", "/topics/{topic}/compact", "manage", Compacted, tag="topics", repeatable=True)
class Compact(TopicCall[Compacted], frozen=True, kw_only=True):
    """Rewrite the files of a topic without what nobody needs any more; what that saved."""


# Queue groups.


@_asked("GET", "/topics/{topic}/groups", "describe", Groups, tag="queues")
class ListGroups(TopicCall[Groups], frozen=True, kw_only=True):
    """The groups that read a topic as a queue."""


@_asked("DELETE", "/topics/{topic}/groups/{group}", "manage", Found, tag="queues", repeatable=True)
class DeleteGroup(GroupCall[Found], frozen=True, kw_only=True):
    """Forget what a group has done; the next receive of that name begins with the oldest."""


@_asked("POST", "/topics/{topic}/groups/{group}/seek", "consume", tag="queues", repeatable=True)
class Seek(GroupCall[None], frozen=True, kw_only=True):
    """Let a group start again at a position; receipts that are out become void."""

    to: StreamPosition
    partition: Small | None = None
    """By default all."""


@_asked("GET", "/topics/{topic}/groups/{group}/in-flight", "look", InFlightPage, tag="queues")
class InFlight(GroupCall[InFlightPage], frozen=True, kw_only=True):
    """Messages that a group was handed and has not settled, and those that wait for a retry."""

    after: str | None = None
    """The `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100


# Delays.


@_asked("GET", "/topics/{topic}/delayed", "look", DelayedPage, tag="delayed")
class ListDelayed(TopicCall[DelayedPage], frozen=True, kw_only=True):
    """Messages that wait, in the order in which they were published, page by page."""

    after: Whole = 0
    """The `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100


@_asked("GET", "/topics/{topic}/delayed/stats", "describe", DelayStats, tag="delayed")
class DescribeDelays(TopicCall[DelayStats], frozen=True, kw_only=True):
    """How many messages wait, and when the next falls due."""


@_asked("DELETE", "/topics/{topic}/delayed/{id}", "publish", Found, tag="delayed", repeatable=True)
class CancelDelayed(TopicCall[Found], frozen=True, kw_only=True):
    """Take back a delayed message; not found: it is delivered or cancelled already."""

    id: str


# Dead letters.


class LetterChoice(TopicCall[Count], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which letters: those named, those that all given filters fit, or, with nothing, all."""

    letters: list[LetterPlace] | None = None
    reason: Literal["max_retries", "rejected", "expired"] | None = None
    group: str | None = None
    error_contains: str | None = None

    def fits(self, letter: Letter) -> bool:
        origin = letter.origin
        return (
            self.reason in (None, origin.reason)
            and self.group in (None, origin.group)
            and (self.error_contains is None or self.error_contains in origin.error)
        )


@_asked("GET", "/topics/{topic}/dead-letters", "look", LetterPage, tag="dead letters")
class ListDeadLetters(TopicCall[LetterPage], frozen=True, kw_only=True):
    """Letters that are neither redriven nor purged, oldest first, page by page."""

    after: str | None = None
    """The `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    """A page has fewer if they are long: only `next` says whether it is the last."""


@_asked("GET", "/topics/{topic}/dead-letters/{place}", "look", Letter, tag="dead letters")
class InspectDeadLetter(TopicCall[Letter], frozen=True, kw_only=True):
    """One letter, by its `partition-offset`."""

    place: str


@_asked("POST", "/topics/{topic}/dead-letters/redrive", "manage", Count, tag="dead letters")
class RedriveDeadLetters(LetterChoice, frozen=True, kw_only=True):
    """Send letters back to their topic as new messages: some, or all."""

    to: RedriveTo = "group"
    """`group`: only the group in which a letter failed gets it again; a letter that names none, and
    with `topic` each, is for every reader."""


@_asked("POST", "/topics/{topic}/dead-letters/purge", "manage", Count, tag="dead letters")
class PurgeDeadLetters(LetterChoice, frozen=True, kw_only=True):
    """Throw letters away: some, or all."""


# Stream groups.


@_asked("GET", "/stream-groups", "describe", StreamGroups, tag="streams")
class ListStreamGroups(Call[StreamGroups], frozen=True, kw_only=True):
    """The groups that read topics of a namespace as streams."""


@_asked("GET", "/stream-groups/{group}", "describe", StreamGroup, tag="streams")
class DescribeStreamGroup(StreamGroupCall[StreamGroup], frozen=True, kw_only=True):
    """Members and their partitions, what is committed, and the lag on each partition."""


@_asked("DELETE", "/stream-groups/{group}", "manage", tag="streams")
class DeleteStreamGroup(StreamGroupCall[None], frozen=True, kw_only=True):
    """Forget what a group has committed. Only while it has no members."""


@_asked("GET", "/stream-groups/{group}/offsets", "describe", CommittedOffsets, tag="streams")
class ListCommittedOffsets(StreamGroupCall[CommittedOffsets], frozen=True, kw_only=True):
    """Where a group goes on, on each partition where it has committed."""


@_asked("POST", "/stream-groups/{group}/reset", "manage", tag="streams", repeatable=True)
class ResetStreamGroup(StreamGroupCall[None], frozen=True, kw_only=True):
    """Let a group start elsewhere. Only while it has no members; it need not exist yet."""

    topic: str
    """Of the namespace in the path."""
    to: StreamPosition
    partition: Small | None = None
    """By default all."""


@_asked(
    "POST", "/stream-groups/{group}/join", "consume", MemberStanding, tag="streams", repeatable=True
)
class JoinGroup(StreamGroupCall[MemberStanding], frozen=True, kw_only=True):
    """Enter a group, or enter it again under the member's own name."""

    topics: list[str]
    """Of the namespace in the path."""
    member_id: Short | None = None
    """Its own from a former life; by default the group gives it one."""
    session_timeout: Seconds = "30s"
    assignor: str = "sticky"


class MemberCall(
    StreamGroupCall[T_co], Generic[T_co], frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A call of a member, who says where it stands."""

    member_id: str
    generation: Whole


@_asked(
    "POST",
    "/stream-groups/{group}/heartbeat",
    "consume",
    MemberStanding,
    tag="streams",
    repeatable=True,
)
class Heartbeat(MemberCall[MemberStanding], frozen=True, kw_only=True):
    """Stay in the group, and hear what to read and what to give back."""


@_asked(
    "POST", "/stream-groups/{group}/sync", "consume", MemberStanding, tag="streams", repeatable=True
)
class SyncGroup(MemberCall[MemberStanding], frozen=True, kw_only=True):
    """Give back partitions that were asked for; also a heartbeat."""

    revoked: list[PartitionRef]
    """Partitions that the member was asked for, and has finished with."""


@_asked("POST", "/stream-groups/{group}/leave", "consume", tag="streams", repeatable=True)
class LeaveGroup(MemberCall[None], frozen=True, kw_only=True):
    """Go; others get the partitions at once."""


@_asked("POST", "/stream-groups/{group}/commit", "consume", tag="streams", repeatable=True)
class CommitOffsets(MemberCall[None], frozen=True, kw_only=True):
    """Set positions, all or none, on partitions that the member holds."""

    offsets: list[PartitionOffset]
    """On each partition the offset to go on from."""
    number: Whole | None = None
    """Counts the member's commits, so that a late one does not undo a newer one."""


# How things stand.


@_asked("GET", "/topics/{topic}/stats", "describe", TopicStats, tag="stats")
class DescribeStats(TopicCall[TopicStats], frozen=True, kw_only=True):
    """Depth, in flight, delayed, dead and rates of a topic, by partition, group and priority."""


@_asked("GET", "/topics/{topic}/latencies", "describe", LatencyPage, tag="stats")
class ListLatencies(TopicCall[LatencyPage], frozen=True, kw_only=True):
    """How long messages waited for their first hand-out, and were worked on until their ack: by
    minute, group and priority, page by page."""

    since: Time | None = None
    """From the minute on in which this lies; by default an hour before `until`, or now."""
    until: Time | None = None
    """Minutes that begin before this; by default all, the present one too."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10_000
    """Rows on a page, or some more: a minute is given whole. There may be fewer, even none, where
    much has to be looked through to find them."""


class EverywhereCall(Call[T_co], Generic[T_co], frozen=True, kw_only=True):
    """A question about a namespace or, with None, about all."""

    namespace: str | None = None  # type: ignore[assignment]


@_asked("GET", "/stats", "describe", Summary, tag="stats")
class Summarize(EverywhereCall[Summary], frozen=True, kw_only=True):
    """Everything together, in one pass. With a namespace in the path, of that one."""


@_asked("GET", "/stats/topics", "describe", TopicTable, tag="stats")
class TabulateTopics(EverywhereCall[TopicTable], frozen=True, kw_only=True):
    """A page of the table of all topics, sorted. With a namespace in the path, of that one."""

    search: str = ""
    """Only topics whose name holds this."""
    sort: SortBy = "topic"
    descending: bool = False
    offset: Whole = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 100
    details: bool = False
    """Give all that is known of each topic, too."""
