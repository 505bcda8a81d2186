"""`TarIndex` + the key rule → `ShardIndex`: the samples of one shard, as columns.

Members of one key form one sample wherever they stand in the shard; samples come in the order in
which their keys first appear. Everything is an array or one run of bytes, so that an open shard
costs no Python object for each of its samples. This room never sees the members' bytes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wids.errors import ShardFormatError
from wids.keys import KEY_SPLITS, KeySplit, split_names, to_bytes, to_text
from wids.tar import IntArray, TarIndex


@dataclass(frozen=True)
class ShardIndex:
    r"""The samples of one shard.

    Sample ``i`` has the members ``member_starts[i]:member_starts[i + 1]``, in archive order.

    Attributes:
        keys: The samples' keys, each with a NUL before and after: ``b"\0k0\0k1\0"``.
        key_starts: Where the keys begin in ``keys``, and the end; shape ``(num_samples + 1,)``.
        member_starts: Each sample's first member, and the end; shape ``(num_samples + 1,)``.
        offsets: Where the members' bytes begin in the tar, shape ``(num_members,)``.
        sizes: Their lengths in bytes, shape ``(num_members,)``.
        field_ids: Their fields, as positions in ``fields``, shape ``(num_members,)``.
        fields: Every field that occurs, with its leading dot.
        num_files: Files in the tar: members, orphans and duplicates.
        num_orphans: Files whose name gives no key or no field.
        num_duplicates: Files that a later one of the same name replaces.
    """

    keys: bytes
    key_starts: IntArray
    member_starts: IntArray
    offsets: IntArray
    sizes: IntArray
    field_ids: IntArray
    fields: tuple[str, ...]
    num_files: int
    num_orphans: int
    num_duplicates: int

    def __len__(self) -> int:
        return len(self.key_starts) - 1

    @cached_property
    def _key_starts(self) -> memoryview:
        return self.key_starts.data  # gives plain ints, several times faster than numpy

    def key(self, local_index: int) -> str:
        """Give the key of one sample."""
        starts = self._key_starts
        return to_text(self.keys[starts[local_index] : starts[local_index + 1] - 1])

    def find(self, key: str) -> int:
        """Give the local index of a key, or -1, by one search through the bytes of all keys."""
        at = self.keys.find(b"\0" + to_bytes(key) + b"\0")
        return int(np.searchsorted(self.key_starts, at + 1)) if at >= 0 and "\0" not in key else -1


def build(tar: TarIndex, key_split: KeySplit = "first", path: str = "tar") -> ShardIndex:
    """Group the members of a tar into samples.

    Args:
        tar: The members.
        key_split: Where a name is split: at the ``"first"`` or the ``"last"`` dot of its last part.
        path: How messages name the tar.
    """
    if key_split not in KEY_SPLITS:
        raise ValueError(f'key_split: expected "first" or "last", found {key_split!r}')
    joined, starts, dots, ends = split_names(tar.names, key_split)
    if len(ends) != len(tar.names):
        raise ShardFormatError(f"{path}: a member name has a NUL in it; pack the shard again")
    belongs = np.flatnonzero(dots)
    dot_list = dots[belongs].tolist()
    keys = [joined[a:b] for a, b in zip(starts[belongs].tolist(), dot_list, strict=True)]
    fields = [joined[a:b] for a, b in zip(dot_list, ends[belongs].tolist(), strict=True)]
    sample_of, unique_keys = _numbered(keys)
    field_of, unique_fields = _numbered(fields)

    order = _in_samples(sample_of, field_of, len(unique_fields))
    keys_joined = b"\0" + b"\0".join(unique_keys) + b"\0" if unique_keys else b""
    is_separator = np.frombuffer(keys_joined, np.uint8) == 0
    return ShardIndex(
        keys=keys_joined,
        key_starts=np.flatnonzero(is_separator) + 1 if unique_keys else np.zeros(1, np.int64),
        member_starts=np.searchsorted(sample_of[order], np.arange(len(unique_keys) + 1)),
        offsets=tar.offsets[belongs][order],
        sizes=tar.sizes[belongs][order],
        field_ids=field_of[order],
        fields=tuple(map(to_text, unique_fields)),
        num_files=len(tar.names),
        num_orphans=len(tar.names) - len(belongs),
        num_duplicates=len(belongs) - len(order),
    )


def _numbered(items: list[bytes]) -> tuple[IntArray, list[bytes]]:
    """Number the distinct items in order of first appearance; give all numbers and the items."""
    table = dict(zip(dict.fromkeys(items), itertools.count()))
    return np.fromiter(map(table.__getitem__, items), np.int64, len(items)), list(table)


def _in_samples(sample_of: IntArray, field_of: IntArray, num_fields: int) -> IntArray:
    """Order members by sample, then as in the archive; of equal names only the last stays."""
    pairs = sample_of * num_fields + field_of
    kept = np.arange(len(pairs))
    if (np.diff(pairs) > 0).all():  # as packers write them: nothing to sort, nothing twice
        return kept
    distinct, last_seen = np.unique(pairs[::-1], return_index=True)
    if len(distinct) < len(pairs):
        kept = np.sort(len(pairs) - 1 - last_seen)
    return kept[np.argsort(sample_of[kept], kind="stable")]
