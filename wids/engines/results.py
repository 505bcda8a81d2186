"""Tasks and an executor → their results; a task that the executor loses is an error with its name.

A worker returns what a task raises as a value, so that everything else that a future raises is the
executor's own: a worker that was killed, a scheduler that is gone. Does not know what the work is.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from wids.errors import LostTaskError

Task = TypeVar("Task")
Result = TypeVar("Result")

POLL_S: Final = 0.5
"""How often a caller that waits is asked to show progress."""

_MAX_SUBMITTED: Final = 512
"""Most tasks at a time: a task with the names of 10,000 shards is 800 kB when it is pickled, and
the schedulers of clusters have all that wait in memory."""


def results_of(
    executor: Executor | None,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    name_of: Callable[[Task], str],
    *,
    advice: str = "run it again",
    in_order: bool = False,
    on_wait: Callable[[list[Task]], object] | None = None,
) -> Generator[tuple[Task, Result], None, None]:
    """Yield tasks with their results, as they are finished. When it ends, no task is waiting.

    Args:
        executor: Where to call the function; None for this thread.
        function: Returns the result of a task, on a worker.
        tasks: The tasks.
        name_of: Returns the name of a task for an error: that of its shard.
        advice: What to do when a task is lost.
        in_order: Whether to yield results in the order of the tasks.
        on_wait: Called with the tasks that run, at least every half second if none is finished.

    Raises:
        LostTaskError: The executor lost a task.
        Exception: Whatever a task raised; with the worker's traceback as its cause. What finished
            together with it was yielded first.
    """
    if executor is None:
        for task in tasks:
            yield task, function(task)
        return
    call, waiting = partial(_attempt, function), iter(tasks)
    pending: dict[Future[Any], Task] = {}
    finished: SimpleQueue[Future[Any]] = SimpleQueue()

    def submit(count: int) -> None:
        for task in islice(waiting, count):
            try:
                future = executor.submit(call, task)
            except BrokenExecutor as error:
                raise _lost(name_of(task), error, advice) from error
            pending[future] = task
            if not in_order:
                future.add_done_callback(finished.put)

    def wait() -> list[Future[Any]]:
        if in_order:
            return [next(iter(pending))]
        return _drained(finished, lambda: on_wait and on_wait(_running(pending)))

    try:
        submit(_MAX_SUBMITTED)
        while pending:
            for future in wait():
                task = pending[future]
                result = _result(future, name_of(task), advice)
                del pending[future]
                yield task, result
                submit(1)
    finally:
        for future in pending:
            future.cancel()


def _drained(
    finished: SimpleQueue[Future[Any]], on_wait: Callable[[], object]
) -> list[Future[Any]]:
    """Return the futures that are finished, at least one; those that failed come last."""
    while True:
        try:
            found = [finished.get(timeout=POLL_S)]
        except Empty:
            on_wait()
            continue
        while not finished.empty():
            found.append(finished.get())
        # An error in one of them then loses no other.
        return sorted(found, key=_has_failed)


def _running(pending: dict[Future[Any], Task]) -> list[Task]:
    return [task for future, task in pending.items() if future.running()]


def _has_failed(future: Future[Any]) -> bool:
    if future.cancelled() or future.exception() is not None:
        return True
    return isinstance(future.result(), _Raised)


def _result(future: Future[Any], name: str, advice: str) -> Any:
    try:
        error = future.exception()
    except CancelledError as cancelled:
        error = cancelled
    if isinstance(error, KeyboardInterrupt):  # Ctrl-C, which reached a worker first
        raise error
    if error is not None:
        raise _lost(name, error, advice) from error
    result = future.result()
    if isinstance(result, _Raised):
        raise result.error
    return result


def _lost(name: str, error: BaseException, advice: str) -> LostTaskError:
    reason = f"{type(error).__name__}: {error}".strip(": ").replace("\n", " ")
    return LostTaskError(
        f"{name}: expected the result of its task, but the executor lost it: {reason:.300}; look "
        f"in the logs of its workers (were they killed, or out of memory?), and {advice}"
    )


def _attempt(function: Callable[[Task], Result], task: Task) -> Result | _Raised:
    """Call a function on a worker; return what it raises."""
    try:
        return function(task)
    except Exception as error:  # noqa: BLE001 - raised where the result is wanted
        return _Raised(error)


class _Raised:
    """What a task raised, on its way from a worker.

    Attributes:
        error: The error. In another process its cause is the worker's traceback.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        # Pickle keeps neither traceback nor cause.
        lines = traceback.format_exception(type(self.error), self.error, self.error.__traceback__)
        return _restored, (self.error, "".join(lines))


def _restored(error: Exception, text: str) -> _Raised:
    error.__cause__ = _WorkerTracebackError(text)
    return _Raised(error)


class _WorkerTracebackError(Exception):
    """The traceback of a worker, as text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'
