"""Holds what is in hand for longer, until its handler is through."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.worker.jobs import Job

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient

_EVERY_S_MIN = 0.01  # a lease may be as short as nothing

_logger = logging.getLogger("penstock.worker")


class LeaseKeeper:
    """Extends the leases of all jobs in hand, three times in each lease."""

    def __init__(
        self, ps: AsyncClient, name: str, group: str, visibility_s: float, in_hand: Collection[Job]
    ) -> None:
        self._ps = ps
        self._name = name
        self._group = group
        self._visibility_s = visibility_s
        self._in_hand = in_hand

    async def keep(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(max(self._visibility_s / 3, _EVERY_S_MIN))
            await self._extend()

    async def _extend(self) -> None:
        held: dict[str, tuple[Job, Any]] = {
            message.receipt: (job, message)
            for job in self._in_hand
            for message in job.messages
            if message not in job.lost
        }
        if not held:
            return
        try:
            refused = await self._ps.extend(self._group, list(held), visibility=self._visibility_s)
        except PenstockError as exc:
            _logger.warning("%s cannot extend its leases: %s", self._name, exc)
            return
        for receipt, error in refused.items():
            job, message = held[receipt]
            if job not in self._in_hand or (job.begun and job.task is None):
                continue  # settled meanwhile, or about to be
            job.lose(message)
            _logger.warning("%s: %s is lost: %s", self._name, message.id, error)
            # A thread cannot be stopped once it runs; whatever it returns comes too late.
            stops = job.consumer.handler.is_async or not job.begun
            if len(job.lost) == len(job.messages) and stops and job.task is not None:
                job.task.cancel()
