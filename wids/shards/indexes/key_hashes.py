"""Hash keys to 64 bits, all keys of an index in a few numpy passes.

Equal keys have equal hashes. A match has to be compared with the key itself, since other keys with
the same hash can be constructed. These hashes are used only in the memory of a process: packs have
others (specs/shard-index.md), which take ten times as long to compute.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from wids.shards.tars.index import ShardIndex
from wids.storage.array_types import IntArray, WordArray

# The hash of a key is the sum of its bytes times ascending powers of an odd number, modulo 2**64.
# One running sum yields the sums over all stretches of a text, and an odd number has an inverse.
_BASE: Final = 0x9E3779B97F4A7C15
_INVERSE: Final = pow(_BASE, -1, 1 << 64)
_MASK: Final = (1 << 64) - 1

_BLOCK_NBYTES: Final = 1 << 17
"""Bytes of text to hash at a time, as numbers that take eight times as much memory."""


def key_hash(key: bytes) -> int:
    """Return the hash of one key."""
    value = 0
    for byte in reversed(key):
        value = (value * _BASE + byte) & _MASK
    return value


def key_hashes(shard_index: ShardIndex) -> WordArray:
    """Return the hash of each key of a shard, shape ``(num_samples,)``."""
    nbytes = shard_index.text_stop - shard_index.text_start
    text = np.frombuffer(shard_index.text, np.uint8, nbytes, shard_index.text_start)
    return text_hashes(text, shard_index.key_starts)


def text_hashes(text: npt.NDArray[np.uint8], starts: npt.NDArray[np.integer]) -> WordArray:
    """Return the hashes of consecutive stretches of a text, one byte apart.

    Args:
        text: Bytes, shape ``(num_bytes,)``.
        starts: Where each stretch begins, ascending, and where the next one would begin; shape
            ``(num_stretches + 1,)``.
    """
    starts = starts.astype(np.int64)
    hashes = np.zeros(len(starts) - 1, np.uint64)
    first = 0
    while first < len(hashes):
        # As many as fit into a block, but at least one, however long.
        limit = starts[first] + _BLOCK_NBYTES
        stop = max(int(np.searchsorted(starts, limit, "right")) - 1, first + 1)
        edges = starts[first : stop + 1]
        _hash_block(text[edges[0] : edges[-1] - 1], edges - edges[0], hashes[first:stop])
        first = stop
    return hashes


def _hash_block(text: npt.NDArray[np.uint8], starts: IntArray, out: WordArray) -> None:
    size = 1 << len(text).bit_length()
    sums = np.zeros(len(text) + 1, np.uint64)
    np.multiply(text, _powers(_BASE, size)[: len(text)], out=sums[1:])
    np.cumsum(sums, out=sums)
    begins, ends = starts[:-1], starts[1:] - 1
    np.subtract(sums[ends], sums[begins], out=out)
    out *= _powers(_INVERSE, size)[begins]


@lru_cache(maxsize=4)  # for two sizes: shards of a dataset have similar lengths
def _powers(base: int, size: int) -> WordArray:
    """Return the powers of a number from 0 on, modulo 2**64."""
    powers = np.full(size, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)
