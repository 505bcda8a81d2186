"""What raw samples are, wherever they come from: their fields, and their places in a shard.

The vocabulary that local and remote shards share. Nothing is read here.
"""

from __future__ import annotations

import io
import operator
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

Raw = Literal["stream", "bytes", "view"]
RawSample: TypeAlias = dict[str, Any]
ReadRange: TypeAlias = Callable[[int, int], bytes]
"""Returns the bytes from a start to a stop."""

WRAP: Final[dict[str, Callable[[Any], Any] | None]] = {
    "bytes": None,
    "view": None,
    "stream": io.BytesIO,
}
"""What to make of the bytes, or of the view, that a shard has cut out; None to leave them."""


def check_raw(raw: str) -> None:
    """Refuse a value of ``raw`` that there is not."""
    if raw not in WRAP:
        raise ValueError(f'raw: expected "stream", "bytes" or "view", found {raw!r}')


def position(local_index: int, length: int, name: str) -> int:
    """Give the position that an index means in a shard of a length; negative ones count back."""
    index = operator.index(local_index)
    if not -length <= index < length:
        raise IndexError(f"{name}: index {local_index} is out of range for {length} samples")
    return index % length
