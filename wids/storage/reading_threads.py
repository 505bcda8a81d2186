"""Run tasks that read remote files in daemon threads, which do not keep the process from ending.

The threads of `concurrent.futures` do, even after Ctrl-C, and a read may wait minutes for a server
that is down.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import lru_cache, partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from wids.storage.stages import fetching
from wids.storage.transport.retry import cancelled_by, check_waits

_T = TypeVar("_T")
Name = TypeVar("Name", bound=Hashable)
Thing = TypeVar("Thing")

_NUM_THREADS: Final = 32
"""Tasks at a time: enough for servers that take long to answer."""
_PATIENCE_S: Final = 1.0
"""How long to wait, after an error, for requests in flight."""
_POLL_S: Final = 0.25
"""How long Ctrl-C may wait: after a stop of the process (SIGSTOP) it can reach another thread."""

_this_thread: Final = threading.local()


class ReadingThreads(Executor):
    """Daemon threads that stop waiting for servers when their tasks are dropped.

    As a context manager it waits for all tasks; after an error, Ctrl-C included, it drops those
    that have not begun, and waits only a second for the others.

    Args:
        num_threads: Maximum number of tasks at a time.
        name: Name of the threads, for debugging.

    Attributes:
        threads: Those that were started.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._num_threads = num_threads
        self._name = name
        self.threads: list[threading.Thread] = []
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._is_over = threading.Event()
        self._idle = threading.Semaphore(0)  # how many threads wait for a task

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Run a task in the next free thread."""
        future: Future[_T] = Future()
        self._tasks.put((future, partial(fn, *args, **kwargs)))
        if len(self.threads) < self._num_threads and not self._idle.acquire(blocking=False):
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            # Listed before it starts: it may collect, at its first step, what shuts this down.
            self.threads.append(thread)
            try:
                _start(thread)
            except BaseException:
                if thread.ident is None:  # it has not started
                    self.threads.remove(thread)
                raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more tasks.

        Args:
            wait: Whether to wait for those that were submitted, or a second if they were dropped.
            cancel_futures: Whether to drop tasks that have not begun, and to end the waits for
                servers of those that have.
        """
        if cancel_futures:
            self._is_over.set()
            with suppress(Empty):
                while task := self._tasks.get_nowait():
                    task[0].cancel()
        for _ in range(self._num_threads):  # one that starts meanwhile ends as well
            self._tasks.put(None)
        # A moment, since most servers answer soon, and what they cut off is then closed here.
        until_s = time.monotonic() + _PATIENCE_S
        for thread in list(self.threads) if wait else ():
            # Not this one, which may have collected the owner; by the identifier, since at a
            # thread's first steps `current_thread` does not know it.
            if thread.is_alive() and thread.ident != threading.get_ident():
                thread.join(max(0.0, until_s - time.monotonic()) if cancel_futures else None)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.shutdown(cancel_futures=kind is not None)
        except BaseException:  # Ctrl-C while the threads end
            self.shutdown(wait=False, cancel_futures=True)
            raise

    def _work(self) -> None:
        with cancelled_by(self._is_over):
            while task := self._tasks.get():
                _run(*task)
                del task  # or its result would stay in memory until the next task
                self._idle.release()


def in_threads(tasks: Sequence[Callable[[], _T]], name: str) -> list[_T]:
    """Run tasks that read remote files at the same time; return their results in order.

    The threads end with the tasks: in a process that is forked later they would be missing. The
    first error, Ctrl-C included, drops the other tasks, and so does the event of `cancelled_by`. A
    task that calls this itself runs its own tasks one after another.

    Args:
        tasks: Called without arguments, in order.
        name: Name of the threads, for debugging.

    Raises:
        CancelledError: The event of `cancelled_by` was set meanwhile.
    """
    if len(tasks) <= 1 or hasattr(_this_thread, "has_tasks"):
        return [task() for task in tasks]
    results: dict[int, _T] = {}
    ended: SimpleQueue[Future[None]] = SimpleQueue()
    num_left = min(len(tasks), _NUM_THREADS)
    numbers = [*[-1] * num_left, *reversed(range(len(tasks)))]  # -1 ends a thread

    def work() -> None:
        _this_thread.has_tasks = True
        for number in iter(numbers.pop, -1):
            check_waits()
            results[number] = tasks[number]()

    with fetching(), ReadingThreads(num_left, name) as threads:
        for _ in range(num_left):
            threads.submit(work).add_done_callback(ended.put)
        while num_left:
            thread = None
            with suppress(Empty):  # not `concurrent.futures.wait`, whose locks Ctrl-C may break
                thread = ended.get(timeout=_POLL_S)
            if thread is not None:
                thread.result()
                num_left -= 1
            check_waits()
    return [results[number] for number in range(len(tasks))]


def _start(thread: threading.Thread) -> None:
    """Start a thread; after Ctrl-C, raise KeyboardInterrupt rather than Python's own error."""
    try:
        thread.start()
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - it reaches the caller of `result`
        future.set_exception(error)


def latest(make: Callable[[Name], Thing], count: int) -> Callable[[Name], Thing]:
    """Return `make` with its last `count` results cached, for any number of threads."""
    kept, lock = lru_cache(count)(make), threading.Lock()

    def get(name: Name) -> Thing:
        with lock:  # or two threads would make the same thing twice
            return kept(name)

    return get
