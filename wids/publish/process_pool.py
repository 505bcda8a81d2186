"""A `ProcessPoolExecutor` whose own thread survives cancelled futures.

Up to Python 3.12, that thread ends with a traceback if a future was cancelled and a worker ends: it
neither ends the other workers nor releases its semaphores.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ProcessPoolExecutor
from contextlib import suppress
from typing import Any


class Pool(ProcessPoolExecutor):
    """Processes that call functions."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call of a function and return its future."""
        future = super().submit(fn, *args, **kwargs)
        # The executor makes the future, and has no option for its class (decision 0086).
        future.__class__ = _Future
        return future


class _Future(Future[Any]):
    def set_exception(self, exception: BaseException | None) -> None:
        with suppress(InvalidStateError):
            super().set_exception(exception)
