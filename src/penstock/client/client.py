"""The two clients: one for programs that may block, one for programs on an event loop."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack

from penstock.client.batch_publishing import AsyncBatchPublishing, BatchPublishing
from penstock.client.context_managers import AsyncClosing, Closing
from penstock.client.listening import AsyncListening, Listening
from penstock.client.looking import AsyncLooking, Looking
from penstock.client.namespaces import AsyncNamespaceCalls, NamespaceCalls
from penstock.client.publishing import AsyncPublishing, Publishing
from penstock.client.queues import AsyncQueues, Queues
from penstock.client.schedules import AsyncScheduleCalls, ScheduleCalls
from penstock.client.schemas import AsyncSchemaTheme, SchemaTheme
from penstock.client.stream_groups import AsyncStreamGroupCalls, StreamGroupCalls
from penstock.client.topics import AsyncTopics, Topics
from penstock.client.traces import AsyncTraceCalls, TraceCalls
from penstock.client.transactions import AsyncTransactionCalls, TransactionCalls
from penstock.client.waiting import Aside, Steps, run_async
from penstock.client.webhooks import AsyncWebhookCalls, WebhookCalls


class Client(
    Publishing,
    BatchPublishing,
    Queues,
    Listening,
    Looking,
    StreamGroupCalls,
    Topics,
    ScheduleCalls,
    TransactionCalls,
    SchemaTheme,
    WebhookCalls,
    TraceCalls,
    NamespaceCalls,
    Closing,
):
    """A connection to a broker. Any thread may use it."""

    def close(self) -> None:
        """Send what producers still hold, leave the groups, and let go of the broker; one in this
        process leaves a clean folder.

        Raises the error of what could not be sent, when all the rest is done.
        """
        with ExitStack() as closing:  # the last comes first, and all of it, whatever fails
            closing.callback(self._link.close)
            for stream in list(self._streams):
                closing.callback(stream.leave, failed=True)  # the last message may be half done
            for producer in list(self._producers):
                closing.callback(producer.close)
            for listener in list(self._listeners):
                closing.callback(listener.close)


class AsyncClient(
    AsyncPublishing,
    AsyncBatchPublishing,
    AsyncQueues,
    AsyncListening,
    AsyncLooking,
    AsyncStreamGroupCalls,
    AsyncTopics,
    AsyncScheduleCalls,
    AsyncTransactionCalls,
    AsyncSchemaTheme,
    AsyncWebhookCalls,
    AsyncTraceCalls,
    AsyncNamespaceCalls,
    AsyncClosing,
):
    """A connection to a broker, for one event loop."""

    async def close(self) -> None:
        """Send what producers still hold, leave the groups, and let go of the broker; one in this
        process leaves a clean folder.

        Raises the error of what could not be sent, when all the rest is done.
        """
        async with AsyncExitStack() as closing:  # the last comes first, and all, whatever fails
            closing.push_async_callback(run_async, self._close_link())
            for stream in list(self._streams):
                closing.push_async_callback(stream.leave, failed=True)
            for producer in list(self._producers):
                closing.push_async_callback(producer.close)
            for listener in list(self._listeners):
                closing.push_async_callback(listener.close)

    def _close_link(self) -> Steps[None]:
        yield Aside(lambda _: self._link.close(), None)
