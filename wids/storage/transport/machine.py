"""What a range loop needs of the machine: time, sockets that have bytes, and memory.

Tests give it others, which they can look into.
"""

from __future__ import annotations

import select
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

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


def new_memory(nbytes: int) -> memoryview:
    """Return memory that has anything in it: to clear it would cost half as much as to fill it."""
    return np.empty(nbytes, np.uint8).data


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
