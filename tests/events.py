"""Wait for what other threads and processes do, for as long as a busy machine takes.

A second is no time there: a process may stop for so long at any place. A test waits for an event,
and not for seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

LONG_S = 60.0
"""Only a test that fails waits so long."""


def wait_for(condition: Callable[[], object], what: str = "an event") -> None:
    """Wait until a condition holds; fail if it never does."""
    until_s = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < until_s, f"{what} did not happen"
        time.sleep(0.005)


def in_time(attempt: Callable[[], _T | None]) -> _T:
    """Return what an attempt returns; repeat it after None, which says that it came too late."""
    for _ in range(10):
        found = attempt()
        if found is not None:
            return found
    raise AssertionError("ten attempts came too late")


def after(condition: Callable[[], object], action: Callable[[], object]) -> threading.Thread:
    """Do something in a thread as soon as a condition holds; return the thread."""

    def act() -> None:
        wait_for(condition)
        action()

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread
