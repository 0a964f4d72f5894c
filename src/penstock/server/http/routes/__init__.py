"""Everything that can be asked over HTTP, room by room."""

from penstock.server.http.routes import (
    about,
    calls,
    cluster,
    dashboard,
    keys,
    messages,
    queue_table,
    queues,
    sessions,
    streams,
    transactions,
)

_ROOMS = (
    messages,
    transactions,
    queues,
    streams,
    queue_table,
    keys,
    cluster,
    sessions,
    about,
    dashboard,
)
_TABLES = [each.table for each in _ROOMS]

ENDPOINTS = [*calls.ENDPOINTS, *(each for table in _TABLES for each in table.endpoints)]
