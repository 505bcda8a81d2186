"""Split a member name into key and field, and join them again.

A name is split in its last path component, at the first dot (or at the last one, on request):
``a.b/c.seg.png`` is field ``.seg.png`` of the sample with key ``a.b/c``. Names are bytes, as a tar
stores them. specs/tar-shards.md has the rule, with a table of awkward names.
"""

from __future__ import annotations

import re
from mmap import mmap
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from wids.storage.array_types import IntArray

KeySplit = Literal["first", "last"]
KEY_SPLITS: tuple[KeySplit, ...] = get_args(KeySplit)
_METADATA_KEY: Final = re.compile(rb"\0__[^/\0]*__/")


class SplitNames(NamedTuple):
    """Many names in one run of bytes, and where each of them is split.

    Name ``i`` has the key ``joined[starts[i]:dots[i]]`` and the field ``joined[dots[i]:ends[i]]``;
    ``dots[i]`` is 0 if the name has no key or no field.
    """

    joined: bytes
    starts: IntArray
    dots: IntArray
    ends: IntArray

    def parts(self) -> tuple[list[bytes], list[bytes]]:
        """Return the keys, and the fields without their first dot, of names that have both."""
        # One split in C: slicing each name in Python takes four times as long.
        is_split = self.dots > 0
        text = np.frombuffer(self.joined, np.uint8).copy()
        text[self.dots[is_split]] = 0
        if not is_split.all():
            text = text[np.repeat(is_split, self.ends + 1 - self.starts)]
        parts = text.tobytes().split(b"\0")
        return parts[:-1:2], parts[1::2]


def split_names(names: list[bytes], key_split: KeySplit = "first") -> SplitNames:
    """Split member names, which must not contain a NUL, into keys and fields.

    A name without a key or without a field in its last path component belongs to no sample, and
    neither does one of metadata. The cost is a few numpy passes over all bytes.
    """
    # The final NUL marks the end of the last name. No tar name contains one.
    joined = b"\0".join([*names, b""])
    text = np.frombuffer(joined, np.uint8)
    ends = np.flatnonzero(text == 0)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    slashes = np.flatnonzero(text == ord("/"))
    dots = np.flatnonzero(text == ord("."))
    bases = np.maximum(starts, _last_before(slashes, ends) + 1)
    # The next dot may belong to a later name, or be the sentinel after the last one. Both are after
    # the end of this name, so `is_split` drops them.
    if key_split == "first":
        splits = np.append(dots, len(joined))[np.searchsorted(dots, bases)]
    else:
        splits = _last_before(dots, ends)
    is_split = (splits > bases) & (splits < ends - 1)  # key and field are not empty
    for number in np.flatnonzero(is_split & (text[starts] == ord("_"))).tolist():
        is_split[number] = not is_metadata(names[number])
    return SplitNames(joined, starts, np.where(is_split, splits, 0), ends)


def is_metadata(name: bytes) -> bool:
    """Whether the first path component of a name is ``__…__``, which webdataset skips (KEY-5)."""
    first = name.partition(b"/")[0]
    return len(first) >= len(b"____") and first[:2] == first[-2:] == b"__"


def has_metadata(keys: bytes | mmap, start: int, stop: int) -> bool:
    """Whether one of the keys between NULs in a part of some bytes is that of metadata."""
    # Most keys have no underscore, which numpy sees in a tenth of the time.
    text = np.frombuffer(keys, np.uint8, stop - start, start)
    return bool((text == ord("_")).any()) and _METADATA_KEY.search(keys, start, stop) is not None


def _last_before(positions: IntArray, limits: IntArray) -> IntArray:
    """For each limit, return the last of the ascending positions before it, or -1."""
    return np.concatenate(([-1], positions))[np.searchsorted(positions, limits)]


def split_name(name: bytes, key_split: KeySplit = "first") -> tuple[bytes, bytes] | None:
    """Return key and field (with its leading dot) of one member name, or None."""
    _, _, dots, _ = split_names([name], key_split)
    return (name[: dots[0]], name[dots[0] :]) if dots[0] else None


def to_text(name: bytes) -> str:
    """Return a stored name as text; bytes that are not UTF-8 become lone surrogates."""
    # TAR-5: not "replace", because two different names could then become the same key.
    return name.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """Return the stored bytes of a name; the inverse of `to_text`."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # other lone surrogates, which no stored name has
        return b"\0"  # no stored name equals this, so that a search finds nothing
