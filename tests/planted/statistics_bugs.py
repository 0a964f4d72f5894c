"""Bugs in what is counted, and in what is told of messages that wait for too long."""

from __future__ import annotations

from tests.planted.bug import Bug

COUNTERS = "tests/integration/broker/test_counters.py"
ALARMS = "tests/integration/broker/test_alarms.py"
ACTIVITY = "tests/integration/broker/test_activity.py"
COMPRESSION = "tests/integration/broker/test_compression.py"

STATISTICS_BUGS = [
    Bug(
        "a nack that makes a dead letter is not counted as a nack",
        "broker/counters.py",
        "                else:\n                    self.nacked += event.offsets.count\n",
        "",
        COUNTERS,
    ),
    Bug(
        "messages of several priorities are counted in one lane",
        "broker/partition.py",
        "        if batch.columns & _PRIORITY:\n",
        "        if False:\n",
        COUNTERS,
    ),
    Bug(
        "what a deleted group was handed is forgotten",
        "broker/counters.py",
        "        self._gone += sum(meter.total for meter in self.pop(group, ()))\n",
        "        self.pop(group, ())\n",
        COUNTERS,
    ),
    Bug(
        "a delayed message that expired counts as delivered",
        "broker/counters.py",
        "        if batch.columns & _EXPIRES_AT:\n",
        "        if False:\n",
        COUNTERS,
    ),
    Bug(
        "a snapshot of the catalog forgets when topics were made",
        "model/catalog.py",
        "            TopicChanged(name, settings, self.times[name], self.incarnations[name])",
        "            TopicChanged(name, settings, incarnation=self.incarnations[name])",
        COUNTERS,
    ),
    Bug(
        "an alarm is in the log each time somebody looks",
        "broker/alarms.py",
        "            if key not in self._on:\n",
        "            if True:\n",
        ALARMS,
    ),
    Bug(
        "an alarm that comes and goes fills the log",
        "broker/alarms.py",
        "        if key in self._told_us:\n",
        "        if False:\n",
        ALARMS,
    ),
    Bug(
        "a topic at rest has no alarms",
        "broker/unopened.py",
        "    due_us = _earliest((retention_due_us, next_alarm_us(topic, retention, now_us)))\n",
        "    due_us = retention_due_us\n",
        ALARMS,
    ),
    Bug(
        "what the slowest group has not read is unread",
        "broker/alarms.py",
        "    position = max((each",
        "    position = min((each",
        ALARMS,
    ),
    Bug(
        "a message that was compacted away is as old as the world",
        "broker/source.py",
        "        while not batches and offset < self._log.end:",
        "        while False:",
        ALARMS,
    ),
    Bug(
        "a topic that is made again has the statistics of the one before",
        "broker/topic_calls.py",
        "            self.history.forget(name)\n            self._resting_stats.forget(name)\n",
        "            self.history.forget(name)\n",
        ACTIVITY,
    ),
    Bug(
        "a broker that closes throws away how far a reader outside is",
        "broker/streams.py",
        "            except BrokerClosed:\n                return  # the next start takes it in\n",
        "",
        ACTIVITY,
    ),
    Bug(
        "small messages that come one by one are never compressed",
        "record/writing.py",
        '                    codec == "none" or compress_bytes_min >= COMPRESS_BYTES_MIN\n',
        "                    True\n",
        COMPRESSION,
    ),
]
