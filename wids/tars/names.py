"""Member name ↔ (key, field): the only copy of that rule.

A name is split in its last path component, at the first dot (or at the last one, on request):
``a.b/c.seg.png`` is field ``.seg.png`` of the sample with key ``a.b/c``. Names are bytes, as a tar
stores them, and this room knows nothing else about tars. The rule is written down, with a table of
awkward names, in specs/tar-shards.md.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

KeySplit = Literal["first", "last"]
IntArray = npt.NDArray[np.int64]
KEY_SPLITS: tuple[KeySplit, ...] = get_args(KeySplit)


class SplitNames(NamedTuple):
    """Many names in one run of bytes, and where each is split.

    Name ``i`` has the key ``joined[starts[i]:dots[i]]`` and the field ``joined[dots[i]:ends[i]]``;
    ``dots[i]`` is 0 where the name gives no key or no field.
    """

    joined: bytes
    starts: IntArray
    dots: IntArray
    ends: IntArray


def split_names(names: list[bytes], key_split: KeySplit = "first") -> SplitNames:
    """Split member names into keys and fields. Names have no NUL in them.

    A name without a key or without a field in its last path component is no part of any sample.
    Cost is a few passes of numpy over all bytes.
    """
    joined = b"\0".join([*names, b""])
    text = np.frombuffer(joined, np.uint8)
    ends = np.flatnonzero(text == 0)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    slashes = np.flatnonzero(text == ord("/"))
    dots = np.flatnonzero(text == ord("."))
    bases = np.maximum(starts, _last_before(slashes, ends) + 1)
    if key_split == "first":
        found = np.append(dots, len(joined))[np.searchsorted(dots, bases)]
    else:
        found = _last_before(dots, ends)
    splits = (found > bases) & (found < ends - 1)
    return SplitNames(joined, starts, np.where(splits, found, 0), ends)


def _last_before(positions: IntArray, limits: IntArray) -> IntArray:
    """Give for each limit the last of the ascending positions before it, or -1."""
    return np.concatenate(([-1], positions))[np.searchsorted(positions, limits)]


def split_name(name: bytes, key_split: KeySplit = "first") -> tuple[bytes, bytes] | None:
    """Split one member name into key and field (with its leading dot), or give None."""
    _, _, dots, _ = split_names([name], key_split)
    return (name[: dots[0]], name[dots[0] :]) if dots[0] else None


def to_text(name: bytes) -> str:
    """Give a stored name as text; bytes that are not UTF-8 become lone surrogates."""
    return name.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """Give the stored bytes of a name; the inverse of `to_text`."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # other lone surrogates, which no stored name can give
        return b"\0"
