"""Bugs of transactions: parts that are missing, or there twice."""

from __future__ import annotations

from tests.planted.bug import Bug

CRASHES = "tests/simulation/test_transaction_crashes.py"
DOORS = "tests/integration/broker/test_transactions.py"

TRANSACTION_BUGS = [
    Bug(
        "a transaction is done before its entry is synced",
        "broker/transactions.py",
        "            journal.append(encode_entry(entry))\n"
        "            if plan.is_synced:\n                journal.log.sync()\n",
        "            journal.append(encode_entry(entry))\n",
        CRASHES,
    ),
    Bug(
        "a start does not finish what a crash has left",
        "broker/topic_calls.py",
        "            self._transactions.opening(topic)\n",
        "",
        CRASHES,
    ),
    Bug(
        "what is in a partition is stored there again",
        "broker/partition.py",
        "            if number <= self.transaction_stored:\n                return None\n",
        "",
        CRASHES,
    ),
    Bug(
        "what is in a ledger is stored there again",
        "broker/partition.py",
        "            if number > self.transaction_settled:\n                here",
        "            if True:\n                self.transaction_settled = 0\n                here",
        CRASHES,
    ),
    Bug(
        "a checkpoint forgets the last transaction of a partition",
        "broker/ledgered_partition.py",
        "            transactions = stored, self.transaction_settled, stored_at\n",
        "            transactions = 0, 0, -1\n",
        CRASHES,
    ),
    Bug(
        "numbers are given that logs have already",
        "broker/transactions.py",
        "        number = max(self._number, plan.last_number()) + 1\n",
        "        number = self._number + 1\n",
        CRASHES,
    ),
    Bug(
        "what is confirmed may not last",
        "broker/transaction_parts.py",
        "            log.ordered()\n\n\ndef entries_of",
        "            pass\n\n\ndef entries_of",
        CRASHES,
    ),
    Bug(
        "a batch that could not be appended counts as committed",
        "broker/transaction_parts.py",
        "    if stored == number:\n",
        "    if True:\n",
        CRASHES,
    ),
    Bug(
        "one refused item does not refuse the others",
        "broker/transaction_plan.py",
        "            self._decide_offsets()\n            self._raise_refused()\n",
        "            self._decide_offsets()\n",
        DOORS,
    ),
    Bug(
        "what was forgotten is done again",
        "broker/transactions.py",
        "        self._check_remembered(id_, staged.id)\n",
        "",
        "tests/integration/broker/test_transactions.py",
    ),
    Bug(
        "a zombie commits",
        "broker/transaction_producers.py",
        "        if current != staged.epoch:\n",
        "        if current is None:\n",
        DOORS,
    ),
    Bug(
        "what waits to be stored is overtaken",
        "broker/transactions.py",
        "            if busy & plan.partitions or offsets_wait:\n",
        "            if False:\n",
        CRASHES,
    ),
]
