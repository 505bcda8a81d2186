"""Keep values for the memory behind a worker's tensors, and change how that memory is sent.

torch calls it a *storage*: several tensors may share one, and torch may move a storage to other
memory while it lives.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    import torch

Value = TypeVar("Value")
_MIN_SWEEP: Final = 128


class StorageTable(Generic[Value]):
    """Values of storages, kept at least as long as any tensor or array uses them.

    Values of storages that are gone are removed when the size of the table has doubled.
    """

    def __init__(self) -> None:
        self._values: dict[Any, Value] = {}
        self._sweep_at = _MIN_SWEEP

    def __len__(self) -> int:
        return len(self._values)

    def __setitem__(self, storage: torch.UntypedStorage, value: Value) -> None:
        if len(self._values) >= self._sweep_at:
            self._sweep_at = max(_MIN_SWEEP, 2 * len(self.present()))
        self._values[_reference(storage)] = value

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        return _reference(storage) in self._values

    def pop(self, storage: torch.UntypedStorage) -> Value | None:
        """Return the value of a storage and forget it; None if it has none."""
        return self._values.pop(_reference(storage), None)

    def present(self) -> list[Value]:
        """Forget the values of storages that are gone, and return the others."""
        # Other threads may change the table meanwhile.
        for reference in list(self._values):
            if reference.expired():
                self._values.pop(reference, None)
        return list(self._values.values())


def _reference(storage: torch.UntypedStorage) -> Any:
    """Return a key that is equal for the same storage, but not for a later one at its address."""
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


Reduced: TypeAlias = str | tuple[Any, ...]
"""What pickle takes: a function and its arguments, with which the receiver makes the storage."""


def send_storages_by(
    reduce: Callable[[torch.UntypedStorage, Callable[[torch.UntypedStorage], Reduced]], Reduced],
) -> bool:
    """Make queues and pipes of this process call a function to send a storage.

    Args:
        reduce: Takes the storage, and the function that was called before.

    Returns:
        Whether torch sends storages in a way that can be changed.
    """
    from multiprocessing.reduction import ForkingPickler

    import torch

    before = ForkingPickler(io.BytesIO()).dispatch_table.get(torch.UntypedStorage)
    if before is None:
        return False
    ForkingPickler.register(torch.UntypedStorage, lambda storage: reduce(storage, before))
    return True
