"""A `ProcessPoolExecutor` whose own thread survives cancelled futures.

Up to Python 3.12, that thread ends with a traceback if a future was cancelled and a worker ends: it
neither ends the other workers nor releases its semaphores.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any


class Pool(ProcessPoolExecutor):
    """Processes that call functions.

    Attributes:
        workers: The processes that it has started.
    """

    def __init__(self, num_processes: int, context: BaseContext, start: Callable[[], None]) -> None:
        super().__init__(num_processes, context, initializer=start)
        self.workers: set[BaseProcess] = set()
        self._num_processes = num_processes

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call of a function and return its future."""
        if len(self.workers) < self._num_processes:  # a call starts a process, or none
            others = set(multiprocessing.active_children())
            with interrupted_later():
                future = super().submit(fn, *args, **kwargs)
                self.workers.update(set(multiprocessing.active_children()) - others)
        else:
            future = super().submit(fn, *args, **kwargs)
        # The executor makes the future, and has no option for its class (decision 0086).
        future.__class__ = _Future
        return future


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Keep Ctrl-C from processes that start in the block; this one is interrupted after it.

    They would print a traceback while they import modules. A worker ignores Ctrl-C when it begins.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


class _Future(Future[Any]):
    def set_exception(self, exception: BaseException | None) -> None:
        with suppress(InvalidStateError):
            super().set_exception(exception)
