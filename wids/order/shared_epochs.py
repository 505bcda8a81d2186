"""The epoch of a sampler, shared by the workers of a DataLoader and the process that started them.

Persistent workers have copies of the sampler. They see here the epoch that the main process sets,
and a pass is complete when each of them has read its share.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any, Final

import numpy as np
from torch.utils.data import get_worker_info

from wids.errors import StateError
from wids.order.history import History, Part, Place
from wids.order.passes import Epochs
from wids.storage.array_types import IntArray
from wids.storage.shared_number import SharedArray

_NUM_SLOTS: Final = 1024
"""Maximum number of workers of one loader. The array is made before their number is known."""

_MOST_PARTS: Final = 1024
"""Maximum number of times that the ranks of a stream may change in an epoch."""

# The parts of the shared array: single numbers, three for each part of the history of the restored
# epoch, and rows that have a number for each worker.
_FIXED, _BEGUN, _START, _IS_REST, _RESTORED, _POSITION, _PARTS, _AFTER, _HISTORY = range(9)
_SLOTS = _HISTORY + 3 * _MOST_PARTS
_PASSES, _EPOCHS, _OF_STATE, _COMPLETE, _SHARES, _NUM_ROWS = range(6)


class SharedEpochs(Epochs):
    """The epoch of a sampler whose passes are read by workers.

    Each worker notes the passes that it has completed. The slowest one counts, so a pass that a
    program left early is not complete, even if some workers have read ahead to its end.

    Args:
        epochs: The epoch to start with.
        place: Where its next pass starts.
    """

    def __init__(self, epochs: Epochs, place: Place) -> None:
        self._array = SharedArray("q", _SLOTS + _NUM_ROWS * _NUM_SLOTS)
        vars(self).update(
            {k: v for k, v in vars(epochs).items() if k not in ("number", "is_fixed")}
        )
        self.number, self.is_fixed = epochs.number, epochs.is_fixed
        self.begin(Place(epochs.number))
        self._note_place(place)

    def restore(self, number: int, *, is_fixed: bool, place: Place | None = None) -> None:
        """Restore the epoch of a state and its place; None if only the epoch is set."""
        super().restore(number, is_fixed=is_fixed)
        # A restored position counts only in its own epoch, also in persistent workers (ORDER-11).
        if place is not None or number != self._shared[_RESTORED]:
            self._note_place(place or Place(number))

    def _note_place(self, place: Place) -> None:
        if len(place.history) > _MOST_PARTS:
            raise StateError(
                f"the state has {len(place.history):,} changes of the number of ranks in one "
                f"epoch, and a stream continues after at most {_MOST_PARTS:,}; pass the dataset "
                "and the sampler to the loader instead"
            )
        numbers = [number for part in place.history for number in astuple(part)]
        self._shared[_HISTORY : _HISTORY + len(numbers)] = numbers
        self._shared[_RESTORED], self._shared[_POSITION] = place.epoch, place.position
        self._shared[_PARTS] = len(place.history)
        self._shared[_AFTER] = self.num_passes

    def place(self, number: int) -> Place:
        """Return where a pass of an epoch starts: its start, or a restored place, for one pass."""
        restored, position, _, after = self._shared[_RESTORED : _AFTER + 1]
        if (restored, after) != (number, self.num_passes):
            return Place(number)
        return Place(number, position, self._history())

    def _history(self) -> History:
        numbers = self._shared[_HISTORY : _HISTORY + 3 * self._shared[_PARTS]]
        return tuple(Part(*numbers[at : at + 3]) for at in range(0, len(numbers), 3))

    @property
    def _slots(self) -> IntArray:
        """A row for each number that workers note, with a column for each of them."""
        slots = np.frombuffer(self._shared, np.int64, offset=8 * _SLOTS)
        return slots.reshape(_NUM_ROWS, _NUM_SLOTS)

    @property
    def _own(self) -> IntArray:
        """The columns of this worker; workers divide those that are left over."""
        number, num_workers = worker()
        return self._slots[:, number::num_workers]

    @property
    def number(self) -> int:
        """The epoch of the next pass."""
        return int(self._slots[_EPOCHS].min())

    @number.setter
    def number(self, number: int) -> None:
        # A worker sets only its own slots: when workers are restored, some may have ended theirs.
        self._own[_EPOCHS] = number

    @property
    def is_fixed(self) -> bool:
        """Whether ``set_epoch`` was called, so that the epoch does not advance by itself."""
        return bool(self._shared[_FIXED])

    @is_fixed.setter
    def is_fixed(self, is_fixed: bool) -> None:
        self._shared[_FIXED] = is_fixed

    @property
    def num_passes(self) -> int:
        """Number of passes that all workers have completed."""
        return int(self._slots[_PASSES].min())

    @property
    def own_number(self) -> int:
        """The epoch of the next pass of this worker, which may have completed its share."""
        return int(self._own[_EPOCHS, 0])

    @property
    def begun(self) -> Place:
        """Where the latest pass that began started."""
        history = self._history() if self._shared[_IS_REST] else ()
        return Place(self._shared[_BEGUN], self._shared[_START], history)

    def begin(self, place: Place) -> None:
        """Note that a pass begins. All workers note the same."""
        self._shared[_BEGUN], self._shared[_START] = place.epoch, place.position
        self._shared[_IS_REST] = bool(place.history)  # which is that of the restored epoch

    def complete(self, number: int) -> None:
        """Note that this worker has read its share of an epoch to the end."""
        self._own[_PASSES] += 1
        if not self.is_fixed:
            self._own[_EPOCHS] = number + 1

    def note_restored(
        self, number: int, next_number: int, next_share: int, *, is_complete: bool
    ) -> None:
        """Note what a worker was restored from. All are restored before the first of them reads.

        Args:
            number: The epoch of its state.
            next_number: The epoch of its next pass.
            next_share: Its share of the pass after that of its state.
            is_complete: Whether nothing is left of its share.
        """
        own = self._own
        own[_OF_STATE], own[_EPOCHS] = number, next_number
        own[_SHARES], own[_COMPLETE] = next_share, is_complete

    @property
    def latest_restored(self) -> int:
        """The latest epoch of the states that workers were restored from."""
        return int(self._slots[_OF_STATE].max())

    def were_restored_complete(self, num_batches: int) -> bool:
        """Return whether nothing was left of the latest of these epochs for any worker.

        Args:
            num_batches: Number of batches in it. Workers whose state is that of an earlier epoch
                have read none of theirs.
        """
        slots = self._slots
        is_latest = slots[_OF_STATE] == self.latest_restored
        return bool(np.where(is_latest, slots[_COMPLETE], slots[_SHARES] >= num_batches).all())

    @property
    def _shared(self) -> Any:
        return self._array.values


def worker() -> tuple[int, int]:
    """Return the number of this worker and of all workers; ``(0, 1)`` in the main process.

    Raises:
        ValueError: The loader has more workers than can share an epoch.
    """
    info = get_worker_info()
    if info is None:
        return 0, 1
    if info.num_workers > _NUM_SLOTS:
        raise ValueError(
            f"num_workers: expected at most {_NUM_SLOTS:,} workers for a stream, found "
            f"{info.num_workers:,}; pass the dataset and the sampler to the loader instead"
        )
    return info.id, info.num_workers
