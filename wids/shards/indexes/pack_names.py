"""Look up the names in the directory of a pack, without an object for each of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wids.shards.tars.mapped_file import FileBytes
from wids.storage.array_types import IntArray

_STEP = 256
_PART_NBYTES = 1 << 20


class PackNames:
    """Names that are separated by NULs.

    Args:
        data: The bytes.
    """

    def __init__(self, data: FileBytes | memoryview) -> None:
        self._data = memoryview(data)
        starts, length = [np.zeros(1, np.int64)], 1
        for at in range(0, len(self._data), _PART_NBYTES):
            part: npt.NDArray[np.uint8] = np.frombuffer(self._data[at : at + _PART_NBYTES], "u1")
            ends = np.flatnonzero(part == 0)
            # Where each name of a number that the step divides begins.
            starts.append(ends[-length % _STEP :: _STEP] + at + 1)
            length += len(ends)
        self._length = length
        self._starts: IntArray = np.concatenate(starts)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> bytes:
        block, place = divmod(number, _STEP)
        start = int(self._starts[block])
        stop = len(self._data)
        if block + 1 < len(self._starts):
            stop = int(self._starts[block + 1]) - 1
        return bytes(self._data[start:stop]).split(b"\0", place + 1)[place]
