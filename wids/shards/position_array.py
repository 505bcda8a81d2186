"""Pickle the positions of a view in few bytes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from wids.shards.position_sets import narrowed
from wids.storage.array_types import IntArray


# Not `npt.NDArray[np.int64]`: with numpy 2.5 that is a typing alias, not a class.
class PositionArray(np.ndarray[Any, np.dtype[np.int64]]):
    """The positions of a view that are not evenly spaced, shape ``(num_samples,)``.

    An int64 array with a small pickle: each spawned DataLoader worker receives the view by pickle.
    """

    @cached_property
    def is_ascending(self) -> bool:
        """Whether no position is less than the previous one."""
        return bool((self[1:] >= self[:-1]).all())

    @cached_property
    def order(self) -> IntArray:
        """The indices by ascending position; of equal positions the first index first."""
        return np.argsort(np.asarray(self), kind="stable")

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, _packed(np.asarray(self), is_ascending=self.is_ascending)


def _packed(positions: IntArray, *, is_ascending: bool) -> tuple[int, int, str, bytes]:
    """Return the arguments of `_unpacked`: a bitmap, steps, or numbers of the narrowest type."""
    least, count = int(positions.min(initial=positions[0] if len(positions) else 0)), len(positions)
    numbers = positions - least
    if not is_ascending:
        form = "numbers"
    else:
        steps = np.diff(numbers, prepend=0)
        is_strict = count < 2 or bool(steps[1:].min() > 0)
        span = int(numbers[-1]) + 1 if count else 0
        narrow = narrowed(steps)
        if is_strict and span / 8 < narrow.nbytes:
            bits = np.zeros(span, bool)
            bits[numbers] = True
            return least, span, "bits", np.packbits(bits).tobytes()
        form, numbers = "steps", steps
    narrow = narrowed(numbers)
    return least, count, f"{form} {narrow.dtype.str}", narrow.tobytes()


def _unpacked(least: int, count: int, form: str, data: bytes) -> PositionArray:
    if form == "bits":
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count)
        positions = np.flatnonzero(bits)
    else:
        kind, dtype = form.split(" ")
        positions = np.frombuffer(data, dtype).astype(np.int64)
        if kind == "steps":
            positions = np.cumsum(positions)
    return (positions + least).view(PositionArray)
