"""A worker whose handlers pass orders on, and that is killed, over and over."""

from __future__ import annotations

import sys

import penstock

app = penstock.App()
STEPS = ("step0", "step1", "step2")


def _pass_on(at: str, to: str) -> None:
    @app.consumer(at, group="g", concurrency=4, transactional=True)
    def handle(body: str) -> None:
        app.publish(to, body)
        sys.stdout.write(f"{body} to {to}\n")
        sys.stdout.flush()


for _at, _to in zip(STEPS, (*STEPS[1:], STEPS[0]), strict=True):
    _pass_on(_at, _to)
