"""Checkpoints of a topic now, also where the little that has happened would not be worth one."""

from __future__ import annotations

from penstock.broker.topic import Topic


def checkpoint(topic: Topic) -> None:
    topic.delays.ordered()
    for partition in topic.partitions:
        partition.checkpoint()
