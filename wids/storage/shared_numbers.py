"""Share numbers among the processes of a program: each adds to a row of its own, without a lock.

The numbers are private until a process is started, so programs without workers need no shared
memory.
"""

from __future__ import annotations

import os
import sys
import threading
from array import array
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakSet

from wids.storage import locks  # noqa: F401 - its hooks before a fork run after those below
from wids.storage.import_lock import hold_imports, release_imports

NUM_ROWS: Final = 509
"""A prime, and more than the workers of a machine: neighbouring process ids get their own rows."""

Counters: TypeAlias = "list[float] | memoryview[float]"

_SharedRows = TypeVar("_SharedRows", bound="SharedRows")


class SharedRows:
    """Numbers that processes add to, each in a row of its own, so that no process needs a lock.

    Processes that are forked, spawned or started by a server of forks share the rows. What a
    process has added stays when it ends. A copy that is pickled for another purpose, such as
    another machine, starts from the current sums and is independent.

    Args:
        first: The first values of the row.
        num_common: Length of `common`; None for as many as in a row.

    Attributes:
        row: What this process has added. Another thread may add at the same moment, so that one of
            the two is not counted. Look the attribute up each time: a fork replaces it.
        is_shared: Whether other processes can have rows by now.
        common: Numbers which all processes read and write, without a sum.
    """

    def __init__(self, *first: float, num_common: int | None = None) -> None:
        self.row: Counters = list(first)
        self.common: Counters = [0.0] * (len(first) if num_common is None else num_common)
        self._table: Any = None
        self.is_shared = False
        with writing:
            _alive.add(self)
        # A program that can have workers by now; the import takes 9 ms, which others save.
        if "torch" in sys.modules or "multiprocessing.sharedctypes" in sys.modules:
            self.reserve()

    def sums(self) -> list[float]:
        """Return the sum of each number over all processes."""
        if not self.is_shared:
            return list(self.row)
        first, width = len(self.common), len(self.row)
        return [sum(self._table[first + column :: width]) for column in range(width)]

    def row_at(self, number: int) -> Counters:
        """Return a row by its number, or by the id of the process that it is usually for."""
        if not self.is_shared:
            return self.row
        width = len(self.row)
        start = len(self.common) + width * (number % NUM_ROWS)
        return _doubles(self._table)[start : start + width]

    def reserve(self) -> None:
        """Make the memory that spawned processes can share; before they are sent anything.

        A pickler does not know memory that is made while it is at work.
        """
        from multiprocessing.sharedctypes import RawArray

        with writing:
            if self._table is None:
                self._table = RawArray("d", len(self.common) + len(self.row) * NUM_ROWS)

    def share(self) -> None:
        """Move the numbers to memory that processes which are started later can share."""
        self.reserve()
        with writing:
            if not self.is_shared:
                common, row = self.common, self.row
                self.attach(self._table)
                self.common[:], self.row[:] = _doubles(common), _doubles(row)

    def attach(self, table: Any) -> None:
        """Add to the rows of another instance, as wide as this one, from now on."""
        self._table, self.is_shared = table, True
        self.common = _doubles(table)[: len(self.common)]
        self.row = self.row_at(os.getpid())

    def leave(self, row: list[float]) -> None:
        """Have numbers of its own from now on, beginning with a row, and not those of others."""
        self._table, self.is_shared = None, False
        self.common, self.row = list(self.common), row

    def __reduce__(self) -> tuple[Any, ...]:
        if self._table is None or not passes_to_process():
            return type(self), tuple(self.sums())
        self.share()
        return _attached, (type(self), self._table, len(self.row), len(self.common))


class SharedNumber(SharedRows):
    """A number that processes and their threads add to; no addition is lost.

    Args:
        value: The first value.

    Example:
        >>> number = SharedNumber(2)
        >>> number.add(3)
        >>> number.value
        5
    """

    def __init__(self, value: float = 0) -> None:
        super().__init__(value, num_common=2)  # the first is for the owner of the number

    @property
    def value(self) -> int:
        """The sum of what all processes have added to the first value."""
        return int(self.sums()[0])

    def add(self, count: int) -> None:
        """Add to the number."""
        with writing:
            self.row[0] += count

    def set(self, value: int) -> None:
        """Set the number, in all processes, at once."""
        with writing:
            self.common[1] = value - super().sums()[0]

    def sums(self) -> list[float]:
        """Return the sum over all processes."""
        return [super().sums()[0] + self.common[1]]


class SharedArray:
    """Integers that processes share which are forked or spawned later; another pickle is a copy.

    There is no lock: of two processes that add at the same moment, one may not be counted.

    Args:
        kind: The type of the integers, as for `array.array`.
        values: The first values, or the number of zeros.

    Attributes:
        kind: As passed.
        values: The integers.
    """

    def __init__(self, kind: str, values: int | list[int]) -> None:
        from multiprocessing.sharedctypes import RawArray  # 9 ms, which many programs do not need

        self.kind = kind
        self.values: Any = RawArray(kind, values if isinstance(values, int) else len(values))
        if not isinstance(values, int):
            self.values[:] = values

    def __reduce__(self) -> tuple[Any, ...]:
        if passes_to_process():
            return SharedArray, (self.kind, 0), {"values": self.values}
        return SharedArray, (self.kind, list(self.values))


def passes_to_process() -> bool:
    """Return whether what is pickled now goes to a process that is being started.

    Only then can multiprocessing pass shared memory on; any other pickle is a copy (decision 0086).
    """
    from multiprocessing import context

    return context.get_spawning_popen() is not None


_alive: Final[WeakSet[SharedRows]] = WeakSet()

writing: Final = threading.RLock()
"""Held by the thread that writes into the row of this process."""


def _share_all() -> None:
    try:
        hold_imports()  # without any lock, which a module may need while it is imported
    finally:  # after an interrupt too, which does not keep a process from being forked
        writing.acquire()
        for rows in list(_alive):
            rows.share()


def _end_in_parent() -> None:
    writing.release()
    release_imports()


def _doubles(values: Any) -> memoryview[float]:
    """Return a view of numbers as doubles, without a copy of those that are in shared memory."""
    numbers = array("d", values) if isinstance(values, list) else values
    return memoryview(numbers).cast("B").cast("d")


def _attached(cls: type[_SharedRows], table: Any, width: int, num_common: int) -> _SharedRows:
    rows = cls(*[0.0] * width)
    rows.common = [0.0] * num_common
    rows.attach(table)
    return rows


def _attach_all() -> None:
    _end_in_parent()
    for rows in list(_alive):
        if rows.is_shared:
            rows.attach(rows._table)  # noqa: SLF001 - of this module


if hasattr(os, "register_at_fork"):
    # A child would otherwise inherit the lock of a thread that it does not have.
    os.register_at_fork(
        before=_share_all, after_in_parent=_end_in_parent, after_in_child=_attach_all
    )
