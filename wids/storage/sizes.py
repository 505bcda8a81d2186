"""Parse sizes such as ``"200GB"``, and format bytes, counts, shares and lists of names."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

_UNITS: Final = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "PIB": 2**50,
}  # fmt: skip


def parse_nbytes(size: int | str | None, name: str = "cache_size") -> int | None:
    """Return a number of bytes from a count, or a text such as ``"200GB"`` or ``"1.5TiB"``."""
    if size is None or size == "":
        return None
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
        unit = match and _UNITS.get(match[2].upper())
        if match is None or unit is None:
            raise ValueError(f'{name}: expected bytes or a text like "200GB", found {size!r}')
        return int(float(match[1]) * unit)
    # True is an int in Python, and would be a limit of one byte.
    if isinstance(size, bool) or not 0 <= size < math.inf or size != int(size):
        raise ValueError(f"{name}: expected a number of bytes of at least 0, found {size!r}")
    return int(size)


def nbytes_text(nbytes: float) -> str:
    """Return a number of bytes as text: ``15 B``, ``1.6 kB``, ``4.6 MB``; ``?`` for NaN."""
    if math.isnan(nbytes):
        return "?"
    value, prefixes = float(nbytes), iter("kMGTPE")
    prefix = ""
    while round(value, 1) >= 1000:  # 999,960 bytes are 1.0 MB, not 1000.0 kB
        value, prefix = value / 1000, next(prefixes)
    return f"{value:.1f} {prefix}B" if prefix else f"{value:.0f} B"


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 shard``, ``1,000 shards``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def first_of(names: Sequence[str], most: int = 3, count: int | None = None) -> str:
    """Return the first of some names, and an ellipsis if there are more, ``count`` in all."""
    has_more = (len(names) if count is None else count) > most
    return ", ".join(names[:most]) + ", …" * has_more


def percent_text(count: int, total: int) -> str:
    """Return a share as ``99.95 %``, rounded down: only all are 100 %, and only none are 0 %."""
    hundredths = 10_000 * count // total if total else 0
    if count and not hundredths:
        return "< 0.01 %"
    text = f"{hundredths // 100}.{hundredths % 100:02}".rstrip("0").rstrip(".")
    return f"{text} %"
