"""Move tasks: the messages of a dead-letter queue go back to where they came from, or elsewhere.

A task receives from its queue as any consumer does, sends, waits until that is durable, and only
then deletes; what it was at when the server ended comes again. The tasks of a queue are noted in
the `attributes` of its topic when they begin and end; one that a restart ended has failed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from secrets import token_hex
from threading import Lock
from time import time
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import PenstockError, TopicNotFound
from penstock.model import calls
from penstock.model.dead_letters import ORIGIN_HEADER
from penstock.model.deliveries import Delivered, Extend, LeasePart, Settle
from penstock.model.names import TopicName, parse_topic
from penstock.record.batch import Batch, Message
from penstock.server.durable import durable
from penstock.server.sqs.attributes import GROUP
from penstock.server.sqs.call import Result, SqsCall
from penstock.server.sqs.letters import letter_origin
from penstock.server.sqs.problems import SqsProblem, invalid, no_queue

if TYPE_CHECKING:
    from penstock.server.door import Door

_ATTRIBUTE = "sqs.moves"
_KEPT_MAX = 10
_RATE_MAX = 500
_BATCH = 100
_VISIBILITY_S = 60
_NOT_KEPT = {ORIGIN_HEADER, "penstock-dedup-id", "penstock-dedup-window"}
_logger = logging.getLogger("penstock.server")


class MoveTask(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One task, as it is noted."""

    id: str
    source: str
    target: str | None = None
    rate: int | None = None
    to_move: int = 0
    moved: int = 0
    status: str = "RUNNING"
    failure: str = ""
    started_ms: int = 0


class MoveTasks:
    """The tasks of a server; used on its event loop."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.changing = Lock()
        self._running: dict[TopicName, MoveTask] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(
        self, source: TopicName, target: TopicName | None, rate: int | None
    ) -> MoveTask:
        if source in self._running:
            raise SqsProblem(
                "UnsupportedOperation", "There is already a task running for this queue."
            )
        task = self._running[source] = MoveTask(
            id=token_hex(16),
            source=str(source),
            target=None if target is None else str(target),
            rate=rate,
            started_ms=int(time() * 1000),
        )
        try:
            task.to_move = await self._visible(source)
            await self._note(source, task)
        except BaseException:
            del self._running[source]
            raise
        running = asyncio.get_running_loop().create_task(self._run(task, source, target))
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)
        return task

    def cancel(self, source: TopicName, id_: str) -> MoveTask:
        """What was moved stays so."""
        running = self._running.get(source)
        if running is None or running.id != id_:
            raise SqsProblem(
                "ResourceNotFoundException", "There is no such task, or it is not running."
            )
        running.status = "CANCELLING"
        return running

    def of(self, source: TopicName) -> list[MoveTask]:
        """The latest first."""
        found = _noted(self._door, source)
        running = self._running.get(source)
        for index, task in enumerate(found):
            if running is not None and task.id == running.id:
                found[index] = running
            elif task.status in ("RUNNING", "CANCELLING"):
                task.status, task.failure = "FAILED", "the server was restarted"
        return found

    async def stop(self) -> None:
        """End all of them, after what they are at."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _run(self, task: MoveTask, source: TopicName, target: TopicName | None) -> None:
        try:
            await self._move(task, source, target)
            task.status = "CANCELLED" if task.status == "CANCELLING" else "COMPLETED"
        except (PenstockError, SqsProblem) as exc:
            task.status, task.failure = "FAILED", str(exc)
        except Exception:
            _logger.exception("a move task of %s failed", source)
            task.status, task.failure = "FAILED", "something went wrong inside the server"
        finally:
            with suppress(PenstockError):
                await self._note(source, task)
            del self._running[source]

    async def _move(self, task: MoveTask, source: TopicName, target: TopicName | None) -> None:
        loop, api = asyncio.get_running_loop(), self._door.api
        while task.status == "RUNNING" and task.moved < task.to_move:
            if self._stopping:
                raise SqsProblem("ServiceUnavailable", "the server was stopped")
            began = loop.time()
            wanted = min(_BATCH, task.to_move - task.moved, task.rate or _BATCH)
            delivered = await self._door.long_calls.run(
                source, api.receive, source, GROUP, wanted, _VISIBILITY_S, "move task"
            )
            if not delivered:
                return
            moved = 0
            for each in delivered:
                moved += await self._move_some(each, source, target)
            task.moved += moved
            least_s = moved / task.rate if task.rate else 0.0
            await asyncio.sleep(max(0.0, began + least_s - loop.time()))

    async def _move_some(
        self, delivered: Delivered, source: TopicName, target: TopicName | None
    ) -> int:
        messages = [message for batch, _ in delivered.pieces for message in batch.messages()]
        part = LeasePart(partition=delivered.partition, lease=delivered.nonce)
        try:
            for name, some in _by_target(messages, source, target).items():
                for stored in await self._door.aside(self._store, name, some):
                    await durable(stored)
        except BaseException:
            back = Extend(leases=[part], visibility=0)
            self._door.api.settle("extend", source, GROUP, back)
            raise
        settled = self._door.api.settle("ack", source, GROUP, Settle(leases=[part]))
        for future in settled.durable:
            await durable(future)
        return len(messages)

    def _store(self, name: TopicName, messages: Sequence[Message]) -> list[Future[None]]:
        headers = [
            {key: value for key, value in message.headers.items() if key not in _NOT_KEPT}
            for message in messages
        ]
        batch = Batch.build(
            [message.value for message in messages],
            keys=[message.key for message in messages],
            headers=headers,
            priority=[message.priority for message in messages],
        )
        return [placed.durable for placed in self._door.api.publish(name, batch)]

    async def _visible(self, source: TopicName) -> int:
        stats: Any = await self._door.aside(
            self._door.api.ask,
            calls.DescribeStats(namespace=source.namespace, topic=source.topic),
        )
        for group in stats.groups:
            if group.group == GROUP:
                return int(group.ready + group.retrying)
        return int(stats.depth)

    async def _note(self, source: TopicName, task: MoveTask) -> None:
        await self._door.aside(self._note_now, source, task)

    def _note_now(self, source: TopicName, task: MoveTask) -> None:
        with self.changing:
            _note(self._door, source, task)


