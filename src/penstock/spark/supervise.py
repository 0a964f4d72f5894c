"""Keep a query in queue mode running: when a batch fails, say why, and start the query again.

A query ends with the first batch that fails. The next one halves that batch, until the message that
fails stands alone and becomes a dead letter; this starts it, and hands on what it ended with.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
from pyspark.errors import StreamingQueryException

from penstock.durations import Duration, parse_ns
from penstock.errors import InvalidInput
from penstock.spark.pipelines.failures import as_ours
from penstock.spark.queue_batches import QueueBatches

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_logger = logging.getLogger("penstock.spark")

_BATCH = re.compile(r'\{"batch":\s*"[0-9a-f]{32}",\s*"staging":\s*"(?:[^"\\]|\\.)*"\}')


def keep_running(
    start: Callable[[], StreamingQuery],
    *,
    pause: Duration = "1s",
    failures_max: int = 1000,
    storage: Mapping[str, str] | None = None,
) -> int:
    """Start a query with `mode=queue` again each time that a batch of it fails; how often it was.

    `start` starts the query, with the same checkpoint each time. Returns when the query ends by
    itself or is stopped. What a batch failed with is told to the one after it, and stands in the
    dead letter. Raises what the query ended with if that was no batch of messages, or after
    `failures_max` failures. `storage`: settings of the object store that `staging` is in, as
    `stagingStorage` has them; by default those of the environment.
    """
    pause_s = parse_ns(pause, "pause") / 1e9
    failures = 0
    while True:
        try:
            start().awaitTermination()
            return failures
        except StreamingQueryException as exc:
            failures += 1
            if not note_failure(exc, storage) or failures >= failures_max:
                raise
            _logger.warning("a batch failed, and the query is started again: %s", as_ours(exc))
            time.sleep(pause_s)


def note_failure(error: StreamingQueryException, storage: Mapping[str, str] | None = None) -> bool:
    """Keep what a query in queue mode ended with, for the dead letter of the message that did it.

    Returns whether it ended in a batch of messages. For programs with a loop of their own.
    """
    found = _BATCH.findall(str(error))
    if not found:
        return False
    try:
        end = msgspec.json.decode(found[-1], type=_BatchEnd)
    except msgspec.DecodeError as exc:
        raise InvalidInput(f"the query does not say which batch failed: {exc}") from exc
    batches = QueueBatches(end.staging, storage)
    batches.note_error(end.batch, str(as_ours(error)))
    return batches.has(end.batch)


class _BatchEnd(msgspec.Struct, frozen=True):
    batch: str
    staging: str
