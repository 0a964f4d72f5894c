"""Bugs in what the dashboard stands on: sessions, watched answers, searches, history, letters."""

from __future__ import annotations

from tests.planted.bug import Bug

SESSIONS = "tests/integration/server/test_sessions.py"
WATCHING = "tests/integration/server/test_watching.py"
SEARCH = "tests/integration/broker/test_search.py"
HISTORY = "tests/integration/broker/test_history.py"

DASHBOARD_BUGS = [
    Bug(
        "a page of another port changes something with the cookie of a session",
        "server/http/callers.py",
        "            if method not in _READING:\n                names.check_own_page(headers)\n",
        "",
        SESSIONS,
    ),
    Bug(
        "a session outlives its key",
        "server/gate.py",
        "        if key is None or not self.keys.knows(key):\n            raise Unauthenticated(",
        "        if key is None:\n            raise Unauthenticated(",
        SESSIONS,
    ),
    Bug(
        "a session has no end",
        "server/sessions.py",
        "        if session is None or session.ends_s < time.monotonic():\n",
        "        if session is None:\n",
        SESSIONS,
    ),
    Bug(
        "scripts can read the cookie",
        "server/http/routes/sessions.py",
        '        "HttpOnly",\n',
        "",
        SESSIONS,
    ),
    Bug(
        "what is watched is not asked of the key",
        "server/push/watched.py",
        "        self._every_s = every_ms / 1000\n        self._allow()\n",
        "        self._every_s = every_ms / 1000\n",
        WATCHING,
    ),
    Bug(
        "everything is sent again when something has changed",
        "server/push/watched.py",
        "    return before is None or bytes(before) != bytes(value)\n",
        "    return True\n",
        WATCHING,
    ),
    Bug(
        "a search goes on behind what it found and did not give",
        "broker/search.py",
        "        if self.is_empty:\n            return self._place\n        offset",
        "        if True:\n            return self._place\n        offset",
        SEARCH,
    ),
    Bug(
        "a search reads on and on for one page",
        "broker/search.py",
        "        return self.bytes >= SCAN_BYTES_MAX or ",
        "        return False and ",
        SEARCH,
    ),
    Bug(
        "backward, messages come in the order of the log",
        "broker/search.py",
        "        return -stamp_us if self._backward else stamp_us\n",
        "        return stamp_us\n",
        SEARCH,
    ),
    Bug(
        "what was counted before is counted again in each minute",
        "broker/history.py",
        "                self._counted[name] = new\n",
        "                pass\n",
        HISTORY,
    ),
    Bug(
        "dead letters count as messages of a topic in the totals",
        "broker/history.py",
        "        names = [name for name in broker.topics() if not broker.is_dead_letters(name)]\n",
        "        names = list(broker.topics())\n",
        HISTORY,
    ),
    Bug(
        "a new topic has the history of the one before it",
        "broker/stats_api.py",
        "max(since_us, created_us - MINUTE_US)",
        "since_us",
        HISTORY,
    ),
    Bug(
        "a redrive takes more letters than it was told",
        "broker/dead_letters.py",
        "            yield partition, page[:left]\n",
        "            yield partition, page\n",
        HISTORY,
    ),
]
