"""Everything that can be asked over HTTP, room by room."""

from penstock.server.http.routes import about, calls, keys, messages, queues, streams

_TABLES = [each.table for each in (messages, queues, streams, keys, about)]

ENDPOINTS = [*calls.ENDPOINTS, *(each for table in _TABLES for each in table.endpoints)]
