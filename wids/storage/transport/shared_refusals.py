"""Let the processes of a program know what one of them has learnt about a server.

They know that a server is away, so that only one of them says so, and that it had no room for
another process.

A process that fills a server sees no refusals itself, while another one, such as a worker of a
DataLoader, is refused whenever it tries. The numbers are in memory that forked and spawned
processes share. Nobody has to take back what a process has noted, so a process may be killed.
"""

from __future__ import annotations

import time
import zlib
from typing import Any, Final

from wids.storage.stages import SharedArray, passes_to_process, writing

_NUM_SLOTS: Final = 61
"""Servers are few; two that have the same slot yield to each other for a moment."""

_NUM_OUTAGE_SLOTS: Final = 1021
"""Of two servers with one slot, the outage of one may not be told."""

_QUIET_S: Final = 30.0
"""How long after a server was back nothing is said: it may answer some requests and not others."""

_shared: Final[list[SharedArray]] = []
_own: Final = [0.0] * (_NUM_SLOTS + _NUM_OUTAGE_SLOTS)
"""In place of what is shared, while nothing is."""


def share() -> None:
    """Share what is noted with the processes that are started later."""
    if not _shared:
        _shared.append(SharedArray("d", len(_own)))


def note(server: str) -> None:
    """Note that a server refused the only request of this process."""
    # Without a lock: one of two that are noted at the same moment is enough.
    for slots in _shared:
        slots.values[_slot(server)] += 1


def number(server: str) -> float:
    """Return a number that changes whenever `note` is called for the server in any process."""
    return _shared[0].values[_slot(server)] if _shared else 0


def outage_begins(server: str) -> bool:
    """Note that a server is away; return whether no thread and no process has noted it before."""
    values, at, now_s = _values(), _outage_slot(server), time.monotonic()
    # Between processes there is no lock: at worst, two of them say the same.
    with writing:
        if values[at] > 0 or (values[at] and now_s + values[at] < _QUIET_S):
            return False
        values[at] = now_s  # since then; or less than 0, since when it is back
        return True


def outage_ends(server: str) -> float | None:
    """Note that a server has answered; return how many seconds it was away, if that was noted."""
    values, at = _values(), _outage_slot(server)
    if values[at] <= 0:
        return None
    with writing:
        since_s, now_s = float(values[at]), time.monotonic()
        if since_s <= 0:
            return None
        values[at] = -now_s
        return now_s - since_s


def passed() -> SharedArray | None:
    """Return what a process that is being started needs for `join`; None in any other pickle."""
    return _shared[0] if _shared and passes_to_process() else None


def join(shared: SharedArray | None) -> None:
    """Share the numbers of the process that has started this one."""
    if shared is not None:
        _shared[:] = [shared]


def _values() -> Any:
    return _shared[0].values if _shared else _own


def _outage_slot(server: str) -> int:
    return _NUM_SLOTS + zlib.crc32(server.encode()) % _NUM_OUTAGE_SLOTS


def _slot(server: str) -> int:
    return zlib.crc32(server.encode()) % _NUM_SLOTS
