"""Bugs in the SQS API, in backups and in imports."""

from __future__ import annotations

from tests.planted.bug import Bug

SIGNATURES = "tests/integration/sqs/test_signatures.py"
FIFO = "tests/integration/sqs/test_fifo.py"
STANDARD = "tests/integration/sqs/test_standard.py"
REDRIVE = "tests/integration/sqs/test_redrive.py"

COMING_OVER_BUGS = [
    Bug(
        "the body of a signed request may be another one",
        "server/sqs/signature.py",
        "body = hashlib.sha256(request.body).hexdigest()",
        """\
body = request.headers.get(
        b"x-amz-content-sha256", hashlib.sha256(request.body.replace(b"b", b"a")).hexdigest()
    )""",
        SIGNATURES,
    ),
    Bug(
        "a signature is good for ever",
        "server/sqs/signature.py",
        "    _check_time(signature, now_s)\n",
        "",
        SIGNATURES,
    ),
    Bug(
        "a deduplication id counts for all message groups",
        "server/sqs/sending.py",
        "if view.dedup_per_group:",
        "if False:",
        FIFO,
    ),
    Bug(
        "an old receipt deletes nothing, and nobody is told",
        "server/sqs/receiving.py",
        "Settle(receipts=receipts, even_if_lost=True)",
        "Settle(receipts=receipts)",
        STANDARD,
    ),
    Bug(
        "any queue may send its dead letters to any other",
        "server/sqs/queues.py",
        "    check_allows(redrive.target, settings, source, call.addresses)\n",
        "",
        REDRIVE,
    ),
    Bug(
        "a move task deletes what it could not place",
        "server/sqs/moves.py",
        """\
            back = Extend(leases=[part], visibility=0)
            self._door.api.settle("extend", source, GROUP, back)
            raise""",
        """\
            self._door.api.settle("ack", source, GROUP, Settle(leases=[part]))
            raise""",
        REDRIVE,
    ),
    Bug(
        "a damaged backup is restored",
        "backup/store.py",
        "if digest.hexdigest() != file.sha256 or size_bytes != file.size_bytes:",
        "if size_bytes != file.size_bytes:",
        "tests/integration/backup/test_backup.py",
    ),
    Bug(
        "what an interrupted import had stored is stored again",
        "transfer/importing.py",
        '                dedup_ids=[f"{ids}:{each.number}" for each in some],\n'
        "                dedup_window=_WINDOW,\n            )\n            marks",
        "            )\n            marks",
        "tests/integration/transfer/test_import.py",
    ),
    Bug(
        "a damaged message ends the import of its segment",
        "transfer/ledgerq.py",
        "is_lost, at = True, _next_entry(data, at + 1)",
        "is_lost, at = True, len(data)",
        "tests/integration/transfer/test_import.py",
    ),
]
