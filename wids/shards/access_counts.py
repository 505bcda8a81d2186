"""Count how often shards are asked for and opened, in all processes that share a dataset."""

from __future__ import annotations

from typing import Any

from wids.storage.shared_numbers import SharedRows
from wids.storage.stages import this_process


class AccessCounts:
    """How often shards were asked for, and had to be opened.

    It lets one process notice when another begins to read. A process that was started by another
    one adds to the shared numbers at each access; the others add theirs now and then, since a hit
    in them is to change one number of their own.

    Attributes:
        num_here: How often this process has asked for a shard. Readers add to it.
        rows: What the processes share.
    """

    def __init__(self) -> None:
        self.num_here = 0
        self.rows = SharedRows(0, 0)
        self._num_published = 0

    def note_opening(self, number: int) -> None:
        """Note that a shard is being opened."""
        self._publish()
        self.rows.row[1] += 1
        self.rows.common[0] = number

    def sums(self) -> tuple[int, int]:
        """Return how often shards were asked for, and opened, in all these processes."""
        self._publish()
        num_accesses, num_openings = map(int, self.rows.sums())
        return num_accesses, num_openings

    @property
    def last_opened(self) -> int:
        """The shard that was opened last, or is being opened, in all these processes."""
        return int(self.rows.common[0])

    def _publish(self) -> None:
        """Add what this process has not added at each access."""
        if not this_process.is_child:
            self.rows.row[0] += self.num_here - self._num_published
            self._num_published = self.num_here

    def __getstate__(self) -> dict[str, Any]:
        self._publish()
        return {"num_here": 0, "rows": self.rows, "_num_published": 0}
