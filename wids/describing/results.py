"""Tasks on an executor → their results, each as soon as it is there.

A result is forgotten once it was passed on, so that memory does not grow with the tasks, and each
costs the same time, however many others wait. Knows nothing of what the tasks are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from itertools import takewhile
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_POLL_S: Final = 0.5
"""How often running tasks are looked at."""


def results(
    executor: Executor,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    watch: Callable[[list[Task]], object] | None = None,
) -> Iterator[tuple[Task, Result]]:
    """Yield tasks with their results, in the order in which they finish.

    What has finished is passed on before an error is raised. Then, and if the caller stops, tasks
    that have not begun are cancelled.

    Args:
        executor: Where the function is called.
        function: Called with each task.
        tasks: The tasks.
        watch: Called with the tasks that are running, twice a second at most.
    """
    finished: SimpleQueue[Future[Result]] = SimpleQueue()
    pending: dict[Future[Result], Task] = {}
    try:
        for task in tasks:
            future = executor.submit(function, task)
            pending[future] = task
            future.add_done_callback(finished.put)
        watched = time.monotonic()
        while pending:
            for future in sorted(_arrived(finished), key=_has_failed):
                yield pending.pop(future), future.result()
            if watch is not None and time.monotonic() - watched >= _POLL_S:
                watched = time.monotonic()
                # Executors begin tasks in order, so the first that waits ends the search.
                begun = takewhile(_has_begun, pending)
                watch([pending[future] for future in begun if future.running()])
    finally:
        for future in pending:
            future.cancel()


def _arrived(finished: SimpleQueue[Future[Any]]) -> list[Future[Any]]:
    """Wait a moment for a future that has finished; return all that have."""
    arrived = []
    try:
        arrived.append(finished.get(timeout=_POLL_S))
        while True:
            arrived.append(finished.get_nowait())
    except Empty:
        return arrived


def _has_begun(future: Future[Any]) -> bool:
    return future.running() or future.done()


def _has_failed(future: Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None
