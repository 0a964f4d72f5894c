"""Bugs in the client: what a program is told, and when."""

from __future__ import annotations

from tests.planted.bug import Bug

QUEUE = "tests/integration/broker/test_queue.py"
STREAMS = "tests/integration/broker/test_streams.py"
LOST_ANSWER = "tests/integration/broker/test_lost_answer.py"
LOST_ANSWERS = "tests/integration/server/test_lost_answers.py"
CONFIRMED = "tests/simulation/test_seen_elsewhere.py::test_nothing_is_confirmed_before_its_sync"

STORED_ONCE = "tests/integration/server/test_stored_once.py"

CLIENT_BUGS = [
    Bug(
        "a call that is made again after a restart is stored again",
        "broker/ledgered_partition.py",
        "        elif header.producer_id <= -CALLER_MIN:",
        "        elif header.producer_id > 0:",
        f"{STORED_ONCE}::test_a_call_that_is_made_again_after_a_restart_is_stored_once",
    ),
    Bug(
        "a copy of a call goes to another partition than the first",
        "broker/topic.py",
        "        turn = next(self._turn) if call is None else call.caller + call.number\n",
        "        turn = next(self._turn)\n",
        STORED_ONCE,
    ),
    Bug(
        "an answer is believed before it is validated",
        "wire/columns.py",
        "            data.validate(full=True)\n",
        "",
        "tests/unit/wire/test_mutated_answers.py",
    ),
    Bug(
        "an ack is confirmed before it is durable",
        "client/local_link.py",
        "return NOTHING_TO_WAIT_FOR if settled.durable is DONE else until(settled.durable)",
        "return NOTHING_TO_WAIT_FOR",
        CONFIRMED,
    ),
    Bug(
        "a refused ack is passed over in silence",
        "client/local_link.py",
        "            raise refusal(refused_offset)",
        "            str(refused_offset)",
        f"{QUEUE}::test_settling_twice_is_a_distinct_error",
    ),
    Bug(
        "a message whose handling failed is acked",
        "client/received.py",
        "        if error is None:\n            yield from self._ack()\n",
        "        if error is None or error:\n            yield from self._ack()\n",
        f"{QUEUE}::test_a_with_block_acks_or_nacks",
    ),
    Bug(
        "a batch that is sent again gets new numbers, and is stored twice",
        "client/producer.py",
        "                **known_by,\n",
        "                producer=ProducerSequence(own_random.getrandbits(62) + 1, 0, 0),\n",
        LOST_ANSWER,
    ),
    Bug(
        "a stream commits the message that failed",
        "client/stream_reader.py",
        "            if failed:\n                self._reading.fail_current()\n",
        "",
        f"{STREAMS}::test_a_message_that_failed_is_not_committed",
    ),
    Bug(
        "a stream begins anew instead of where its group was",
        "client/stream_reader.py",
        "        committed = offsets_of(seen.committed)\n",
        "        committed: dict[TopicPartition, int] = {}\n",
        f"{STREAMS}::test_a_stream_reads_in_order_and_goes_on_where_it_was",
    ),
    Bug(
        "what is to be acked first is lost, and the next messages are handed out all the same",
        "server/http/routes/queues.py",
        """\
        _check_settled(acked)
        return _receive(call, wanted, wait_s)
""",
        """\
        return _receive(call, wanted, wait_s)
""",
        f"{QUEUE}::test_nothing_is_received_if_what_is_to_be_acked_first_is_lost",
    ),
    Bug(
        "a batch that the first attempt acked is taken for lost by the second",
        "client/leases.py",
        "    if parts and repeated:",
        "    if parts and not parts:",
        f"{LOST_ANSWERS}::test_nor_is_what_was_settled_so_as_a_batch",
    ),
    Bug(
        "a batch is acked a second time, since the answer to its ack and receive was lost",
        "client/queues.py",
        "        if not exc.repeated:\n",
        "        if exc:\n",
        f"{LOST_ANSWERS}::test_nor_a_batch_that_was_acked_while_the_next_was_received",
    ),
    Bug(
        "who hangs up ends the wait of all who share an fsync",
        "server/durable.py",
        "await asyncio.shield(asyncio.wrap_future(stored))",
        "await asyncio.wrap_future(stored)",
        "tests/integration/server/test_hang_up.py",
    ),
    Bug(
        "the trailers of a body are taken for its headers",
        "server/http/connection.py",
        "        if self._in_body:  # a trailer, which nobody asked for\n",
        "        if False:\n",
        "tests/integration/server/test_hostile_heads.py::test_trailers_are_no_headers",
    ),
    Bug(
        "who offers HTTP/2 has no body",
        "server/http/connection.py",
        "            self._offered = True\n            return\n",
        "            pass\n",
        "tests/integration/server/test_same_again.py",
    ),
    Bug(
        "a body is read before its key is looked at",
        "server/http/dispatch.py",
        "            exchange.key = key = identify(",
        "            await receive()\n            exchange.key = key = identify(",
        "tests/integration/server/test_hostile_heads.py::"
        "test_a_wrong_key_is_refused_before_the_body_is_sent",
    ),
    Bug(
        "the next answer is made while nobody takes the one before",
        "server/http/dispatch.py",
        "        if len(answer.body) > _LONG_BYTES:\n",
        "        if False:\n",
        "tests/integration/server/test_hostile_load.py::"
        "test_the_next_answer_waits_until_the_client_reads",
    ),
    Bug(
        "the event loop waits for a lock that a long call holds",
        "server/long_calls.py",
        "        return name in self._running\n",
        "        return False\n",
        "tests/integration/server/test_hostile_load.py::"
        "test_polls_rest_while_a_long_call_is_at_work_and_go_on_after_it",
    ),
    Bug(
        "a poll whose key was revoked goes on",
        "server/gate.py",
        "        elif not self.keys.knows(key):\n",
        "        elif not key:\n",
        "tests/integration/server/test_hostile_heads.py::test_a_poll_ends_when_its_key_is_revoked",
    ),
    Bug(
        "keys that cannot be reached are none",
        "server/keys.py",
        "            if not isinstance(exc, FileNotFoundError) or os.path.islink(self._path):\n",
        "            if not exc:\n",
        "tests/unit/server/test_keys.py",
    ),
    Bug(
        "what a busy server did before it sent somebody away is taken for lost",
        "client/http/retrying.py",
        "                begun = begun or not isinstance(error, TooManyRequests)\n",
        "",
        f"{LOST_ANSWERS}::test_an_ack_that_was_done_before_the_server_was_too_busy_is_no_error",
    ),
    Bug(
        "a batch whose ack is uncertain is acked as if it were not",
        "client/received.py",
        '            repeated = self._ack_was_sent and verb == "ack"\n',
        "            repeated = False\n",
        f"{LOST_ANSWERS}::test_a_call_that_failed_can_be_made_again_with_the_same_batch",
    ),
    Bug(
        "every request passes one function more",
        "server/application.py",
        'found = self._found.get((scope["method"], _path(scope)))',
        'found = self._found.get((scope["method"], _path(scope) and _path(scope)))',
        "tests/unit/server/test_request_path.py",
    ),
    Bug(
        "every embedded publish passes one function more",
        "record/schema.py",
        "    first, pairs = _first_letters(ulid >> 30), _PAIRS\n",
        "    first, pairs = _first_letters.__wrapped__(ulid >> 30), _PAIRS\n",
        "tests/unit/client/test_path_length.py",
    ),
]
