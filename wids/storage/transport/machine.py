"""Clock, poller and memory for a range loop.

Tests give it others, which they can look into.
"""

from __future__ import annotations

import select
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol
from weakref import ref

import numpy as np


class Poller(Protocol):
    """Waits for sockets, as `select.epoll` does."""

    def register(self, sock: int, eventmask: int, /) -> object:
        """Wait for a socket too, by its number."""

    def unregister(self, sock: int, /) -> object:
        """Wait for it no longer."""

    def poll(self, timeout: float, /) -> list[tuple[int, int]]:
        """Return the numbers of the sockets that have bytes, after so many seconds at most."""

    def close(self) -> None:
        """End it."""


class _Selector(selectors.DefaultSelector):
    """A poller for systems without `select.epoll`."""

    def poll(self, timeout: float, /) -> list[tuple[int, int]]:
        return [(key.fd, events) for key, events in self.select(timeout)]


_POLLER: Final[Callable[[], Poller]] = getattr(select, "epoll", _Selector)


_LONGEST_NBYTES: Final = 31 << 20
"""The longest that `malloc` of Linux may be taught to keep: 32 MB with what it adds."""


@cache
def _keep_pages() -> None:
    """Have `malloc` keep what is freed, for the next batch, and not give it back to the system.

    It gives back what is longer than the longest piece that it has ever taken back: 128 kB at
    first. Then each range pays for its pages again: a quarter of a sample's time, or nothing, by
    chance. Twice as much as the longest piece stays with the process.
    """
    np.empty(_LONGEST_NBYTES, np.uint8)


def new_memory(nbytes: int) -> memoryview:
    """Return memory that has anything in it: to clear it would cost half as much as to fill it."""
    _keep_pages()
    return np.empty(nbytes, np.uint8).data


_LOOSE: Final = 4
"""How many times as long as a range the memory may be in which it is received."""


class Memory:
    """Memory for one range after another: what nobody has a view of any more is used again.

    What is read and copied at once is then received into memory that the processor has at hand.

    Args:
        new: Returns so many bytes of memory.
    """

    def __init__(self, new: Callable[[int], memoryview]) -> None:
        self._new = new
        self._used: list[tuple[memoryview, ref[Any]]] = []

    def get(self, nbytes: int) -> memoryview:
        """Return memory for a range."""
        lent: Any
        if self._used:
            memory, lent = self._used.pop()
            if lent() is None and nbytes <= len(memory) <= _LOOSE * nbytes:
                return np.asarray(memory).data
        return np.asarray(self._new(nbytes)).data

    def put(self, memory: memoryview) -> None:
        """Note memory of `get` that may be used again, as soon as nobody has a view of it."""
        lent: Any = memory.obj  # an array that lives as long as any view of it
        self._used.append((lent.base, ref(lent)))


@dataclass(frozen=True)
class Machine:
    """The machine.

    Attributes:
        now_s: Returns the time in seconds, from whenever.
        sleep: Waits for some seconds.
        poller: Returns a poller without sockets.
        memory: Returns so many bytes of memory.
    """

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    poller: Callable[[], Poller] = _POLLER
    memory: Callable[[int], memoryview] = new_memory


HERE: Final = Machine()
