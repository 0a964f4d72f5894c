"""Bugs where a shard is replicated: who may write, what counts, and what is answered when."""

from __future__ import annotations

from tests.planted.bug import Bug

RULES = "tests/unit/cluster/test_rules.py"
LIFE = "tests/simulation/test_cluster_life.py"
PROTOCOLS = "tests/integration/cluster/test_protocols.py"

CLUSTER_BUGS = [
    Bug(
        "a record of an earlier term counts",
        "cluster/fold.py",
        "            counts = record.term == self.term and follows\n",
        "            counts = follows or record.term < self.term\n",
        RULES,
    ),
    Bug(
        "a record counts although the one before it never arrived",
        "cluster/fold.py",
        "            counts = record.term == self.term and follows\n",
        "            counts = record.term == self.term\n",
        RULES,
    ),
    Bug(
        "records are confirmed out of order",
        "cluster/writer.py",
        "            as_predicted = seq == expected and stored_seq == seq\n",
        "            as_predicted = stored_seq is not None\n",
        RULES,
    ),
    Bug(
        "nobody looks at which number a record got",
        "cluster/writer.py",
        "            as_predicted = seq == expected and stored_seq == seq\n",
        "            as_predicted = seq == expected and stored_seq is not None\n",
        RULES,
    ),
    Bug(
        "a call does not wait for what it was decided on",
        "cluster/writer.py",
        "            if self._waiting:\n                return self._waiting[-1].future\n",
        "            if self._waiting:\n                return DONE\n",
        RULES,
    ),
    Bug(
        "a new owner does not read up to its own term",
        "cluster/takeover.py",
        "    follow(stream, replica, seq, whole=True)\n",
        "    follow(stream, replica, seq - 1)\n",
        "tests/unit/cluster/test_takeover.py",
    ),
    Bug(
        "the stream is purged before the trim is committed",
        "cluster/shard_log.py",
        "            self._start = before\n            stored =",
        "            self._start = before\n            self._order.trim_stored(self, before)\n"
        "            stored =",
        RULES,
    ),
    Bug(
        "what was not committed stays in the files",
        "cluster/shard_log.py",
        "        committed = cut_to_committed(files, folder)\n",
        "        committed = read_mark(files, os.path.join(folder, DURABLE_FILE)) or 0\n",
        RULES,
    ),
    Bug(
        "void records stay when others are purged",
        "cluster/trims.py",
        "            stream.delete(self.voids[-1])\n",
        "",
        RULES,
    ),
    Bug(
        "a record that a server cannot read is passed over as if it had been dropped",
        "cluster/gaps.py",
        "        if high - low < each.stop - start:\n",
        "        if not len(dropped) and start < first_seq:\n",
        "tests/unit/cluster/test_gaps.py",
    ),
    Bug(
        "a later version of records is written before all members read it",
        "cluster/placement.py",
        "    return max(known, min(announced, default=known))\n",
        "    return max(known, *announced)\n",
        "tests/unit/cluster/test_placement.py",
    ),
    Bug(
        "a node that says nothing of versions is taken to read the latest",
        "cluster/registry.py",
        "    record_version: int = 1\n",
        "    from penstock.cluster import records\n\n    record_version: int = records.VERSION\n",
        "tests/unit/cluster/test_placement.py",
    ),
    Bug(
        "HTTP answers before the commit",
        "server/cluster/front.py",
        "                await all_committed(self._node, self._shard)\n",
        "                pass\n",
        PROTOCOLS,
    ),
    Bug(
        "short answers pass by who lets them out after the commit",
        "server/http/connection.py",
        "        if cycle is None or send != cycle.send:\n",
        "        if cycle is None:\n",
        "tests/integration/server/test_wrapped_answers.py",
    ),
    Bug(
        "gRPC answers before the commit",
        "server/grpc/listener.py",
        "                    answer = await work(call, request)\n"
        "                    await call.door.committed()\n",
        "                    answer = await work(call, request)\n",
        PROTOCOLS,
    ),
    Bug(
        "Kafka answers before the commit",
        "server/kafka/connection.py",
        "        await broker.door.committed()\n",
        "        pass\n",
        PROTOCOLS,
    ),
]
