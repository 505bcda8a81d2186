"""Let processes know that a server had no room for another process of the same program.

A process that fills a server sees no refusals itself, while another one, such as a worker of a
DataLoader, is refused whenever it tries. The numbers are in memory that forked and spawned
processes share. Nobody has to take back what a process has noted, so a process may be killed.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

from wids.storage.shared_number import passes_to_process

_NUM_SLOTS: Final = 61
"""Servers are few; two that have the same slot yield to each other for a moment."""

_shared: Final[list[Any]] = []


def share() -> None:
    """Share what is noted with the processes that are started later."""
    from multiprocessing.sharedctypes import RawArray  # 9 ms, which local datasets do not need

    if not _shared:
        _shared.append(RawArray("Q", _NUM_SLOTS))


def note(server: str) -> None:
    """Note that a server refused the only request of this process."""
    # Without a lock: one of two that are noted at the same moment is enough.
    for slots in _shared:
        slots[_slot(server)] += 1


def number(server: str) -> int:
    """Return a number that changes whenever `note` is called for the server in any process."""
    return _shared[0][_slot(server)] if _shared else 0


def passed() -> Any:
    """Return what a process that is being started needs for `join`; None in any other pickle."""
    return _shared[0] if _shared and passes_to_process() else None


def join(slots: Any) -> None:
    """Share the numbers of the process that has started this one."""
    if slots is not None:
        _shared[:] = [slots]


def _slot(server: str) -> int:
    return zlib.crc32(server.encode()) % _NUM_SLOTS
