"""Bugs where messages pass through Spark: published twice, or not at all; read from elsewhere."""

from __future__ import annotations

from tests.planted.bug import Bug

SINK = "tests/unit/spark/test_sink.py"
STREAM = "tests/unit/spark/test_stream_read.py"
QUEUE = "tests/unit/spark/test_queue_read.py"
LAKE = "tests/unit/spark/test_lake.py"

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
        write_durably(self._files, os.path.join(self._folder, "done"), str(batch).encode())
""",
        """\
        write_durably(self._files, os.path.join(self._folder, "done"), str(batch).encode())
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
    # Into Spark.
    Bug(
        "the end of batch 0 does not say where it began",
        "spark/stream_read.py",
        "        return _stream_offset(ends, begins if _is_initial(start) else newly)\n",
        "        return _stream_offset(ends, newly)\n",
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
        "        self._report_progress(starts)\n        now =",
        "        self._report_progress(_offsets(self.reportLatestOffset() or {}))\n        now =",
        STREAM,
    ),
    Bug(
        "messages of a batch are acked when it is planned",
        "spark/queue_read.py",
        "            name = self._lease(client)\n",
        """\
            name = self._lease(client)
            if name:
                client.ack(self._options.group, _read(self._path(name))["receipt"].to_pylist())
""",
        QUEUE,
    ),
    # Into the lake.
    Bug(
        "a table does not look how far it is before it is written to",
        "spark/lake_sink.py",
        """\
            if now == job.ends and job.ends:
                if rules is not None and lake.rules(job.topic) not in (None, rules):
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
        "    return halfway or limited_by_bytes(",
        "    return limited_by_bytes(",
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
        "files are moved to their place before they are committed",
        "spark/parquet_lake.py",
        "        try:\n            os.link(temporary, path)\n",
        "        self._finish(commit)\n        try:\n            os.link(temporary, path)\n",
        LAKE,
    ),
    Bug(
        "a table is asked how far each partition is at another moment",
        "spark/delta_lake.py",
        "        return {each: table.transaction_version(",
        "        return {each: self._look().transaction_version(",
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
        "a log without a commit is taken for a table",
        "spark/delta_lake.py",
        "            return [name for name in names if _COMMIT.fullmatch(name)]\n",
        "            return names\n",
        LAKE,
    ),
    Bug(
        "lists that are empty are stored as none",
        "spark/lake_sink.py",
        """\
        if "headers" in columns:
            columns["headers"] = _or_null(columns["headers"])
""",
        """\
        for name in {"headers", "tags"} & columns.keys():
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
