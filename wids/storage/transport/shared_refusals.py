"""Let processes know that a server had no room for another process of the same program.

A process that fills a server sees no refusals itself, while another one, such as a worker of a
DataLoader, is refused whenever it tries. The numbers are in memory that forked and spawned
processes share. Nobody has to take back what a process has noted, so a process may be killed.
"""

from __future__ import annotations

import zlib
from typing import Final

from wids.storage.shared_number import SharedArray, passes_to_process

_NUM_SLOTS: Final = 61
"""Servers are few; two that have the same slot yield to each other for a moment."""

_shared: Final[list[SharedArray]] = []


def share() -> None:
    """Share what is noted with the processes that are started later."""
    if not _shared:
        _shared.append(SharedArray("Q", _NUM_SLOTS))


def note(server: str) -> None:
    """Note that a server refused the only request of this process."""
    # Without a lock: one of two that are noted at the same moment is enough.
    for slots in _shared:
        slots.values[_slot(server)] += 1


def number(server: str) -> int:
    """Return a number that changes whenever `note` is called for the server in any process."""
    return _shared[0].values[_slot(server)] if _shared else 0


def passed() -> SharedArray | None:
    """Return what a process that is being started needs for `join`; None in any other pickle."""
    return _shared[0] if _shared and passes_to_process() else None


def join(shared: SharedArray | None) -> None:
    """Share the numbers of the process that has started this one."""
    if shared is not None:
        _shared[:] = [shared]


def _slot(server: str) -> int:
    return zlib.crc32(server.encode()) % _NUM_SLOTS
