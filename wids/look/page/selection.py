"""Order the samples that a page shows: those that were found, in the order of a seed or ascending.

With a seed the order is that of all samples, without those that were not found: a further search
condition does not change it. Nothing is read here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wids.order.shuffle import Shuffle


class Place(NamedTuple):
    """Where a sample is in a selection.

    Attributes:
        position: Its position; None if it is not in the selection.
        previous, next: The samples before and after it, or None.
    """

    position: int | None
    previous: int | None
    next: int | None


@dataclass(frozen=True)
class Selection:
    """Some samples in some order.

    Attributes:
        found: Their indices, ascending; None for all samples.
        num_samples: The number of all samples.
        seed: None for ascending order.
    """

    found: Sequence[int] | None
    num_samples: int
    seed: int | None = None

    def __len__(self) -> int:
        return self.num_samples if self.found is None else len(self.found)

    def page(self, start: int, count: int) -> list[int]:
        """Return the samples from a position on."""
        positions = range(len(self))[start : start + count]
        if self._shuffle is None:
            return (
                list(positions) if self.found is None else list(self.found[start : start + count])
            )
        if self.found is None:
            return self._shuffle.indices(positions)
        return [self.found[at] for at in self._order[start : start + count].tolist()]

    def place(self, index: int) -> Place:
        """Return where a sample is, and its neighbours."""
        position = self._position(index)
        if position is None or self.page(position, 1) != [index]:
            return Place(None, None, None)
        before = self.page(position - 1, 1) if position else []
        after = self.page(position + 1, 1)
        return Place(position, before[0] if before else None, after[0] if after else None)

    def _position(self, index: int) -> int | None:
        if self.found is None:
            return index if self._shuffle is None else int(self._shuffle.positions([index])[0])
        at = bisect_left(self.found, index)
        if at == len(self.found) or self._shuffle is None:
            return None if at == len(self.found) else at
        return int(np.flatnonzero(self._order == at)[0])

    @cached_property
    def _shuffle(self) -> Shuffle | None:
        return None if self.seed is None else Shuffle(self.num_samples, self.seed)

    @cached_property
    def _order(self) -> npt.NDArray[np.intp]:
        """Positions in ``found``, in the order of the page."""
        assert self._shuffle is not None  # noqa: S101 - for the type checker
        found = np.asarray(self.found, np.uint64)
        return np.argsort(self._shuffle.positions(found), kind="stable")
