"""Bugs in traces: events that are lost, told of another message, or never found again."""

from __future__ import annotations

from tests.planted.bug import Bug

TRACES = "tests/integration/broker/test_traces.py"
LIVES = "tests/integration/broker/test_trace_life.py"

TRACE_BUGS = [
    Bug(
        "an ack is told of messages that were not traced",
        "broker/partition_traces.py",
        "        some = offsets if held == offsets else offsets & held\n",
        "        some = offsets\n",
        TRACES,
    ),
    Bug(
        "leases of a former life are not known",
        "broker/partition_traces.py",
        "            held = self._remember(queue, nonce, source)\n",
        "            return\n",
        TRACES,
    ),
    Bug(
        "the ids of what failed are not looked up",
        "broker/tracer.py",
        "            if noted.source is not None and left:\n",
        "            if noted.source is not None and not left:\n",
        TRACES,
    ),
    Bug(
        "a place of a topic that was deleted is that of the new one",
        "trace/lives.py",
        "    if len({here[nth].ulid for nth in births}) < 2:\n",
        "    if here:\n",
        TRACES,
    ),
    Bug(
        "another namespace sees the lives",
        "broker/trace_lookup.py",
        "        told = [lived for lived in life(finder, link) if _is_in(lived, namespace)]\n",
        "        told = life(finder, link)\n",
        TRACES,
    ),
    Bug(
        "what is too much is not counted",
        "broker/tracer.py",
        "            self.dropped += row.count\n",
        "",
        TRACES,
    ),
    Bug(
        "a key that begins a page is not looked for at the end of the page before",
        "broker/trace_log.py",
        'np.searchsorted(fences, np.uint64(wanted.first), side="left")) - 1, 0)\n',
        'np.searchsorted(fences, np.uint64(wanted.first), side="left")), 0)\n',
        LIVES,
    ),
    Bug(
        "a message that fell due is told of under another id",
        "broker/partition_traces.py",
        "        ulid = batch.ulid if kind == TraceKind.MOVED else at.ulid\n",
        "        ulid = at.ulid\n",
        LIVES,
    ),
    Bug(
        "events at the end of a range are read again with the next range",
        "broker/trace_log.py",
        "if offset <= number < stop and value is not None:",
        "if offset <= number and value is not None:",
        "tests/integration/broker/test_traces.py",
    ),
    Bug(
        "the messages of a run of events have the id of the first",
        "trace/exploded.py",
        "        found[:, 1] += steps.astype(np.uint64)\n",
        "",
        "tests/unit/trace/test_exploded.py",
    ),
    Bug(
        "an index leaves out the ids",
        "broker/trace_log.py",
        "            ids=self._write_pages(RowKeys.joined(each.ids for each in waiting)),\n",
        "            ids=self._write_pages(RowKeys.joined(each.ids for each in waiting[:1])),\n",
        LIVES,
    ),
]
