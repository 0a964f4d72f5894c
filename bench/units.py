"""Numbers as people read them, and sizes as people write them."""

from __future__ import annotations

import re

_SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def quantity(value: float, unit: str) -> str:
    """`0.31 x`, `1,234 x`, `12.3 MB`: three digits that matter, no exponent."""
    return f"{number(value)} {unit}".strip()


def number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    if abs(value) >= 0.1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.2g}"


def rate(per_second: float, unit: str) -> str:
    """`1.5 M messages/s`, `3.2 GB/s`."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_second >= factor:
            return f"{number(per_second / factor)} {prefix}{'' if unit == 'B' else ' '}{unit}/s"
    return f"{number(per_second)} {unit}/s"


def size(count: int) -> str:
    """`10 MB`, `1 GB`: decimal, as disks are sold."""
    for name in ("TB", "GB", "MB", "KB"):
        if count >= _SIZES[name]:
            return f"{count / _SIZES[name]:g} {name}"
    return f"{count} B"


def parse_size(text: str) -> int:
    """The bytes that `10GB`, `500 MB` or `1000` mean. ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)?", text.strip().upper())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write for example 500MB or 10GB")
    return int(float(match[1]) * _SIZES[match[2] or "B"])
