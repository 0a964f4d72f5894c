"""Bugs in the Kafka protocol: record batches, groups, acknowledgements, who comes in."""

from __future__ import annotations

from tests.planted.bug import Bug

RECORDS = "tests/unit/server/kafka/test_records.py"
CLASSIC = "tests/unit/server/kafka/test_classic.py"
PRODUCERS = "tests/unit/delivery/test_producers.py"
DURABLE = "tests/integration/kafka/test_durable.py"
TRANSACTIONS = "tests/integration/kafka/test_transactions.py"
SECURITY = "tests/integration/kafka/test_security.py"

KAFKA_BUGS = [
    Bug(
        "the checksum of a record batch is not compared",
        "server/kafka/records_in.py",
        "if crc32c(view[CRC_FROM:end]) != crc:",
        "if crc < 0:",
        RECORDS,
    ),
    Bug(
        "offsets without a message at the end of a batch are not covered",
        "server/kafka/records_out.py",
        "last_delta = next_offset - 1 - base_offset",
        "last_delta = count - 1",
        RECORDS,
    ),
    Bug(
        "what a codec brings has no limit",
        "server/kafka/codecs.py",
        "if size > bytes_max:",
        "if size > bytes_max << 8:",
        RECORDS,
    ),
    Bug(
        "acks=all is answered before the fsync",
        "server/kafka/produce.py",
        "if call.body.acks != _ACKS_ALL or _is_durable(stored):",
        "if call.body.acks or _is_durable(stored):",
        DURABLE,
    ),
    Bug(
        "a consumer is given what a power cut can take back",
        "broker/peek.py",
        """return log.durable_end if log.config.fsync == "always" else log.end""",
        "return log.end",
        DURABLE,
    ),
    Bug(
        "a member of an earlier generation commits",
        "server/kafka/classic.py",
        "return None if generation == self.generation else Code.ILLEGAL_GENERATION",
        "return None",
        CLASSIC,
    ),
    Bug(
        "a rebalance forgets to let go who waits for its assignment",
        "server/kafka/classic.py",
        """\
                answers += self._let_go_sync(member)
                member.assignment = b"\"""",
        """\
                member.assignment = b"\"""",
        CLASSIC,
    ),
    Bug(
        "the numbers of a producer are not extended where they begin again",
        "delivery/producers.py",
        "return sequence + max(rounds, 0) * WRAPS_AT",
        "return sequence",
        PRODUCERS,
    ),
    Bug(
        "what a transaction brings is published before it is committed",
        "server/kafka/produce.py",
        """\
            transactions.stage(call, name, number, batches)
            return""",
        """\
            transactions.stage(call, name, number, batches)
            call.api.publish(name, batches[0].batch, partition=number)
            return""",
        TRANSACTIONS,
    ),
    Bug(
        "a former holder of a transactional id commits",
        "server/kafka/transactions.py",
        """\
        if producer.producer_id != producer_id:
            raise Refused(Code.INVALID_PRODUCER_EPOCH, "another one holds this id now")
        return producer

    def add(""",
        """\
        return producer

    def add(""",
        TRANSACTIONS,
    ),
    Bug(
        "a request without a key is carried out where keys exist",
        "server/kafka/connection.py",
        "gate.check_still_good(session.key)",
        "pass",
        SECURITY,
    ),
]
