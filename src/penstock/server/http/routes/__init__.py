"""Everything that can be asked over HTTP, room by room."""

from penstock.server.http.routes import (
    about,
    dead_letters,
    delayed,
    keys,
    messages,
    queues,
    stats,
    streams,
    topics,
)

ENDPOINTS = [
    endpoint
    for room in (topics, messages, queues, delayed, dead_letters, streams, stats, keys, about)
    for endpoint in room.table.endpoints
]
