"""Compute what each rank reads of the rest of an epoch, after the number of ranks has changed.

The rest is a sequence like that of an epoch whose runs are dealt again: it is cut into runs, which
end like any others. No index is listed: a rank reads ranges of the order with which the epoch
began (ORDER-50, ORDER-51).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from wids.order.epoch_order import Settings, Slice, bounds_of, shuffled_chunks
from wids.order.history import History, Ranges, run_edges
from wids.storage.array_types import IntArray


@dataclass(frozen=True, eq=False)
class RestOfEpoch:
    """What is left of an epoch, cut into runs; it takes the place of the settings of a whole epoch.

    Attributes:
        whole: The settings of the epoch, with the runs with which it began.
        rest: Those of a range that is as long as the rest, with the runs of today.
        ranges: Positions of the rest in the order with which the epoch began.
    """

    whole: Settings
    rest: Settings
    ranges: Ranges

    @property
    def num_runs(self) -> int:
        """Number of runs that the rest is cut into."""
        return self.rest.num_runs

    def run_length(self, run: int) -> int:
        """Return the number of indices that a run yields."""
        return self.rest.run_length(run)

    def runs(self, seed: int, epoch: int, numbers: range) -> Iterator[Slice]:
        """Yield some of the runs."""
        left = _Remaining(self.whole, seed, epoch, self.ranges)
        return (Slice(left, *bounds_of(self.rest, number)) for number in numbers)


def rest_of_epoch(settings: Settings, history: History) -> RestOfEpoch:
    """Return what is left of an epoch after the parts of a history.

    Args:
        settings: The settings, with the runs into which the rest is cut.
        history: What was read; at least one part.
    """
    ranges, length = Ranges.whole(settings.num_indices), settings.num_indices
    for part in history:
        edges = run_edges(length, part.num_runs)
        # Only uneven runs have no turn in the last round: padded ones repeat an index there.
        lengths = np.diff(edges) if settings.ending == "uneven" else None
        ranges = ranges.after(edges, part.num_read(lengths))
        length = len(ranges)
    return RestOfEpoch(
        replace(settings, num_runs=history[0].num_runs),
        replace(settings, start=0, stop=length),
        ranges,
    )


@dataclass(frozen=True, eq=False)
class _Remaining:
    """The indices that are left, in order."""

    settings: Settings
    seed: int
    epoch: int
    ranges: Ranges

    def blocks(self, start: int, stop: int) -> Iterator[IntArray]:
        """Yield the indices at positions ``start`` to ``stop`` of the rest, chunk by chunk."""
        left = self.ranges.between(np.array([start]), np.array([stop]))
        settings = self.settings
        edges = run_edges(settings.num_indices, 1 if settings.redeal else settings.num_runs)
        latest, chunks = -1, None
        for first, last in zip(left.starts.tolist(), left.stops.tolist(), strict=True):
            at = first
            while at < last:
                number = int(np.searchsorted(edges, at, side="right")) - 1
                if chunks is None or number != latest:
                    bounds = (settings.start + int(edge) for edge in edges[number : number + 2])
                    chunks = shuffled_chunks(settings, self.seed, self.epoch, number, *bounds)
                    latest = number
                end, offset = min(last, int(edges[number + 1])), int(edges[number])
                yield from chunks.blocks(at - offset, end - offset)
                at = end