async def start_message_move_task(call: SqsCall) -> Result:
    asked = call.parameters
    source, rate = call.queue, asked.max_number_of_messages_per_second
    if rate is not None and not 1 <= rate <= _RATE_MAX:
        raise invalid("MaxNumberOfMessagesPerSecond", rate, f"Must be from 1 to {_RATE_MAX}.")
    target = None
    if asked.destination_arn is not None:
        target = call.addresses.accounts.of_arn(asked.destination_arn, "DestinationArn")
        call.check("publish", target.namespace)
        _exists(call, target)
    _exists(call, source)
    if not any(call.api.settings(name).dead_letter_topic == source.topic for name in _names(call)):
        raise invalid("SourceArn", asked.source_arn, "Source queue must be a dead-letter queue.")
    task = await call.state.moves.start(source, target, rate)
    return {"TaskHandle": _handle(task)}


def cancel_message_move_task(call: SqsCall) -> Result:
    source, id_ = task_of_handle(call.parameters.task_handle)
    task = call.state.moves.cancel(source, id_)
    return {"ApproximateNumberOfMessagesMoved": task.moved}


def list_message_move_tasks(call: SqsCall) -> Result:
    asked = call.parameters
    if not 1 <= asked.max_results <= _KEPT_MAX:
        raise invalid("MaxResults", asked.max_results, f"Must be from 1 to {_KEPT_MAX}.")
    _exists(call, call.queue)
    return {
        "Results": [_shown(call, each) for each in call.state.moves.of(call.queue)][
            : asked.max_results
        ]
    }


def task_of_handle(handle: str) -> tuple[TopicName, str]:
    try:
        id_, _, source = base64.urlsafe_b64decode(handle.encode()).decode().partition(" ")
        return parse_topic(source), id_
    except (binascii.Error, UnicodeError, ValueError):
        raise SqsProblem("ResourceNotFoundException", "There is no such task.") from None


def _handle(task: MoveTask) -> str:
    return base64.urlsafe_b64encode(f"{task.id} {task.source}".encode()).decode()


def _shown(call: SqsCall, task: MoveTask) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "Status": task.status,
        "SourceArn": call.addresses.arn(parse_topic(task.source)),
        "ApproximateNumberOfMessagesMoved": task.moved,
        "ApproximateNumberOfMessagesToMove": task.to_move,
        "StartedTimestamp": task.started_ms,
    }
    if task.status == "RUNNING":
        shown["TaskHandle"] = _handle(task)
    if task.target is not None:
        shown["DestinationArn"] = call.addresses.arn(parse_topic(task.target))
    if task.rate is not None:
        shown["MaxNumberOfMessagesPerSecond"] = task.rate
    if task.failure:
        shown["FailureReason"] = task.failure
    return shown


def _by_target(
    messages: Sequence[Message], source: TopicName, target: TopicName | None
) -> dict[TopicName, list[Message]]:
    found: dict[TopicName, list[Message]] = {}
    for message in messages:
        name = target
        if name is None:
            origin = letter_origin(message.headers)
            if origin is None or not origin.topic:
                raise SqsProblem("CouldNotDetermineMessageSource", "CouldNotDetermineMessageSource")
            name = TopicName(source.namespace, origin.topic)
        found.setdefault(name, []).append(message)
    return found


def _names(call: SqsCall) -> list[TopicName]:
    found: Any = call.api.ask(calls.ListTopics(namespace=call.namespace))
    return [TopicName(call.namespace, topic) for topic in found.topics]


def _exists(call: SqsCall, name: TopicName) -> None:
    try:
        call.api.settings(name)
    except TopicNotFound:
        raise SqsProblem(
            "ResourceNotFoundException", "The resource that you specified doesn't exist."
        ) from None


def _noted(door: Door, source: TopicName) -> list[MoveTask]:
    try:
        text = door.api.settings(source).attributes.get(_ATTRIBUTE)
    except TopicNotFound:
        raise no_queue() from None
    return msgspec.json.decode(text, type=list[MoveTask]) if text else []


def _note(door: Door, source: TopicName, task: MoveTask) -> None:
    tasks = [task, *(each for each in _noted(door, source) if each.id != task.id)][:_KEPT_MAX]
    attributes = {
        **door.api.settings(source).attributes,
        _ATTRIBUTE: msgspec.json.encode(tasks).decode(),
    }
    door.api.ask(
        calls.AlterTopic(
            namespace=source.namespace, topic=source.topic, settings={"attributes": attributes}
        )
    )
