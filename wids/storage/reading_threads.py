"""Run tasks that read remote files in threads that do not keep the process from ending.

The threads of `concurrent.futures` do so, even after Ctrl-C, and a read may wait minutes for a
server that is down.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from wids.storage.transport.retry import cancelled_by

_T = TypeVar("_T")

_PATIENCE_S: Final = 1.0
"""How long to wait, after an error, for requests in flight."""


class ReadingThreads(Executor):
    """Daemon threads that stop waiting for servers when their tasks are dropped.

    As a context manager it waits for all tasks; after an error, Ctrl-C included, it drops those
    that have not begun, and waits only a second for the others.

    Args:
        num_threads: Maximum number of tasks at a time.
        name: Name of the threads, for debugging.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._num_threads = num_threads
        self._name = name
        self._threads: list[threading.Thread] = []
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._is_over = threading.Event()

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Run a task in the next free thread."""
        future: Future[_T] = Future()
        self._tasks.put((future, partial(fn, *args, **kwargs)))
        if len(self._threads) < self._num_threads:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()  # which fails where the machine has no more threads
            self._threads.append(thread)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more tasks.

        Args:
            wait: Whether to wait for those that were submitted.
            cancel_futures: Whether to drop tasks that have not begun, and to end the waits for
                servers of those that have.
        """
        if cancel_futures:
            self._is_over.set()
            with suppress(Empty):
                while task := self._tasks.get_nowait():
                    task[0].cancel()
        for _ in self._threads:
            self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.shutdown(wait=kind is None, cancel_futures=kind is not None)
        # A moment, since most servers answer soon, and what they cut off is then closed here.
        until_s = time.monotonic() + _PATIENCE_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _work(self) -> None:
        with cancelled_by(self._is_over):
            while task := self._tasks.get():
                _run(*task)
                del task  # or its result would stay in memory until the next task


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - it reaches the caller of `result`
        future.set_exception(error)
