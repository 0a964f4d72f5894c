"""A topic with a message on disk that is not what was written."""

from __future__ import annotations

from penstock.client.client import Client
from tests.inside import broker_of


def publish_and_damage(ps: Client, topic: str) -> None:
    """Three messages, of which the one at offset 1 gets a wrong byte."""
    ps.create_topic(topic)
    for value in (b"one" * 50, b"two" * 50, b"three" * 50):
        ps.publish(topic, value)
    log = broker_of(ps).topic(ps._name(topic)).partition(0).log
    log.sync()
    (segment,) = log.segments
    with open(segment.path, "r+b") as file:
        data = file.read()
        file.seek(data.index(b"twotwo"))
        file.write(b"X")
