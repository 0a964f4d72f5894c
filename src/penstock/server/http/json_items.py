"""How many items the lists of a JSON body have, known before anything is made of them.

An item can be as short as `{}` and takes a hundred bytes and more as an object, so that a body
within its limit could still fill the memory of the machine. So a long one is counted first, as it
is read by any parser: by its commas outside of strings.
"""

from __future__ import annotations

import numpy as np

from penstock.errors import RequestTooLarge

_CHUNK_BYTES = 1 << 20
_OTHERS = bytes(set(range(256)) - set(b"[]{},"))
_IN_OBJECT = 1 << 16  # steps in and out of objects and lists, told apart in one number
_STEPS = np.zeros(256, np.int64)
_STEPS[list(b"{}[]")] = _IN_OBJECT, -_IN_OBJECT, 1, -1
_COMMA = ord(",")


def has_more_items(body: bytes, limit: int, objects_around: int) -> bool:
    """Whether there are more in lists that lie in so many objects, one in the other.

    What is no JSON is counted as far as it is; the parser refuses it there.
    """
    if body.count(b",") < limit:
        return False
    if b"\\" in body:
        body = body.replace(rb"\\", b"--").replace(rb"\"", b"--")
    level = in_string = commas = 0
    place = objects_around * _IN_OBJECT + 1
    for start in range(0, len(body), _CHUNK_BYTES):
        parts = body[start : start + _CHUNK_BYTES].split(b'"')
        marks = b"".join(parts[in_string::2]).translate(None, _OTHERS)
        in_string ^= (len(parts) - 1) & 1
        if marks:
            found = np.frombuffer(marks, np.uint8)
            levels = np.cumsum(_STEPS[found]) + level
            level = int(levels[-1])
            commas += int(np.count_nonzero((levels == place) & (found == _COMMA)))
            if commas >= limit:  # there is one item more than commas
                return True
    return False


def too_many(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"more than {limit} messages in one request; send them in parts")
