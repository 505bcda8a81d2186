"""Run tasks on any executor: in worker processes, on Ray, on Dask.

`results_of` yields the results of tasks as they finish, and names a task that is lost. A worker
returns the exception of a task as a value, so anything else that a future raises is from the
executor itself: a worker that was killed, a scheduler that is gone.

`process_pool` has the worker processes of commands. They end at once when their parent is
interrupted or killed: each waits for the end of a pipe that only the parent holds. Measured with
shards of 0.8 GB, a command ends 0.4 s after SIGINT or SIGTERM. With a `ProcessPoolExecutor` it
takes as long after Ctrl-C in a terminal, which reaches all processes, but each prints a traceback;
SIGINT for the parent alone waits for the running tasks (4 s, or minutes for remote shards); and
SIGTERM and SIGKILL leave all workers behind. It also names any of the running tasks when a worker
is killed, and not the one that was lost.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
)
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar
from uuid import uuid4

from wids.errors import LostTaskError
from wids.storage import files

P = ParamSpec("P")
Task = TypeVar("Task")
Result = TypeVar("Result")

_POLL_S: Final = 0.5
"""How long to wait at a time: where a wait cannot be interrupted, Ctrl-C counts after it."""

_MAX_SUBMITTED: Final = 512
"""Most tasks at a time: a pickled task with the names of 10,000 shards takes 800 kB, and cluster
schedulers keep all waiting tasks in memory."""


def results_of(
    executor: Executor | None,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    name_of: Callable[[Task], str],
    *,
    advice: str = "run it again",
    in_order: bool = False,
) -> Generator[tuple[Task, Result], None, None]:
    """Yield tasks with their results, as they finish.

    A result is dropped once it is yielded, so that memory does not grow with the tasks. After an
    error, and if the caller stops, tasks that have not started are cancelled.

    Args:
        executor: Where to call the function; None for this thread, as for the one task of a
            `process_pool`.
        function: Returns the result of a task, on a worker.
        tasks: The tasks.
        name_of: Returns the name of a task for an error: that of its shard.
        advice: What to do when a task is lost.
        in_order: Whether to yield results in the order of the tasks.

    Raises:
        LostTaskError: The executor lost a task.
        Exception: Whatever a task raised, with the worker's traceback as its cause. Results that
            finished together with it are yielded first. Also other exceptions of ``submit``.
    """
    if executor is None or runs_here(executor, tasks):
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
        while pending:
            # Failed futures come last: an error loses no other result.
            for future in [next(iter(pending))] if in_order else _drained(finished):
                result = _result(future, name_of(pending[future]), advice)
                yield pending.pop(future), result
                submit(1)
    finally:
        for future in pending:
            future.cancel()


def runs_here(executor: Executor | None, tasks: Sequence[Any]) -> bool:
    """Return whether tasks run in this thread: without an executor, or one of a `process_pool`."""
    return executor is None or (isinstance(executor, ProcessPool) and len(tasks) < 2)


def _check_executor(executor: Executor) -> None:
    if not hasattr(executor, "submit"):
        raise TypeError(
            "executor: expected an Executor, as concurrent.futures has them, found "
            f"{type(executor).__name__} {executor!r:.80}"
        )


def _drained(finished: SimpleQueue[Future[Any]]) -> list[Future[Any]]:
    """Wait a moment for a future that has finished; return all that have, failed ones last."""
    found = []
    with suppress(Empty):
        found.append(finished.get(timeout=_POLL_S))
        while True:
            found.append(finished.get_nowait())
    return sorted(found, key=_has_failed)


def _has_failed(future: Future[Any]) -> bool:
    has_error = future.cancelled() or future.exception() is not None
    return has_error or isinstance(future.result(), _Raised)


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


class ProcessPool(ThreadPoolExecutor):
    """Threads that pass calls on to processes: each starts one for its first call.

    Attributes:
        workers: The processes that were started.
    """

    def __init__(self, num_processes: int, context: BaseContext) -> None:
        super().__init__(num_processes, "wids-process", _leave_interrupts_to_others)
        self.workers: list[BaseProcess] = []
        self._context: Any = context
        self._own = threading.local()
        self._end, self._lifeline = context.Pipe(duplex=False)

    def submit(self, fn: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs) -> Future[Any]:
        """Have a process call a function; return the future of its result."""
        return super().submit(self._call, fn, args, kwargs)

    def _call(self, *call: Any) -> Any:
        """Pass a call on to the process of this thread, and wait for its result."""
        if not hasattr(self._own, "calls"):
            self._own.worker, self._own.calls = self._start()
        try:
            self._own.calls.send(call)
            error, result = self._own.calls.recv()
        except (EOFError, OSError):
            self._own.worker.join()
            code = self._own.worker.exitcode
            raise BrokenExecutor(f"its process ended, with exit code {code}") from None
        if error is not None:
            raise error
        return result

    def _start(self) -> tuple[BaseProcess, Connection]:
        calls, answers = self._context.Pipe()
        # What this process has imported for its tasks, so that it is not done in each worker.
        modules = [name for name in list(sys.modules) if name.split(".")[0] == "wids"]
        self._context.set_forkserver_preload(["numpy", *modules])  # by the first
        worker = self._context.Process(target=_work, args=(answers, self._end))
        with answers:
            worker.start()
        self.workers.append(worker)
        return worker, calls

    def end(self) -> None:
        """End the processes, whatever they are doing, and those that start meanwhile."""
        self._lifeline.close()


def _work(answers: Connection, end: Connection) -> None:
    """Answer calls in a process, until the parent ends it or is gone."""
    # Terminals and schedulers send signals to all processes; the parent decides what they mean.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    if hasattr(signal, "pthread_sigmask"):  # programs that tasks start may wait for it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_in_time, args=(end,), name="wids-parent", daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            answers.send_bytes(_answer(answers.recv_bytes()))


def _answer(call: bytes) -> memoryview:
    """Return the pickle of what a call raises, or None, and of what it returns."""
    try:
        function, args, kwargs = pickle.loads(call)  # noqa: S301 - from the parent
        return ForkingPickler.dumps((None, function(*args, **kwargs)))
    except Exception as error:  # noqa: BLE001 - raised by the parent
        return ForkingPickler.dumps((error, None))


def _end_in_time(end: Connection) -> None:
    """End this process when the parent closes a pipe, or is gone.

    In a thread, since the main one may be in a call that no signal interrupts, or wait for a lock.
    """
    connection.wait([end])
    files.delete_unfinished()
    os._exit(128 + signal.SIGTERM)


def _leave_interrupts_to_others() -> None:
    """Keep Ctrl-C from this thread, and from processes that it starts.

    They would print a traceback while they import modules.
    """
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # it would let signals through again
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _exit(number: int, _: object) -> None:
    raise SystemExit(128 + number)


_MAX_FOLDER_NBYTES: Final = 70
"""Longest path of a folder in which the socket of a fork server has a path of at most 103 bytes,
the least that systems allow."""


@contextmanager
def process_pool(num_processes: int | None) -> Iterator[Executor | None]:
    """Yield an executor of processes, which start with their first tasks; None instead of one.

    For the main thread of a program, since it handles SIGTERM while the block runs.

    Args:
        num_processes: Maximum number of processes; None for one per core.
    """
    num_processes = num_processes or os.cpu_count() or 1
    if num_processes < 2:
        yield None
        return

    # Never fork this process: a fork lacks the threads of an fsspec driver, and code that waits for
    # them hangs. Workers start with the first task, which comes after the driver has started.
    # Not on Windows, nor where its socket would have a path that is longer than systems allow.
    is_short = len(os.fsencode(tempfile.gettempdir())) <= _MAX_FOLDER_NBYTES
    has_server = is_short and "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if has_server else "spawn")
    executor = ProcessPool(num_processes, context)
    previous = signal.signal(signal.SIGTERM, _exit)
    try:
        yield executor
    except BaseException:
        executor.end()
        raise
    finally:
        executor.shutdown(cancel_futures=True)
        executor.end()
        for worker in executor.workers:
            worker.join()
        signal.signal(signal.SIGTERM, previous)
