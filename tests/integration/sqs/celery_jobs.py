"""A Celery application as its users write them; a process of the test runs its worker."""

from __future__ import annotations

import os
import time

from celery import Celery, chord

RESULTS = os.environ["PENSTOCK_TEST_RESULTS"]

app = Celery(
    "jobs",
    broker=os.environ["PENSTOCK_TEST_BROKER"],
    backend=f"file://{RESULTS}",
    broker_transport_options={
        "region": "eu-west-1",
        "wait_time_seconds": 5,
        "visibility_timeout": 30,
        "is_secure": False,
    },
)
app.conf.update(
    task_default_queue="celery-jobs",
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    result_chord_join_timeout=30,
)


@app.task
def add(one: int, two: int) -> int:
    return one + two


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def when() -> float:
    return time.time()


@app.task(bind=True, max_retries=3)
def flaky(self, until: int) -> int:  # type: ignore[no-untyped-def]
    if self.request.retries < until:
        raise self.retry(countdown=0.2)
    return int(self.request.retries)


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def die_once(self, path: str) -> str:  # type: ignore[no-untyped-def]
    """The child that works on it is killed the first time."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "second"
    os.kill(os.getpid(), 9)
    return "first"


__all__ = ["add", "app", "chord", "die_once", "flaky", "total", "when"]
