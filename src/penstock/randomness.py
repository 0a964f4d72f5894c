"""Random numbers for ids and pauses, from a generator of Penstock's own.

A program may seed Python's shared generator, so that its runs can be repeated. Ids drawn from that
would repeat, too: what its second run publishes would be taken for retries of the first, confirmed,
and not stored.
"""

from __future__ import annotations

import os
from random import Random

own_random = Random()

# As Python does for its shared generator: a forked child must not draw what its parent draws.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=own_random.seed)
