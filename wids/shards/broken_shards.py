"""Note which shards are broken: missing, incomplete, no tar, or not what the spec says.

Each is noted once in all processes of a dataset, with one warning. It is not opened again: a
download that fails would be repeated for each of its samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from wids.errors import (
    Line,
    MismatchError,
    NotFoundError,
    ShardFormatError,
    WidsError,
    user_line,
    warn,
)
from wids.shards.specs.model import ShardSpec
from wids.storage.arrays import IntArray
from wids.storage.shared_numbers import SharedArray
from wids.storage.transport import urls
from wids.storage.transport.stream import PastEndError


class BrokenShards:
    """The broken shards of a dataset. None is noted before `begin` is called.

    Forked and spawned processes share them; another pickle is a copy. A server that is away breaks
    no shard: its errors are only raised.

    Args:
        shards: The shards of the dataset.
    """

    def __init__(self, shards: Sequence[ShardSpec]) -> None:
        self._shards = shards
        self._flags: SharedArray | None = None
        self._line: Line | None = None
        self._errors: dict[int, tuple[type[WidsError], str]] = {}

    @property
    def are_noted(self) -> bool:
        """Whether shards are noted: some reader passes over broken ones."""
        return self._flags is not None

    def begin(self) -> None:
        """Note broken shards from now on; call it before processes are started."""
        if self._flags is None:
            self._flags = SharedArray("B", max(1, len(self._shards)))
            self._line = user_line()

    @property
    def numbers(self) -> IntArray:
        """The numbers of the shards that were noted."""
        flags = b"" if self._flags is None else self._flags.values
        numbers: IntArray = np.flatnonzero(np.frombuffer(flags, np.uint8))
        return numbers

    def share(self, edges: IntArray) -> float:
        """Return the share of samples in broken shards; those not counted are as long as others.

        Args:
            edges: Where shards begin, and the end of the last one.
        """
        counts, numbers = np.diff(edges).astype(float), self.numbers
        uncounted = numbers[counts[numbers] == 0]
        if len(uncounted):
            counts[uncounted] = counts.sum() / max(1, len(counts) - len(uncounted))
        return float(counts[numbers].sum() / max(1.0, counts.sum()))

    def first_error(self) -> WidsError:
        """Return the error of the first broken shard."""
        return self.error(int(self.numbers[0]))

    @contextmanager
    def watch(self, number: int) -> Iterator[None]:
        """Note the shard if the block raises an error that concerns all of it.

        Raises:
            WidsError: The error that was noted for this shard before.
        """
        if self._flags is None:
            yield
            return
        if self._flags.values[number]:
            raise self.error(number)
        try:
            yield
        except (NotFoundError, PastEndError, ShardFormatError, MismatchError) as error:
            self._note(self._flags.values, number, error)
            raise

    def error(self, number: int) -> WidsError:
        """Return the error of a shard that was noted."""
        elsewhere = (
            f"{urls.redact(self._shards[number].url)}: expected a shard that can be read; another "
            "process found that it cannot, and warned why"
        )
        kind, message = self._errors.get(number, (ShardFormatError, elsewhere))
        error = kind(message)
        error.is_of_shard = True
        return error

    def _note(self, flags: Any, number: int, error: WidsError) -> None:
        error.is_of_shard = True
        # Not the error itself, whose traceback keeps the frames of the reader.
        self._errors[number] = type(error), str(error)
        if flags[number]:
            return
        flags[number] = 1
        warn(
            f"{error}; on_error passes over this shard, and dataset.num_failed_shards counts such "
            "shards",
            self._line,
        )
