"""Cut shards into chunks, and permute them alike on every machine.

A chunk is a range of indices. Each chunk has its own generator, so any position in a sequence of
chunks is computed without the preceding ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.storage.array_types import BoolArray, IntArray, WordArray

_IN_CHUNK: Final = 1
"""The second number of a generator's key, other than that of the order of chunks."""


def chunk_edges(lengths: IntArray, start: int, stop: int, chunksize: int | None) -> IntArray:
    """Cut a range of indices into chunks that follow the shards.

    A shard (or the part of it inside the range) that is longer than a chunk is cut into the fewest
    pieces possible, with lengths that differ by at most one. Neighbouring shards that are shorter
    are joined while they fit into one chunk.

    Returns:
        Ascending edges, shape ``(num_chunks + 1,)``: chunk ``c`` is ``edges[c]:edges[c + 1]``.
    """
    ends = np.cumsum(lengths)
    inside = ends[(ends > start) & (ends < stop)]
    edges = np.unique(np.concatenate(([start], inside, [stop]))).astype(np.int64)
    if chunksize is None or len(edges) < 2:
        return edges
    shard_lengths = np.diff(edges)
    num_pieces = -(-shard_lengths // chunksize)
    # Piece k of n is length * k // n to length * (k + 1) // n of its shard.
    shard = np.repeat(np.arange(len(shard_lengths)), num_pieces)
    k = np.arange(len(shard)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
    # Quotient first: the product length * k may overflow 64 bits.
    each, rest = np.divmod(shard_lengths[shard], num_pieces[shard])
    starts = edges[shard] + each * k + rest * k // num_pieces[shard]
    return _with_short_joined(np.append(starts, stop), num_pieces[shard] == 1, chunksize)


def touched(edges: IntArray, lengths: IntArray) -> tuple[IntArray, IntArray]:
    """Return the first shard that each chunk touches, and the one after its last."""
    ends = np.cumsum(lengths)
    first: IntArray = np.searchsorted(ends, edges[:-1], side="right")
    last: IntArray = np.searchsorted(ends, edges[1:] - 1, side="right")
    return first, last + 1


def permutation(length: int, seed: int, *key: int) -> IntArray:
    """Return a permutation of ``0..length-1`` that depends only on seed and key.

    It sorts random 64-bit words of PCG64 that have the position in their low bits. The words are
    distinct, so every machine and every release of numpy sorts them alike. (numpy guarantees the
    streams of its bit generators, but not the results of ``shuffle``.)
    """
    words = next(sorting_words(length, length, seed, *key))
    # In place and not stable, which is safe for distinct words (decision 0001).
    words.sort()
    order: IntArray = (words & _low_bits(length)).astype(np.int64)
    return order


def sorting_words(length: int, block_length: int, seed: int, *key: int) -> Iterator[WordArray]:
    """Yield the words by which `permutation` sorts, in arrays of a length."""
    # spawn_key, not seed + epoch: no two keys share a stream, whatever their sum.
    generator = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key))
    low = _low_bits(length)
    for start in range(0, max(length, 1), max(block_length, 1)):
        words = generator.random_raw(min(block_length, length - start))
        # ORDER-6: the position in the low bits makes the words distinct.
        yield (words & ~low) | np.arange(start, start + len(words), dtype=np.uint64)


def _low_bits(length: int) -> np.uint64:
    bits: np.uint64 = np.uint64((1 << max(length - 1, 0).bit_length()) - 1)
    return bits


@dataclass(frozen=True, eq=False)
class Chunks:
    """A sequence of chunks in the order in which they are read.

    Attributes:
        starts: First index of each chunk.
        ends: Position in the sequence after each chunk: its cumulative lengths.
        numbers: Number of each chunk in dataset order, which is part of the key of its generator.
        seed: Seed of the order.
        key: Epoch and run, which the keys of all generators share.
        shuffle: Whether indices are shuffled inside their chunk.
    """

    starts: IntArray
    ends: IntArray
    numbers: IntArray
    seed: int
    key: tuple[int, int]
    shuffle: bool

    def blocks(self, start: int, stop: int) -> Iterator[IntArray]:
        """Yield the indices at positions ``start`` to ``stop`` of the sequence, chunk by chunk."""
        epoch, run = self.key
        # `right`: a position that equals the end of a chunk belongs to the next one.
        at = int(np.searchsorted(self.ends, start, side="right"))
        while start < stop:
            chunk_stop = int(self.ends[at])
            chunk_start = int(self.ends[at - 1]) if at else 0
            length = chunk_stop - chunk_start
            if self.shuffle:
                key = (epoch, _IN_CHUNK, run, int(self.numbers[at]))
                indices = self.starts[at] + permutation(length, self.seed, *key)
            else:
                indices = self.starts[at] + np.arange(length)
            yield indices[start - chunk_start : stop - chunk_start]
            start, at = chunk_stop, at + 1


def interleaved(runs: list[Iterator[npt.NDArray[Any]]]) -> Iterator[npt.NDArray[Any]]:
    """Yield the first item of each run, then the second of each that has one, and so on."""
    pending = [(next(run, None), run) for run in runs]
    while left := [(block, run) for block, run in pending if block is not None]:
        # Blocks of runs end at different positions, so the shortest decides how much is complete.
        width = min(len(block) for block, _ in left)
        yield np.stack([block[:width] for block, _ in left]).T.ravel()
        pending = [
            (block[width:] if len(block) > width else next(run, None), run) for block, run in left
        ]


def _with_short_joined(edges: IntArray, is_uncut: BoolArray, chunksize: int) -> IntArray:
    """Join neighbouring uncut shards, from the left, while they fit into one chunk."""
    # Checked by numpy first: most datasets have nothing to join, and the loop is slow for millions.
    if not (is_uncut[1:] & is_uncut[:-1] & (edges[2:] - edges[:-2] <= chunksize)).any():
        return edges
    positions, uncut = edges.tolist(), is_uncut.tolist()
    kept = [0]
    for at in range(1, len(uncut)):
        first = kept[-1]
        if not (uncut[at] and uncut[first] and positions[at + 1] - positions[first] <= chunksize):
            kept.append(at)
    return np.append(edges[kept], edges[-1])
