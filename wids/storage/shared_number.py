"""A number that the workers of a DataLoader share with the process that started them."""

from __future__ import annotations

import os
import threading
from typing import Any, Final

_NUM_SLOTS: Final = 509
"""A prime, and more than the workers of a machine: neighbouring process ids get their own slots."""


class SharedNumber:
    """A number that processes add to, forked and spawned ones alike.

    Each process adds in its own slot, so processes need no lock. A copy that is pickled for another
    machine, or by hand, starts from the current value and is independent.

    Args:
        value: The first value.

    Example:
        >>> number = SharedNumber(2)
        >>> number.add(3)
        >>> number.value
        5
    """

    def __init__(self, value: int = 0) -> None:
        from multiprocessing.sharedctypes import RawArray  # 9 ms, and few datasets share a number

        self._slots = RawArray("q", _NUM_SLOTS)
        self._slots[0] = value

    @property
    def value(self) -> int:
        """The sum of what all processes have added to the first value."""
        return sum(self._slots)

    def add(self, count: int) -> None:
        """Add to the number."""
        with _writing:
            self._slots[os.getpid() % _NUM_SLOTS] += count

    def set(self, value: int) -> None:
        """Set the number, in all processes. What others add at this moment may be lost."""
        with _writing:
            self._slots[:] = [value] + [0] * (_NUM_SLOTS - 1)

    def __reduce__(self) -> tuple[Any, ...]:
        if not passes_to_process():
            return SharedNumber, (self.value,)
        return _from_slots, (self._slots,)


def passes_to_process() -> bool:
    """Return whether what is pickled now goes to a process that is being started.

    Only then can multiprocessing pass shared memory on; any other pickle is a copy (decision 0086).
    """
    from multiprocessing import context

    return context.get_spawning_popen() is not None


_writing: Final = threading.RLock()
"""Held by the thread that writes into the slot of this process."""

if hasattr(os, "register_at_fork"):
    # A child would otherwise inherit the lock of a thread that it does not have.
    os.register_at_fork(
        before=_writing.acquire,
        after_in_parent=_writing.release,
        after_in_child=_writing.release,
    )


def _from_slots(slots: Any) -> SharedNumber:
    number = SharedNumber.__new__(SharedNumber)
    number._slots = slots  # noqa: SLF001 - one of this class
    return number
