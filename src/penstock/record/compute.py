"""Arrow's compute functions, loaded when the first is used.

`pyarrow.compute` makes a wrapper of each of its hundreds when it is imported, which takes as long
as all the rest of Arrow; a program that only looks around needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    found = globals()[name] = getattr(import_module("pyarrow.compute"), name)
    return found
