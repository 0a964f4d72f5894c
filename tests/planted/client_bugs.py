"""Bugs in the client: what a program is told, and when."""

from __future__ import annotations

from tests.planted.bug import Bug

QUEUE = "tests/integration/broker/test_queue.py"
STREAMS = "tests/integration/broker/test_streams.py"
LOST_ANSWER = "tests/integration/broker/test_lost_answer.py"
CONFIRMED = "tests/simulation/test_seen_elsewhere.py::test_nothing_is_confirmed_before_its_sync"

CLIENT_BUGS = [
    Bug(
        "an ack is confirmed before it is durable",
        "client/messages.py",
        """\
            if not settled.durable.done():
                yield Wait(settled.durable)
            settled.durable.result()
""",
        """\
            yield from ()
""",
        CONFIRMED,
    ),
    Bug(
        "a refused ack is passed over in silence",
        "client/messages.py",
        "            raise refusal(offset)",
        "            str(offset)",
        f"{QUEUE}::test_settling_twice_is_a_distinct_error",
    ),
    Bug(
        "a message whose handling failed is acked",
        "client/messages.py",
        "        if error is None:\n            yield from self._ack()\n",
        "        if error is None or error:\n            yield from self._ack()\n",
        f"{QUEUE}::test_a_with_block_acks_or_nacks",
    ),
    Bug(
        "a batch that is sent again gets new numbers, and is stored twice",
        "client/producer.py",
        "                time.sleep(self._sending.retry_backoff_ms * 2**attempt / 1000)\n",
        """\
                time.sleep(self._sending.retry_backoff_ms * 2**attempt / 1000)
                producer = ProducerOf(self._producer_id, attempt + 1, 0)
""",
        LOST_ANSWER,
    ),
    Bug(
        "a stream commits the message that failed",
        "client/streams.py",
        "            if failed:\n                self._reading.fail_current()\n",
        "",
        f"{STREAMS}::test_a_message_that_failed_is_not_committed",
    ),
    Bug(
        "a stream begins anew instead of where its group was",
        "client/streams.py",
        "        committed = self._broker.streams.committed(self._group)\n",
        "        committed: dict[TopicPartition, Any] = {}\n",
        f"{STREAMS}::test_a_stream_reads_in_order_and_goes_on_where_it_was",
    ),
]
