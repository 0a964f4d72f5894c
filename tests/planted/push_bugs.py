"""Bugs in what pushes: WebSockets and webhooks."""

from __future__ import annotations

from tests.planted.bug import Bug

WEBSOCKET = "tests/integration/server/test_websocket.py"
GRPC = "tests/integration/server/test_grpc.py"
UNREADABLE = "tests/integration/server/test_unreadable_keys.py"
WEBHOOKS = "tests/integration/server/test_webhooks.py"

PUSH_BUGS = [
    Bug(
        "messages are pushed beyond the credit",
        "server/push/subscriptions.py",
        "        self._credit -= messages\n",
        "",
        f"{WEBSOCKET}::test_messages_are_pushed_within_credit_and_settled_in_band",
    ),
    Bug(
        "a socket whose key was revoked goes on",
        "server/waiting.py",
        "            self._gate.may_go_on(key)\n",
        "            pass\n",
        f"{WEBSOCKET}::TestKeys",
    ),
    Bug(
        "a moment in which the keys cannot be read ends what waits",
        "server/gate.py",
        "            self.in_doubt = True\n            return False\n",
        "            self.in_doubt = True\n            raise\n",
        UNREADABLE,
    ),
    Bug(
        "what came while the keys could not be read is forgotten",
        "server/waiting.py",
        "            self._look_again()\n",
        "            pass\n",
        UNREADABLE,
    ),
    Bug(
        "a lease stream whose key was revoked keeps its messages",
        "server/grpc/listener.py",
        "            wait = waits.while_good(task, call.key)\n",
        "",
        f"{GRPC}::test_a_revoked_key_ends_its_lease_streams",
    ),
    Bug(
        "a page of another site is let in",
        "server/push/socket.py",
        "            names.check_page(headers)\n",
        "",
        f"{WEBSOCKET}::TestKeys",
    ),
    Bug(
        "a message that the receiver did not take counts as posted",
        "server/webhooks/outcomes.py",
        "    if 200 <= status < 300:\n",
        "    if 200 <= status < 400:\n",
        f"{WEBHOOKS}::test_failures_are_retried_under_the_same_id_and_then_dead",
    ),
    Bug(
        "the address of a webhook is not checked when it is connected to",
        "server/webhooks/engine.py",
        "            self._rules.check(address[0], address[1], private)\n",
        "            pass\n",
        f"{WEBHOOKS}::test_nothing_is_posted_to_an_address_that_is_not_public",
    ),
    Bug(
        "an IPv6 form of a private IPv4 address is public",
        "server/webhooks/addresses.py",
        "    if address.ipv4_mapped is not None:\n        return address.ipv4_mapped\n",
        "",
        "tests/unit/server/test_webhook_addresses.py",
    ),
    Bug(
        "a lease of a webhook ends before the next attempt",
        "server/webhooks/endpoint.py",
        "        pause_s = min(held.due_s - now_s, _HOLD_S_MAX)\n",
        "        pause_s = held.due_s - now_s\n",
        f"{WEBHOOKS}::test_a_message_is_held_through_a_pause_of_many_hours",
    ),
    Bug(
        "the signature leaves out the time",
        "server/webhooks/requests.py",
        'signed = f"{id_}.{timestamp}.".encode() + body',
        'signed = f"{id_}.".encode() + body',
        f"{WEBHOOKS}::test_a_message_is_posted_with_a_signature_that_a_receiver_accepts",
    ),
    Bug(
        "all that failed is kept in memory",
        "server/webhooks/endpoint.py",
        "        self._waiting_bytes += held.nbytes\n",
        "",
        f"{WEBHOOKS}::test_what_waits_for_a_retry_takes_little_memory",
    ),
]
