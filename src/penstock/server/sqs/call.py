"""One request to the SQS API on its way through an action, and what actions share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.errors import PenstockError, TopicNotFound
from penstock.log.base import DONE
from penstock.model.names import DEFAULT_NAMESPACE, TopicName
from penstock.server.durable import durable
from penstock.server.keys import Key, Right
from penstock.server.sqs.accounts import Accounts, Addresses
from penstock.server.sqs.attributes import QueueView, queue_view
from penstock.server.sqs.problems import SqsProblem, no_queue, problem_of_error
from penstock.server.sqs.requests import BatchEntry, SendEntry, SqsRequest

if TYPE_CHECKING:
    from penstock.broker.api import Api
    from penstock.server.door import Door
    from penstock.server.sqs.moves import MoveTasks

T = TypeVar("T")

Result = dict[str, Any] | None
"""What is answered, as the newer protocol has it; None: nothing."""

BATCH_MAX = 10
ID_LENGTH_MAX = 80
_REMEMBERED_MAX = 10_000
_ID_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class RecentlySeen:
    """A bounded memory of things that happened; the oldest are forgotten first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: OrderedDict[Any, tuple[float, Any]] = OrderedDict()

    def get(self, what: Any, now_s: float) -> Any | None:
        seen = self._seen.get(what)
        return seen[1] if seen is not None and now_s - seen[0] < self._seconds else None

    def put(self, what: Any, value: Any, now_s: float) -> None:
        self._seen.pop(what, None)
        self._seen[what] = now_s, value
        while len(self._seen) > _REMEMBERED_MAX:
            self._seen.popitem(last=False)

    def forget(self, what: Any) -> None:
        self._seen.pop(what, None)


class SqsState:
    """What is known between requests; used on the event loop of the server."""

    def __init__(self, door: Door, moves: MoveTasks) -> None:
        self.door = door
        self.accounts = Accounts(door.config.sqs_accounts)
        self.moves = moves
        self.changing = moves.changing
        """Held by who changes the `attributes` of a topic: all of them are written at once."""
        self.attempts = RecentlySeen(300)
        """What was received under a ReceiveRequestAttemptId."""
        self.purges = RecentlySeen(60)
        self._views: dict[TopicName, QueueView] = {}

    def view(self, name: TopicName) -> QueueView:
        """Of a queue that is there. Raises QueueDoesNotExist."""
        try:
            settings = self.door.api.settings(name)
        except TopicNotFound:
            self._views.pop(name, None)
            raise no_queue() from None
        view = self._views.get(name)
        if view is None or view.settings is not settings:
            if len(self._views) >= _REMEMBERED_MAX:
                self._views.clear()
            view = self._views[name] = queue_view(name, settings)
        return view


class SqsCall:
    """One request. `parameters` is the struct of its action."""

    __slots__ = ("_addresses", "key", "name", "parameters", "state")

    def __init__(
        self,
        state: SqsState,
        parameters: Any,
        name: TopicName | None,
        addresses: Callable[[], Addresses],
    ) -> None:
        self.state = state
        self.parameters = parameters
        self.name = name
        """The queue that it is about, where it names one by its URL or ARN."""
        self._addresses = addresses
        self.key: Key | None = None

    @property
    def addresses(self) -> Addresses:
        """Found out by the few actions that name queues."""
        return self._addresses()

    @property
    def door(self) -> Door:
        return self.state.door

    @property
    def api(self) -> Api:
        return self.state.door.api

    @property
    def namespace(self) -> str:
        """That of the queue or, where none is named, that which the key is good for."""
        if self.name is not None:
            return self.name.namespace
        if self.key is not None and self.key.namespace is not None:
            return self.key.namespace
        return DEFAULT_NAMESPACE

    @property
    def queue(self) -> TopicName:
        assert self.name is not None
        return self.name

    def view(self) -> QueueView:
        return self.state.view(self.queue)

    def while_good(self, ready: Callable[[], T | None]) -> Callable[[], T | None]:
        """For a poll: raises Unauthenticated instead, once the key was revoked."""
        return self.door.gate.while_good(self.key, ready)

    def check(self, right: Right, namespace: str) -> None:
        """Raise Forbidden unless the key is good for this too."""
        if self.key is not None and not self.key.may(right, namespace):
            raise SqsProblem("AccessDeniedException", f"The key does not allow to {right} there.")


class Action(NamedTuple):
    """One action: what it takes, what its key has to be good for, and what carries it out."""

    kind: type[SqsRequest]
    right: Right
    handler: Callable[[SqsCall], Any]


def check_batch(entries: Sequence[BatchEntry | SendEntry]) -> None:
    """Raise what SQS says of a batch before it looks at its entries."""
    if not entries:
        raise SqsProblem("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > BATCH_MAX:
        raise SqsProblem(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {BATCH_MAX}. You have sent {len(entries)}.",
        )
    seen: set[str] = set()
    for entry in entries:
        if not 1 <= len(entry.id) <= ID_LENGTH_MAX or not _ID_LETTERS.issuperset(entry.id):
            raise SqsProblem(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and "
                f"underscores. It can be at most {ID_LENGTH_MAX} letters long.",
            )
        if entry.id in seen:
            raise SqsProblem("BatchEntryIdsNotDistinct", f"Id {entry.id} repeated.")
        seen.add(entry.id)


def failed(id_: str, error: Exception) -> dict[str, Any]:
    """An entry of a batch that failed, beside others that did not."""
    problem = error if isinstance(error, SqsProblem) else None
    if problem is None:
        assert isinstance(error, PenstockError)
        problem = problem_of_error(error)
    return {
        "Id": id_,
        "SenderFault": problem.fault == "Sender",
        "Code": problem.code,
        "Message": str(problem),
    }


def batch_result(done: list[dict[str, Any]], not_done: list[dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {"Successful": done}
    if not_done:
        result["Failed"] = not_done
    return result


def when_durable(result: T, futures: Sequence[Future[None]]) -> Any:
    """The answer or, while something is not durable yet, what to await for it."""
    waiting = [future for future in futures if future is not DONE]
    if all(future.done() for future in waiting):
        for future in waiting:
            future.result()
        return result
    return _when_durable(result, waiting)


async def _when_durable(result: T, futures: Sequence[Future[None]]) -> T:
    for future in futures:
        await durable(future)
    return result
