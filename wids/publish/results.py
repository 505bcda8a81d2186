"""Yield the results of tasks on an executor; raise an error that names a lost task.

A worker returns the exception of a task as a value, so anything else that a future raises is from
the executor itself: a worker that was killed, a scheduler that is gone.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from functools import partial
from itertools import islice, takewhile
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

from wids.errors import LostTaskError

Task = TypeVar("Task")
Result = TypeVar("Result")

_POLL_S: Final = 0.5
"""How often running tasks are looked at."""

_MAX_SUBMITTED: Final = 512
"""Most tasks at a time: a pickled task with the names of 10,000 shards takes 800 kB, and cluster
schedulers keep all waiting tasks in memory."""


def results_of(
    executor: Executor | None,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    name_of: Callable[[Task], str],
    *,
    advice: str = "run it again",
    in_order: bool = False,
    watch: Callable[[list[Task]], object] | None = None,
) -> Generator[tuple[Task, Result], None, None]:
    """Yield tasks with their results, as they finish.

    A result is dropped once it is yielded, so that memory does not grow with the tasks. After an
    error, and if the caller stops, tasks that have not started are cancelled.

    Args:
        executor: Where to call the function; None for this thread.
        function: Returns the result of a task, on a worker.
        tasks: The tasks.
        name_of: Returns the name of a task for an error: that of its shard.
        advice: What to do when a task is lost.
        in_order: Whether to yield results in the order of the tasks.
        watch: Called with the tasks that are running, twice a second at most.

    Raises:
        LostTaskError: The executor lost a task.
        Exception: Whatever a task raised, with the worker's traceback as its cause. Results that
            finished together with it are yielded first. Also other exceptions of ``submit``.
    """
    if executor is None:
        for task in tasks:
            yield task, function(task)
        return
    _check_executor(executor)
    # Dask treats equal calls as one task, and would return the result or error of an earlier run.
    call, waiting = partial(_attempt, uuid4().hex, function), iter(tasks)
    pending: dict[Future[Any], Task] = {}
    finished: SimpleQueue[Future[Any]] = SimpleQueue()

    def submit(count: int) -> None:
        for task in islice(waiting, count):
            try:
                future = executor.submit(call, task)
            except RuntimeError as error:
                if not _is_of_executor(error):
                    raise
                raise _lost(name_of(task), error, advice) from error
            pending[future] = task
            if not in_order:
                future.add_done_callback(finished.put)

    try:
        submit(_MAX_SUBMITTED)
        watched = time.monotonic()
        while pending:
            # Failed futures come last, so that no other result is lost.
            for future in [next(iter(pending))] if in_order else _drained(finished):
                result = _result(future, name_of(pending[future]), advice)
                yield pending.pop(future), result
                submit(1)
            if watch is not None and time.monotonic() - watched >= _POLL_S:
                watched = time.monotonic()
                # Executors start tasks in order, so the first waiting one ends the search.
                begun = takewhile(_has_begun, pending)
                watch([pending[future] for future in begun if future.running()])
    finally:
        for future in pending:
            future.cancel()


def _check_executor(executor: Executor) -> None:
    if not hasattr(executor, "submit"):
        raise TypeError(
            "executor: expected an Executor, as concurrent.futures has them, found "
            f"{type(executor).__name__} {executor!r:.80}"
        )


def _drained(finished: SimpleQueue[Future[Any]]) -> list[Future[Any]]:
    """Wait a moment for a future that has finished; return all that have, failed ones last."""
    found = []
    try:
        found.append(finished.get(timeout=_POLL_S))
        while True:
            found.append(finished.get_nowait())
    except Empty:
        return sorted(found, key=_has_failed)  # an error loses no other result


def _has_begun(future: Future[Any]) -> bool:
    return future.running() or future.done()


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
        if result.error.__traceback__ is None:  # it was pickled, without traceback and cause
            result.error.__cause__ = RuntimeError(f'\n"""\n{result.lines}"""')
        raise result.error
    return result


def _is_of_executor(error: RuntimeError) -> bool:
    """Whether an executor takes no more tasks: it is broken, or was shut down."""
    # The second has no class of its own; Python and Dask state it in these words (decision 0086).
    closed = "cannot schedule new futures after"
    return isinstance(error, BrokenExecutor) or closed in str(error)


def _lost(name: str, error: BaseException, advice: str) -> LostTaskError:
    reason = f"{type(error).__name__}: {error}".strip(": ").replace("\n", " ")
    return LostTaskError(
        f"{name}: expected the result of its task, but the executor lost it: {reason:.300}; look "
        f"in the logs of its workers (were they killed, or out of memory?), and {advice}"
    )


def _attempt(_: str, function: Callable[[Task], Result], task: Task) -> Result | _Raised:
    """Call a function on a worker; return what it raises."""
    try:
        return function(task)
    except Exception as error:  # noqa: BLE001 - raised where the result is wanted
        return _Raised(error, traceback.format_exc())


class _Raised(NamedTuple):
    """What a task raised, and the worker's traceback as text."""

    error: Exception
    lines: str
