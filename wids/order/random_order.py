"""Compute a random order of any number of samples, without memory for each.

A Feistel network over the next power of four maps positions to indices and back; results beyond the
number of samples are passed through it again until they are inside. This order is for looking at
and rewriting datasets: that of epochs is in `wids.order.epoch_order`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from wids.storage.arrays import IntArray, WordArray

_NUM_ROUNDS: Final = 6
_MULTIPLIERS: Final = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
"""Those of MurmurHash3's last step, which spreads each bit over all others."""


class RandomOrder:
    """A random order of some samples. Equal seeds give equal orders on every machine.

    Args:
        num_samples: Their number, at most 2**62.
        seed: Any integer.

    Raises:
        ValueError: The seed is not an integer.
    """

    def __init__(self, num_samples: int, seed: int) -> None:
        try:
            seed = operator.index(seed)
        except TypeError:
            raise ValueError(f"seed: expected an integer, found {seed!r:.80}") from None
        self._num_samples = np.uint64(num_samples)
        self._shift = np.uint64(max((max(num_samples - 1, 1).bit_length() + 1) // 2, 1))
        self._mask = (np.uint64(1) << self._shift) - np.uint64(1)
        sequence = np.random.SeedSequence(abs(seed) * 2 + (seed < 0))
        self._keys = [np.uint64(word) for word in sequence.generate_state(_NUM_ROUNDS, np.uint64)]

    def indices(self, positions: Sequence[int] | WordArray) -> list[int]:
        """Return the samples at some positions of the order."""
        found: list[int] = self._walk(positions, self._forward).tolist()
        return found

    def between(self, start: int, stop: int) -> IntArray:
        """Return the samples at the positions ``start`` to ``stop``."""
        return self._walk(np.arange(start, stop, dtype=np.uint64), self._forward).astype(np.int64)

    def positions(self, indices: Sequence[int] | WordArray) -> IntArray:
        """Return where samples are in the order."""
        return self._walk(indices, self._backward).astype(np.int64)

    def order_of(self, indices: IntArray) -> npt.NDArray[np.intp]:
        """Return the places of some samples among these, in the order."""
        return np.argsort(self.positions(indices.astype(np.uint64)), kind="stable")

    def _walk(
        self, start: Sequence[int] | WordArray, step: Callable[[WordArray], WordArray]
    ) -> WordArray:
        values = step(np.asarray(start, np.uint64))
        while (outside := values >= self._num_samples).any():
            values[outside] = step(values[outside])
        return values

    def _forward(self, values: WordArray) -> WordArray:
        left, right = values >> self._shift, values & self._mask
        for key in self._keys:
            left, right = right, left ^ self._mixed(right, key)
        result: WordArray = (left << self._shift) | right
        return result

    def _backward(self, values: WordArray) -> WordArray:
        left, right = values >> self._shift, values & self._mask
        for key in reversed(self._keys):
            left, right = right ^ self._mixed(left, key), left
        result: WordArray = (left << self._shift) | right
        return result

    def _mixed(self, values: WordArray, key: np.uint64) -> WordArray:
        mixed = values ^ key
        for multiplier in _MULTIPLIERS:
            mixed = mixed ^ (mixed >> np.uint64(33))
            mixed = mixed * multiplier  # modulo 2**64, as arrays multiply
        result: WordArray = (mixed ^ (mixed >> np.uint64(33))) & self._mask
        return result
