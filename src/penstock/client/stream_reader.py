"""Stream mode: a member of a group that heartbeats, reads ahead, and commits.

Calls to the group are made one at a time (`_turn`), by the reader or, while it is busy with a
message, by a thread or task beside it. A fetch waits outside of that, and ends when there is
something to read or the group has something new for the member.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import msgspec

from penstock.client.abandoned_streams import LEAVER, Abandonable, weakly
from penstock.client.link import Link
from penstock.client.stream_progress import StreamMessage, StreamProgress, places_among
from penstock.client.waiting import Steps, Turn, run
from penstock.durations import Duration, parse_ns, text
from penstock.errors import (
    BrokerClosed,
    GroupError,
    InvalidInput,
    PenstockError,
    StaleGeneration,
)
from penstock.group.assignment import TopicPartition
from penstock.group.member import AssignmentChange, Member
from penstock.group.offsets import AtOffset, AtTime, Earliest, Latest, Start
from penstock.model import calls
from penstock.model.groups import (
    POSITIONS_MAX,
    Fetch,
    Fetched,
    MemberStanding,
    offsets_of,
    positions,
    refs,
    standing_of,
)
from penstock.model.names import TopicName, group_name
from penstock.model.positions import Position, parse_position
from penstock.model.transactions import StagedOffsets
from penstock.model.values import StreamPosition

_logger = logging.getLogger("penstock.client")

_FETCH_BYTES = 1 << 20
_POLL_EVERY_NS_MAX = 300 * 1_000_000_000  # a consumer that is stuck for longer lets others have it
_BEAT_AGAIN_S = 1.0  # when a heartbeat beside the reader did not get through
_WAIT_S_MAX = 20.0
_WAIT_S_MANY = 0.5  # while there are more partitions than can be waited for together


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    commit_every_ns: int | None = 5_000_000_000
    """None: only `commit()` commits."""
    session_timeout_ms: int = 30_000
    assignor: str = "sticky"
    member_id: str | None = None


class StreamReader(Abandonable):
    """A member of a group, and what it reads."""

    def __init__(
        self,
        link: Link,
        topics: Sequence[TopicName],
        group: str,
        start: Position,
        config: StreamConfig,
    ) -> None:
        self._link = link
        self._names = {str(name): name for name in topics}
        self._namespace = topics[0].namespace if topics else "default"
        self._group = group_name(group)
        self._start = parse_position(start)
        self._config = config
        named = config.member_id is not None
        # By a name of its own, so that a join whose answer is lost can be made again.
        self._member = Member(config.member_id if named else f"member-{secrets.token_hex(8)}")
        self._turn = threading.Lock()
        self._stop_waking: Callable[[], None] = _nothing
        self._is_planned = False
        self._woken = False
        self._reading = StreamProgress(group)
        self._unresolved: dict[TopicPartition, Start] = {}
        self._commits = 0
        self._committed_ns = self._polled_ns = self._now()
        self._replaced: StaleGeneration | None = None
        LEAVER.start()
        self._closed = False

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member reads at present."""
        return sorted(self._member.owned)

    @property
    def position(self) -> dict[TopicPartition, int]:
        """On each partition, the message that is handed out next."""
        return self._reading.next_offsets

    @property
    def missed(self) -> int:
        """Messages that retention dropped before this member could read them."""
        return self._reading.missed

    def enter_steps(self) -> Steps[None]:
        """Join, if that has not been done."""
        yield Turn(self._turn)
        try:
            yield from self._keep_up()
            yield from self._resolve()
        finally:
            self._turn.release()

    def leave_unheard_steps(self) -> Steps[None]:
        """Leave after a join that was cancelled. It may have been done: only who joins again, under
        the same name, knows enough to leave."""
        yield Turn(self._turn)
        try:
            with suppress(PenstockError):
                yield from self._join()
        finally:
            self._turn.release()
        yield from self.leave_steps(failed=True)

    def next_steps(self, wait: Duration | None = None) -> Steps[StreamMessage | None]:
        """The next message; None when time is up."""
        deadline = None if wait is None else time.monotonic() + parse_ns(wait, "wait") / 1e9
        while True:
            yield Turn(self._turn)
            try:
                self._reading.finish_current()
                yield from self._keep_up()
                yield from self._resolve()
                if self._reading.is_ahead:
                    return self._reading.hand_out()
                wanted = self._wanted()
                beat_s = (self._member.heartbeat_due_ns - self._now()) / 1e9
            finally:
                self._turn.release()
            left_s = _WAIT_S_MAX if deadline is None else deadline - time.monotonic()
            if len(wanted) == POSITIONS_MAX:
                left_s = min(left_s, _WAIT_S_MANY)  # it may be the turn of others then
            fetched = yield from self._fetch(wanted, max(0.0, min(beat_s, left_s, _WAIT_S_MAX)))
            self._take_in(fetched, wanted)
            if self._reading.is_ahead or self._woken or self._unresolved:
                continue
            if deadline is not None and time.monotonic() >= deadline:
                return None

    def commit_steps(self) -> Steps[None]:
        """Commit what is done, and wait until it is stored.

        Raises a GroupError if the group has given the partitions to others meanwhile.
        """
        yield Turn(self._turn)
        try:
            self._reading.finish_current()
            if self._replaced is not None:
                raise self._replaced
            try:
                yield from self._commit_done()
            except GroupError:
                self._woken = True  # the next heartbeat tells where it stands
                raise
        finally:
            self._turn.release()

    def stage_commit_steps(self) -> Steps[StagedOffsets | None]:
        """What is done, for a transaction that commits it."""
        if self._config.commit_every_ns is not None:
            raise InvalidInput(
                "this stream commits by itself, before the transaction would: make it with "
                "commit_every=None"
            )
        yield Turn(self._turn)
        try:
            self._reading.finish_current()
            offsets = self._reading.to_commit(self._member.owned | self._member.revoking)
            if not offsets or self._member.generation is None:
                return None
            self._commits += 1
            return StagedOffsets(
                group=self._group,
                member_id=self._member.member_id or "",
                generation=self._member.generation,
                offsets=positions(offsets),
                number=self._commits,
            )
        finally:
            self._turn.release()

    def committed_by_transaction(self, staged: StagedOffsets) -> None:
        """A transaction committed these offsets: reading goes on behind them."""
        self._reading.committed(offsets_of(staged.offsets))

    def leave_steps(self, *, failed: bool = False) -> Steps[None]:
        """Commit, if it does so by itself, and leave the group; others get the partitions at once.

        `failed`: the message that was handed out last is not done, and comes again.
        """
        self._closed = True
        yield Turn(self._turn)  # a second caller waits, too, until the first has left
        try:
            if failed:
                self._reading.fail_current()
            self._reading.finish_current()
            if self._link.closed or self._member.generation is None:
                return
            with suppress(PenstockError):  # it may be out already, or the server gone
                yield from self._commit_by_itself(retry_for_s=2.0)
                yield from self._link.ask(calls.LeaveGroup(**self._call()), retry_for_s=2.0)
            self._member.dropped()
        finally:
            self._stop_waking()
            self._turn.release()

    def beat_steps(self) -> Steps[float | None]:
        """A heartbeat beside the reader, who may be busy; seconds until the next, if any."""
        stuck = self._now() - self._polled_ns > _POLL_EVERY_NS_MAX
        if self._closed or stuck or self._link.closed:
            return None
        yield Turn(self._turn)
        try:
            if self._member.generation is None:
                return _BEAT_AGAIN_S  # the reader joins again when it comes by
            if self._now() >= self._member.heartbeat_due_ns:
                try:
                    yield from self._heartbeat(retry_for_s=0.0)
                except PenstockError as exc:
                    _logger.debug("group %s: no heartbeat: %s", self._group, exc)
                    return _BEAT_AGAIN_S
            return max(0.0, (self._member.heartbeat_due_ns - self._now()) / 1e9)
        finally:
            self._turn.release()

    def _plan_beats(self) -> bool:
        """Have the broker's own housekeeper beat, if it is in this process."""
        if not self._is_planned:
            self._is_planned = self._link.plan(weakly(self._beat), self._member.heartbeat_due_ns)
        return self._is_planned

    def _beat(self, now_ns: int) -> int | None:
        wait_s = run(self.beat_steps())
        self._is_planned = wait_s is not None
        return None if wait_s is None else now_ns + int(wait_s * 1e9)

    def seek_steps(
        self, to: Position, *, partition: int | None = None, topic: str | None = None
    ) -> Steps[None]:
        """Read on from elsewhere: on all partitions that are assigned, or on some of them."""
        start = parse_position(to)
        yield Turn(self._turn)
        try:
            if self._member.generation is None:
                yield from self._keep_up()
            places = places_among(self.assignment, partition, topic)
            self._reading.forget_all_of(places)
            self._unresolved |= dict.fromkeys(places, start)
            yield from self._resolve()
            for place in places:
                self._reading.move_to(place, self._reading.positions[place])
        finally:
            self._turn.release()

    # It is this caller's turn.

    def _join(self) -> Steps[None]:
        self._forget(self._member.dropped())
        self._reading.rejoined()
        sent_ns = self._now()
        seen = yield from self._link.ask(
            calls.JoinGroup(
                namespace=self._namespace,
                group=self._group,
                topics=[name.topic for name in self._names.values()],
                member_id=self._member.member_id,
                session_timeout=text(self._config.session_timeout_ms * 1_000_000),
                assignor=self._config.assignor,
            )
        )
        self._stop_waking()
        # Weakly: the broker must not keep a reader that nobody uses any more.
        self._stop_waking = self._link.on_wake(
            self._namespace, self._group, seen.member_id, weakly(self._wake)
        )
        self._take_over(self._member.joined(standing_of(seen), sent_ns), seen)

    def _wake(self) -> None:
        self._woken = True

    def _keep_up(self) -> Steps[None]:
        """Heartbeat if it is time, follow what the group says, and commit now and then."""
        if self._link.closed or self._closed:
            raise BrokerClosed("the stream, or its broker, was closed")
        now_ns = self._polled_ns = self._now()
        if self._replaced is not None:
            raise self._replaced
        if self._member.generation is not None and now_ns > self._member.session_end_ns:
            self._forget(self._member.dropped())  # others may read by now what was ours
        if self._member.generation is None:
            yield from self._join()
        elif self._woken or now_ns >= self._member.heartbeat_due_ns:
            yield from self._heartbeat()
            if self._replaced is not None:
                raise self._replaced
            if self._member.generation is None:
                yield from self._join()
        try:
            if self._member.revoking or self._member.to_confirm:
                yield from self._give_back()
            every_ns = self._config.commit_every_ns
            if every_ns is not None and now_ns - self._committed_ns >= every_ns:
                yield from self._commit_done()
        except GroupError:
            yield from self._join()

    def _heartbeat(self, retry_for_s: float | None = None) -> Steps[None]:
        sent_ns = self._now()
        self._woken = False  # before the call: what is new after it wakes us again
        try:
            call = calls.Heartbeat(**self._call())
            seen = yield from self._link.ask(call, retry_for_s=retry_for_s)
        except StaleGeneration as exc:
            # Somebody else joined under this name. To take it back would go on for ever.
            self._replaced = exc
            self._forget(self._member.dropped())
        except GroupError:
            # Silent for too long, or the server was restarted: the reader joins again.
            self._forget(self._member.dropped())
        else:
            self._take_over(self._member.heard(standing_of(seen), sent_ns), seen)

    def _give_back(self) -> Steps[None]:
        """Commit and release what moves to another member."""
        member = self._member
        yield from self._commit_by_itself()
        self._forget(member.revoking)
        member.released(member.revoking)
        sent_ns = self._now()
        revoked = refs(sorted(member.to_confirm))
        seen = yield from self._link.ask(calls.SyncGroup(**self._call(), revoked=revoked))
        self._take_over(member.heard(standing_of(seen), sent_ns), seen)

    def _take_over(self, change: AssignmentChange, seen: MemberStanding) -> None:
        self._forget(change.lost)
        committed = offsets_of(seen.committed)
        for place in sorted(change.added):
            if place in committed:
                self._reading.positions[place] = committed[place]
            else:
                self._unresolved[place] = self._start

    def _resolve(self) -> Steps[None]:
        """Find out where the positions are that were described and not counted."""
        for place, start in list(self._unresolved.items()):
            name = self._names[place.topic]
            bounds = yield from self._link.ask(
                calls.DescribePartition(
                    namespace=name.namespace,
                    topic=name.topic,
                    partition=place.partition,
                    at=_place(start),
                )
            )
            wanted = bounds.at or 0
            offset = min(max(wanted, bounds.start), bounds.end)
            if isinstance(start, AtOffset):
                self._reading.passed_over(place, offset - wanted)
            if self._unresolved.get(place) is start and place in self._member.owned:
                del self._unresolved[place]
                self._reading.positions[place] = offset

    def _commit_by_itself(self, retry_for_s: float | None = None) -> Steps[None]:
        """Before partitions go, unless commits are made by hand."""
        if self._config.commit_every_ns is not None:
            yield from self._commit_done(retry_for_s)

    def _commit_done(self, retry_for_s: float | None = None) -> Steps[None]:
        self._committed_ns = self._now()
        offsets = self._reading.to_commit(self._member.owned | self._member.revoking)
        if not offsets or self._member.generation is None:
            return
        self._commits += 1
        call = calls.CommitOffsets(**self._call(), offsets=positions(offsets), number=self._commits)
        yield from self._link.ask(call, retry_for_s=retry_for_s)
        self._reading.committed(offsets)

    # Reading ahead.

    def _wanted(self) -> list[tuple[TopicPartition, int]]:
        """Where to read on; those that were read last come last."""
        owned = self._member.owned
        every = ((p, offset) for p, offset in self._reading.positions.items() if p in owned)
        return list(islice(every, POSITIONS_MAX))

    def _fetch(self, wanted: list[tuple[TopicPartition, int]], wait_s: float) -> Steps[Fetched]:
        return self._link.fetch(
            self._namespace,
            Fetch(
                positions=positions(dict(wanted)),
                max_bytes=_FETCH_BYTES,
                wait=wait_s,
                group=self._group,
                member_id=self._member.member_id,
                generation=self._member.generation or 0,
            ),
        )

    def _take_in(self, fetched: Fetched, wanted: list[tuple[TopicPartition, int]]) -> None:
        self._woken = self._woken or fetched.woken
        asked = dict(wanted)
        for part in fetched.parts:
            place = TopicPartition(part.topic, part.partition)
            if self._reading.positions.get(place) != asked[place]:
                continue  # it went to another member meanwhile, or was moved
            del self._reading.positions[place]  # and to the end of the line
            if part.out_of_range:
                self._unresolved[place] = AtOffset(asked[place])
                continue
            self._reading.positions[place] = part.next_offset
            self._reading.read_ahead(
                StreamMessage(message, place)
                for batch in part.batches
                for message in batch.messages()
            )

    def _forget(self, places: Collection[TopicPartition]) -> None:
        for place in places:
            self._unresolved.pop(place, None)
        self._reading.forget(places)

    def _now(self) -> int:
        return self._link.clock.monotonic_ns()

    def _call(self) -> dict[str, Any]:
        """Who calls."""
        return {
            "namespace": self._namespace,
            "group": self._group,
            "member_id": self._member.member_id or "",
            "generation": self._member.generation or 0,
        }


def _place(start: Start) -> StreamPosition:
    match start:
        case Earliest():
            return "earliest"
        case Latest():
            return "latest"
        case AtOffset(offset=offset):
            return offset
        case AtTime(timestamp_us=stamp_us):
            return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=stamp_us)).isoformat()


def _nothing() -> None:
    pass
