"""Hold the ascending positions of a large view in bits or in runs, instead of one by one.

A `PositionSet` is a sequence of integers. It finds the positions at many indices at once, and how
many positions lie below others, which is all that reading and sampling need.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np
import numpy.typing as npt

from wids.storage.arrays import IntArray

if TYPE_CHECKING:
    from typing_extensions import Self

Bytes = npt.NDArray[np.uint8]

BLOCK_LENGTH: Final = 1 << 17
"""Positions that are computed at a time."""

_BLOCK_NBITS: Final = 1024
"""Bits between two numbers of the directory: a sixteenth of the bits in all."""
_BLOCK_NBYTES: Final = _BLOCK_NBITS // 8
_NUM_GATHERED: Final = 1 << 12
_NBITS_DECODED: Final = 512
"""For so many bits each index, decoding all bits between the indices is faster than gathering."""

_BYTES: Final = np.arange(256, dtype=np.uint8)[:, None]
_BITS: Final = np.unpackbits(_BYTES, axis=1, bitorder="little")
_COUNTS: Final = _BITS.sum(axis=1, dtype=np.uint8)
_PLACES: Final = np.argsort(1 - _BITS, axis=1, kind="stable").astype(np.uint8)
"""The places of the bits that are set in a byte, ascending; then the other places."""


class PositionSet:
    """Ascending positions, each once.

    A slice without a step shares what this one holds.

    Args:
        count: Number of positions.
        offset: Is added to each of those that are held.
    """

    is_ascending: Final = True

    def __init__(self, count: int, offset: int = 0) -> None:
        self._first, self._count, self._offset = 0, count, offset

    def _select(self, indices: IntArray) -> IntArray:
        """Return what is held at indices, before the offset is added."""
        raise NotImplementedError

    def _rank(self, positions: IntArray) -> IntArray:
        """Return how many of all that are held lie below each of some places."""
        raise NotImplementedError

    def shifted(self, offset: int) -> Self:
        """Return the same positions, each increased by a number."""
        return self._copied(_offset=self._offset + offset)

    def _copied(self, **values: Any) -> Self:
        part = type(self).__new__(type(self))  # `copy` would go through the pickle
        vars(part).update({**vars(self), **values})
        return part

    def at(self, indices: IntArray) -> IntArray:
        """Return the positions at indices, which are in range and not negative."""
        return self._select(indices + self._first) + self._offset

    def count_below(self, positions: npt.ArrayLike) -> IntArray:
        """Return how many of these lie below each of some positions."""
        found = self._rank(np.atleast_1d(np.asarray(positions, np.int64)) - self._offset)
        below: IntArray = np.clip(found - self._first, 0, self._count)
        return below

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> PositionSet | IntArray: ...
    def __getitem__(self, index: Any) -> int | PositionSet | IntArray:
        if isinstance(index, slice):
            chosen = range(self._count)[index]
            if chosen.step != 1:
                return self.at(np.arange(chosen.start, chosen.stop, chosen.step))
            return self._copied(_first=self._first + chosen.start, _count=len(chosen))
        place = range(self._count)[operator.index(index)]
        return int(self.at(np.array([place]))[0])

    def blocks(self) -> Iterator[IntArray]:
        """Yield all positions, in arrays."""
        for start in range(0, self._count, BLOCK_LENGTH):
            yield self.at(np.arange(start, min(start + BLOCK_LENGTH, self._count)))

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(block.tolist() for block in self.blocks())

    def tolist(self) -> list[int]:
        """Return the positions as a list, as arrays do."""
        return list(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = np.empty(self._count, np.int64)
        at = 0
        for block in self.blocks():
            array[at : at + len(block)] = block
            at += len(block)
        return array if dtype is None else array.astype(dtype, copy=False)


class BitPositions(PositionSet):
    """Positions as a bit for each sample, with a directory of how many bits are set before.

    Args:
        bits: The bits in memory of `cleared`, the lowest of a byte first; they become this
            object's.
        offset: The position of the first bit.
    """

    def __init__(self, bits: Bytes, offset: int = 0) -> None:
        self._bits = bits
        self._rows = bits.reshape(-1, _BLOCK_NBYTES)
        self._ranks = np.zeros(len(self._rows) + 1, np.int64)
        for start in range(0, len(self._rows), _NUM_GATHERED):
            counts = _COUNTS[self._rows[start : start + _NUM_GATHERED]].sum(axis=1)
            self._ranks[start + 1 : start + 1 + len(counts)] = counts
        np.cumsum(self._ranks, out=self._ranks)
        super().__init__(int(self._ranks[-1]), offset)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._count:
            return _from_bits, (b"", self._offset)
        first, last = self[0] - self._offset, self[-1] - self._offset
        bits = self._bits[first // 8 : last // 8 + 1].copy()
        if self._count != self._ranks[-1]:  # bits of neighbours that are not in this slice
            bits[0] &= 0xFF << first % 8 & 0xFF
            bits[-1] &= 0xFF >> 7 - last % 8
        return _from_bits, (bits.tobytes(), self._offset + first // 8 * 8)

    def _select(self, indices: IntArray) -> IntArray:
        if not len(indices):
            return np.empty(0, np.int64)
        ends = np.array((indices.min(), indices.max()))
        first, last = (np.searchsorted(self._ranks, ends, side="right") - 1).tolist()
        num_bits = (last + 1 - first) * _BLOCK_NBITS
        if num_bits <= max(2 * _BLOCK_NBITS, _NBITS_DECODED * len(indices)):
            near = self._bits[first * _BLOCK_NBYTES : (last + 1) * _BLOCK_NBYTES]
            members = np.flatnonzero(np.unpackbits(near, bitorder="little"))
            chosen: IntArray = members[indices - self._ranks[first]] + first * _BLOCK_NBITS
            return chosen
        return _in_parts(self._gathered, indices)

    def _gathered(self, indices: IntArray) -> IntArray:
        block = np.searchsorted(self._ranks, indices, side="right") - 1
        rest = indices - self._ranks[block]
        rows = self._rows[block]
        ends = np.cumsum(_COUNTS[rows], axis=1, dtype=np.uint16)
        byte = (ends <= rest[:, None]).sum(axis=1)
        each = np.arange(len(indices))
        rest -= np.where(byte, ends[each, byte - 1], 0)
        place: IntArray = block * _BLOCK_NBITS + byte * 8 + _PLACES[rows[each, byte], rest]
        return place

    def _rank(self, positions: IntArray) -> IntArray:
        return _in_parts(self._counted, np.clip(positions, 0, len(self._bits) * 8))

    def _counted(self, places: IntArray) -> IntArray:
        block, bit = np.divmod(places, _BLOCK_NBITS)
        # A place after the last bit begins a block that does not exist.
        rows = self._rows[np.minimum(block, max(len(self._rows) - 1, 0))] if len(self._rows) else 0
        byte, bit = np.divmod(bit, 8)
        mask = (1 << np.clip((byte * 8 + bit)[:, None] - np.arange(0, _BLOCK_NBITS, 8), 0, 8)) - 1
        below: IntArray = _COUNTS[rows & mask].sum(axis=1, dtype=np.int64)
        return self._ranks[block] + below


class RunPositions(PositionSet):
    """Positions as runs of neighbours.

    Args:
        starts: The first position of each run, ascending.
        lengths: The length of each run, shape as ``starts``.
    """

    def __init__(self, starts: IntArray, lengths: IntArray) -> None:
        self._starts, self._lengths = starts, lengths
        self._ends = np.cumsum(lengths)
        super().__init__(int(lengths.sum()))

    def _select(self, indices: IntArray) -> IntArray:
        run = np.searchsorted(self._ends, indices, side="right")
        chosen: IntArray = self._starts[run] + indices - (self._ends - self._lengths)[run]
        return chosen

    def _rank(self, positions: IntArray) -> IntArray:
        if not self._count:
            return np.zeros(len(positions), np.int64)
        run = np.searchsorted(self._starts, positions, side="right") - 1
        inside = np.minimum(positions - self._starts[run], self._lengths[run])
        return np.where(run < 0, 0, (self._ends - self._lengths)[run] + inside)


def is_sparse(count: int, span: int) -> bool:
    """Whether an array of positions is smaller than a bit for each sample, or small anyway."""
    return count <= BLOCK_LENGTH or count * 64 <= span


def cleared(num_bits: int) -> Bytes:
    """Return memory for so many bits, in whole blocks, so that all blocks are read alike."""
    return np.zeros(-(-num_bits // _BLOCK_NBITS) * _BLOCK_NBYTES, np.uint8)


def of_mask(mask: npt.NDArray[np.bool_]) -> BitPositions:
    """Return where a mask is true."""
    bits = cleared(len(mask))
    for start in range(0, len(mask), BLOCK_LENGTH):
        packed = np.packbits(mask[start : start + BLOCK_LENGTH], bitorder="little")
        bits[start // 8 : start // 8 + len(packed)] = packed
    return BitPositions(bits)


def in_bits(blocks: Iterable[IntArray], first: int, last: int) -> BitPositions:
    """Return positions that come in ascending order, each once.

    Args:
        blocks: The positions, in arrays.
        first: The first one.
        last: The last one.
    """
    bits = cleared(last - first + 1)
    for block in blocks:
        byte, bit = np.divmod(block - first, 8)
        starts = np.flatnonzero(np.diff(byte, prepend=-1))
        bits[byte[starts]] |= np.bitwise_or.reduceat((1 << bit).astype(np.uint8), starts)
    return BitPositions(bits, first)


def _in_parts(function: Any, values: IntArray) -> IntArray:
    """Return what a function returns for each value, for some at a time to bound its memory."""
    if len(values) <= _NUM_GATHERED:
        return function(values)  # type: ignore[no-any-return]
    cuts = range(0, len(values), _NUM_GATHERED)
    return np.concatenate([function(values[cut : cut + _NUM_GATHERED]) for cut in cuts])


def narrowed(numbers: IntArray) -> npt.NDArray[Any]:
    """Return non-negative numbers in the narrowest type that holds them."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _from_bits(bits: bytes, offset: int) -> BitPositions:
    memory = cleared(len(bits) * 8)
    memory[: len(bits)] = np.frombuffer(bits, np.uint8)
    return BitPositions(memory, offset)
