"""Cache the latest results of a function that any number of threads may call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)
Thing = TypeVar("Thing")


def latest(make: Callable[[Name], Thing], count: int) -> Callable[[Name], Thing]:
    """Return `make` with its last `count` results cached, for any number of threads."""
    kept, lock = lru_cache(count)(make), threading.Lock()

    def get(name: Name) -> Thing:
        with lock:  # or two threads would make the same thing twice
            return kept(name)

    return get
