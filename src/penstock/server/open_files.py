"""The limit of open files: raised at start, and shared between connections and the log."""

from __future__ import annotations

import resource

_WANTED = 65_536
_SHARE_OF_OTHERS = 4  # of the connections that a server may have, one in so many


def connections_below_limit(connections_max: int) -> int:
    """Raise the soft limit as far as it goes; how many connections may be open.

    At most half of it: a log that cannot open its next segment could not take messages.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = _WANTED if hard == unlimited else min(hard, _WANTED)
    if soft != unlimited and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return connections_max if soft == unlimited else max(1, min(connections_max, soft // 2))


def connections_of_other_port(connections_max: int) -> int:
    """How many of them may be open at a port that speaks another protocol than HTTP."""
    return max(1, connections_below_limit(connections_max) // _SHARE_OF_OTHERS)
