"""Bugs where messages pass through Spark: published twice, or not at all; read from elsewhere."""

from __future__ import annotations

from tests.planted.bug import Bug

SINK = "tests/unit/spark/test_sink.py"
STREAM = "tests/unit/spark/test_stream_read.py"
QUEUE = "tests/unit/spark/test_queue_read.py"
LAKE = "tests/unit/spark/test_lake.py"
FLOWS = "tests/unit/spark/test_flow_tables.py"
TOMBSTONES = "tests/unit/spark/test_tombstones.py"
RECREATED = "tests/unit/spark/test_recreated.py"

SPARK_BUGS = [
    # Out of Spark.
    Bug(
        "a batch that runs again is decided on again",
        "spark/staging.py",
        "        decision = self._decision(batch)\n        again = decision is not None\n",
        "        decision = None\n        again = self._decision(batch) is not None\n",
        SINK,
    ),
    Bug(
        "rows are published without the numbers that they always have",
        "spark/staging.py",
        "                        producer=(self._producer_id, self._batch, first),\n",
        "",
        SINK,
    ),
    Bug(
        "a batch is noted as done before it is published",
        "spark/staging.py",
        """\
        count = publication.run(client, self._tables(batch, decision))
        self._files.write("done", str(batch).encode())
""",
        """\
        self._files.write("done", str(batch).encode())
        count = publication.run(client, self._tables(batch, decision))
""",
        SINK,
    ),
    Bug(
        "the files of a batch that failed half way are removed",
        "spark/staging.py",
        "            if name and (decision is None or name not in decision.files):\n",
        "            if name:\n",
        SINK,
    ),
    # Flows.
    Bug(
        "a late row takes the place of a newer one",
        "spark/flows/tables.py",
        'f"s.{ORDER} > t.{ORDER} or ((s.{ORDER} = t.{ORDER}',
        'f"s.{ORDER} <> t.{ORDER} or ((s.{ORDER} = t.{ORDER}',
        FLOWS,
    ),
    Bug(
        "a round that changes nothing leaves no mark",
        "spark/flows/tables.py",
        '            if table.transaction_version(self.mark("round")) != number:\n',
        "            if number < 0:\n",
        FLOWS,
    ),
    Bug(
        "a round is written twice",
        "spark/flows/tables.py",
        '        elif table.transaction_version(self.mark("round")) not in (None, number - 1):\n',
        "        elif number < 0:\n",
        FLOWS,
    ),
    Bug(
        "a late row takes the place of a newer one in Iceberg",
        "spark/flows/merging.py",
        "pc.or_kleene(pc.greater(order, known_order),",
        "pc.or_kleene(pc.not_equal(order, known_order),",
        FLOWS,
    ),
    Bug(
        "a round is written to an Iceberg table twice",
        "spark/flows/iceberg_table.py",
        '        if before.get(self.mark("round"), 0) not in (0, number - 1):\n',
        "        if number < 0:\n",
        FLOWS,
    ),
    Bug(
        "who comes late brings back what a tombstone removed",
        "spark/flows/merging.py",
        "        if len(removals):\n",
        "        if len(removals) < 0:\n",
        TOMBSTONES,
    ),
    Bug(
        "a table that gets a wider column loses the round of another run",
        "spark/flows/tables.py",
        'make_room(table, self.stored(rows.schema), self.marks([self.mark("round")]))',
        "make_room(table, self.stored(rows.schema), {})",
        FLOWS,
    ),
    # Queue mode.
    Bug(
        "a message dies although whatever is tried fails",
        "spark/queue_read.py",
        "        if was_halved and self._batches.successes > successes_of(rows):\n",
        "        if was_halved or self._batches.successes > successes_of(rows):\n",
        QUEUE,
    ),
    Bug(
        "a message is lost when a failed batch is halved",
        "spark/queue_batches.py",
        '        self.add(rows.slice(half), "waiting")\n',
        '        self.add(rows.slice(half + 1), "waiting")\n',
        QUEUE,
    ),
    # A topic that is made again.
    Bug(
        "a stream takes a topic that was made again for the former one",
        "spark/stream_read.py",
        "            if known.get(topic, bounds.incarnation) != bounds.incarnation:\n",
        "            if known is None:\n",
        RECREATED,
    ),
    Bug(
        "a task reads whichever topic has the name",
        "spark/range_read.py",
        "            if incarnation is not None and place.incarnation(part.topic) != incarnation:\n"
        "                raise",
        "            if incarnation is None and place.incarnation(part.topic) != incarnation:\n"
        "                raise",
        RECREATED,
    ),
    Bug(
        "a table forgets of which topic its offsets are",
        "spark/lake_table.py",
        "            marks[incarnation_mark_of(name)] = _number_of(incarnation)\n",
        "            _ = incarnation_mark_of(name), _number_of(incarnation)\n",
        RECREATED,
    ),
    Bug(
        "progress of a deleted topic is taken in for the new one",
        "broker/streams.py",
        "            if self._is_still(topic, progress.incarnations.get(topic))\n",
        "",
        RECREATED,
    ),
    # Into Spark.
    Bug(
        "the end of batch 0 does not say where it began",
        "spark/stream_read.py",
        "        return _stream_offset(ends, begins if _is_initial(start) else newly, topics)\n",
        "        return _stream_offset(ends, newly, topics)\n",
        STREAM,
    ),
    Bug(
        "after a restart a batch begins where the log does",
        "spark/stream_read.py",
        "                begin = begins.setdefault(topic, {}).get(partition)\n",
        "                begin = begins.setdefault(topic, {}).pop(partition, None) and None\n",
        STREAM,
    ),
    Bug(
        "the group is told of a batch when it is planned",
        "spark/stream_read.py",
        "        self._report_progress(starts, known)\n        now =",
        "        self._report_progress(_offsets(self.reportLatestOffset() or {}), known)\n"
        "        now =",
        STREAM,
    ),
    Bug(
        "messages of a batch are acked when it is planned",
        "spark/queue_read.py",
        "                name = self._lease(client)\n",
        """\
                name = self._lease(client)
                if name:
                    receipts = self._batches.read(name)["receipt"].to_pylist()
                    client.ack(self._options.group, receipts)
""",
        QUEUE,
    ),
    # Into the lake.
    Bug(
        "a table does not look how far it is before it is written to",
        "spark/lake_sink.py",
        """\
            if now == job.ends and job.ends:
                if rules is not None and rules_of(lake, job.topic) not in (None, rules):
                    raise other_rules(folder)
                lake.sync()
                continue  # an earlier attempt got so far
            if not job.follows(now, folder == job.table):
""",
        "            if False:\n",
        LAKE,
    ),
    Bug(
        "a round that was cut short between two tables is planned anew",
        "spark/pipelines/archive.py",
        "    parts = halfway or limited_by_bytes(",
        "    parts = limited_by_bytes(",
        "tests/unit/spark/test_archive.py",
    ),
    Bug(
        "bad rows are committed after the offset that says they are",
        "spark/lake_sink.py",
        "            tables.insert(0, (job.bad_table,",
        "            tables.append((job.bad_table,",
        LAKE,
    ),
    Bug(
        "an Iceberg commit is tried again without a look at how far others are",
        "spark/iceberg_lake.py",
        "                if not left or change.collides(known, _marks(table, marks)):\n",
        "                if not left:\n",
        LAKE,
    ),
    Bug(
        "a table is asked how far each partition is at another moment",
        "spark/delta_lake.py",
        "        return _marks(self._look(), names)\n",
        "        return {n: v for n in names for v in _marks(self._look(), [n]).values()}\n",
        LAKE,
    ),
    Bug(
        "a commit to a Delta table is left to the system to write",
        "spark/delta_lake.py",
        "            self._table = None\n        self._sync_log(seen)\n",
        "            self._table = None\n",
        LAKE,
    ),
    Bug(
        "what an archive adds goes when a column gets wider",
        "spark/delta_lake.py",
        "        check_all_removed(folder, change.removed, known)\n",
        "",
        LAKE,
    ),
    Bug(
        "a log without a commit is taken for a table",
        "spark/delta_lake.py",
        "            return [name for name in names if _COMMIT.fullmatch(name)]\n",
        "            return names\n",
        LAKE,
    ),
    Bug(
        "lists that are empty are stored as none",
        "spark/table_writer.py",
        """\
        if headers in columns:
            columns[headers] = _or_null(columns[headers])
""",
        """\
        for name in {headers, "tags"} & columns.keys():
            columns[name] = _or_null(columns[name])
""",
        LAKE,
    ),
    Bug(
        "latest means the whole history where the log is empty",
        "spark/tier.py",
        "LATEST: part.start}",
        "LATEST: 0}",
        "tests/unit/spark/test_tier.py",
    ),
    Bug(
        "what no broker takes is decided on",
        "spark/staging.py",
        "                _check(topic, rows, settings[topic])\n",
        "",
        SINK,
    ),
]
