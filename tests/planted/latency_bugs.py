"""Bugs in what is told about latencies: counted twice, in the wrong place, or not at all."""

from __future__ import annotations

from tests.planted.bug import Bug

LATENCIES = "tests/integration/broker/test_latencies.py"
PAGES = "tests/integration/broker/test_latency_pages.py"
TABLE = "tests/unit/spark/test_latency_table.py"

LATENCY_BUGS = [
    Bug(
        "a retry counts as waiting",
        "broker/partition.py",
        "                    if delivery_count == 1:\n",
        "                    if delivery_count:\n",
        LATENCIES,
    ),
    Bug(
        "a clock that was set back makes a latency of the difference",
        "broker/group_latencies.py",
        "        histogram.add(np.maximum(took_us, 0), counts)\n",
        "        histogram.add(np.abs(took_us), counts)\n",
        LATENCIES,
    ),
    Bug(
        "a minute that is over is not stored",
        "broker/group_latencies.py",
        "        self._finished.append(minute)\n",
        "",
        LATENCIES,
    ),
    Bug(
        "the last minute is not stored at the end",
        "broker/latencies.py",
        "        self._store(None)\n",
        "",
        LATENCIES,
    ),
    Bug(
        "a new topic has the past of an old one of its name",
        "broker/topic_calls.py",
        "            self.latencies.begin(name)\n",
        "",
        LATENCIES,
    ),
    Bug(
        "a full disk for statistics is everybody's trouble",
        "broker/statistics_log.py",
        "        except (PenstockError, OSError) as exc:\n",
        "        except BlockingIOError as exc:\n",
        LATENCIES,
    ),
    Bug(
        "what lies at an edge of a bucket counts as below it",
        "broker/histogram.py",
        "if bucket < _bucket(edge_us)",
        "if bucket <= _bucket(edge_us)",
        "tests/unit/broker/test_histogram.py",
    ),
    Bug(
        "a roll-up does not ask again for the minute that was not over",
        "spark/pipelines/latencies.py",
        "client.latencies(topic, since=max(known, default=0))",
        "client.latencies(topic, since=max(m.timestamp() + 60 for m in known) if known else 0)",
        TABLE,
    ),
    Bug(
        "a page goes on until it is full, however much it has to look through",
        "broker/latencies.py",
        "    return history is not None and history.reads >= READS_MAX\n",
        "    return False\n",
        PAGES,
    ),
    Bug(
        "a page is cut out of the whole history",
        "broker/latencies.py",
        "        stored = history.minutes(since_us) if history is not None else ()\n",
        "        stored = list(history.minutes(since_us)) if history is not None else ()\n",
        PAGES,
    ),
    Bug(
        "a page leaves out a minute that came by again when the clock was set back",
        "broker/latency_log.py",
        "        goes_back = first_us < self._newest_us\n",
        "        goes_back = False\n",
        PAGES,
    ),
    Bug(
        "where time went back is forgotten by a restart",
        "broker/latency_log.py",
        "_MARKS = 1 << _TOPIC_BEGINS | 1 << _RUN_BEGINS\n",
        "_MARKS = 1 << _TOPIC_BEGINS\n",
        PAGES,
    ),
    Bug(
        "where a topic was made anew is forgotten by a restart",
        "broker/latency_log.py",
        "_MARKS = 1 << _TOPIC_BEGINS | 1 << _RUN_BEGINS\n",
        "_MARKS = 1 << _RUN_BEGINS\n",
        PAGES,
    ),
    Bug(
        "a run that began earlier is read from its beginning",
        "broker/latency_log.py",
        "        offset = found if found >= start else self._first(start, stop, since_us)\n",
        "        offset = start\n",
        PAGES,
    ),
]
