"""Waiting for the disk: one of many does, and an fsync is for all of them."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

from penstock.log.base import DONE


async def durable(stored: Future[Any]) -> None:
    """Until it is on disk. Who does not want to wait any more must not end it for the others."""
    if stored is not DONE:
        await asyncio.shield(asyncio.wrap_future(stored))
