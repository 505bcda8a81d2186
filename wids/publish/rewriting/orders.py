"""Compute the positions of any range of samples, in the order of a view or a random one.

A shuffled order is computed where it is needed: the driver holds none of it, and each task has the
seed. Reads no sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wids.order.shuffle import Shuffle
from wids.shards.positions import select_batch
from wids.storage.array_types import IntArray


@dataclass(frozen=True)
class Order:
    """The order in which the samples of a view are written.

    Attributes:
        view: The view.
        seed: Seed of a random order; None for that of the view.
    """

    view: Any
    seed: int | None = None

    def __len__(self) -> int:
        return len(self.view)

    def positions(self, start: int, stop: int) -> IntArray:
        """Return the positions of some samples in all shards."""
        return select_batch(self.view.positions, self.indices(start, stop))

    def indices(self, start: int, stop: int) -> IntArray:
        """Return the indices of some samples in the view."""
        if self.seed is None:
            return np.arange(start, stop)
        return Shuffle(len(self.view), self.seed).between(start, stop)


def order_of(view: Any, seed: int | None) -> Order:
    """Return the order of a view, or a random one."""
    if seed is None or isinstance(view.positions, range):
        return Order(view, seed)
    # Otherwise each task would have all positions of the view.
    return Order(view[Shuffle(len(view), seed).between(0, len(view))])


@dataclass(frozen=True)
class SomeSamples:
    """Samples ``start`` to ``stop`` of an order, for a worker that makes a view of them."""

    order: Order
    start: int
    stop: int

    def view(self) -> Any:
        """Return a view of them."""
        order = self.order
        if order.seed is None:
            return order.view[self.start : self.stop]
        return order.view[order.indices(self.start, self.stop)]

    def __reduce__(self) -> tuple[Any, ...]:
        if self.order.seed is None:  # without the positions of other samples
            return SomeSamples, (Order(self.view()), 0, self.stop - self.start)
        return SomeSamples, (self.order, self.start, self.stop)
