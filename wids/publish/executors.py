"""Run tasks on any executor: in worker processes, on Ray, on Dask.

`results_of` yields the results of tasks as they finish, and names a task that is lost. A worker
returns the exception of a task as a value, so anything else that a future raises is from the
executor itself: a worker that was killed, a scheduler that is gone.

`process_pool` has the worker processes of commands. They end at once when their parent is
interrupted or killed. `concurrent.futures` would wait for running tasks, which may read a large
shard for minutes, and the workers of a killed parent would wait for tasks indefinitely. Up to
Python 3.12, the thread of a `ProcessPoolExecutor` ends with a traceback if a future was cancelled
and a worker ends; it neither ends the other workers nor releases its semaphores. `Pool` survives
that.

`RayExecutor` is the interface of an `Executor` for Ray, which is imported when one is made.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    InvalidStateError,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice, takewhile
from multiprocessing import connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar
from uuid import uuid4

from wids.errors import LostTaskError
from wids.storage import files

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
            # Failed futures come last: an error loses no other result.
            for future in [next(iter(pending))] if in_order else _drained(finished):
                result = _result(future, name_of(pending[future]), advice)
                yield pending.pop(future), result
                submit(1)
            if watch is not None and time.monotonic() - watched >= _POLL_S:
                watched = time.monotonic()
                # Executors start tasks in order, so the first waiting one ends the search.
                begun = takewhile(lambda each: each.running() or each.done(), pending)
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


_PRELOADED: Final = ["numpy", __name__]
_MAX_FOLDER_NBYTES: Final = 70
"""Longest path of a folder in which the socket of a fork server has a path of at most 103 bytes,
the least that systems allow."""
_CLEANUP_S: Final = 0.1
"""How long a worker that is told to end has to end its task."""


@contextmanager
def process_pool(num_processes: int | None, num_tasks: int) -> Iterator[Executor | None]:
    """Yield an executor of processes, or None if one process would have all the work.

    For the main thread of a program, since it handles SIGTERM while the block runs.

    Args:
        num_processes: Maximum number of processes; None for one per core.
        num_tasks: Number of tasks; there are never more processes than tasks.
    """
    num_processes = min(num_processes or os.cpu_count() or 1, num_tasks)
    if num_processes < 2:
        yield None
        return

    # Never fork this process: a fork lacks the threads of an fsspec driver, and code that waits for
    # them hangs. Workers start with the first task, which comes after the driver has started.
    if _has_fork_server():
        context: BaseContext = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)  # once, and not in each worker
    else:
        context = multiprocessing.get_context("spawn")
    executor = Pool(num_processes, context, _prepare_worker)
    previous = signal.signal(signal.SIGTERM, _exit)
    try:
        yield executor
    except BaseException:
        _end_workers(executor)
        raise
    finally:
        executor.shutdown(cancel_futures=True)
        signal.signal(signal.SIGTERM, previous)


def start_early(num_processes: int | None, modules: Sequence[str]) -> None:
    """Start the process that the workers of a later `process_pool` are forked from.

    It imports modules while this one plans the work; workers have them when they start.

    Args:
        num_processes: As for `process_pool`.
        modules: What workers import.
    """
    if (num_processes or os.cpu_count() or 1) < 2 or not _has_fork_server():
        return
    from multiprocessing import resource_tracker
    from multiprocessing.forkserver import ensure_running

    multiprocessing.get_context("forkserver").set_forkserver_preload([*_PRELOADED, *modules])
    resource_tracker.ensure_running()  # it would let signals through again
    with interrupted_later():
        ensure_running()


def _has_fork_server() -> bool:
    is_short = len(os.fsencode(tempfile.gettempdir())) <= _MAX_FOLDER_NBYTES
    return is_short and "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows


def _end_workers(executor: Pool) -> None:
    """End the workers of an executor, whatever they are doing."""
    for worker in executor.workers:
        worker.terminate()
    # A worker that ends while it sends a result leaves a part of it in the pipe. The executor's
    # thread would wait for the rest forever, as long as this process could still send it. Python
    # has no public way to that pipe (decision 0086).
    results = getattr(executor, "_result_queue", None)
    if (writer := getattr(results, "_writer", None)) is not None:
        writer.close()


def _prepare_worker() -> None:
    """Leave Ctrl-C to the parent, clean up when it ends this process, and end when it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    told = None
    if hasattr(os, "fork"):  # on Windows only a socket can be told, and no signal ends a process
        told, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    threading.Thread(target=_end_in_time, args=(told,), name="wids-parent", daemon=True).start()
    # Last: until then there is nothing to clean up, and the executor prints errors of this one.
    signal.signal(signal.SIGTERM, _exit)


def _end_in_time(told: int | None) -> None:
    """Wait until this process is told to end or its parent is gone, and see that it ends.

    The main thread may never reach the handler of a signal: it may wait for a lock that a worker
    held when it ended, or be in a call that no signal interrupts. And the executor takes the
    handler's exception for the result of a task, and starts the next one.

    Args:
        told: File descriptor that receives the numbers of signals; None where there is none.
    """
    parent = multiprocessing.parent_process()
    if parent is None:  # not a worker
        return
    # The end of a pipe whose other end only the parent holds, and with "fork" the workers that were
    # started later: the last of these notices first, and the others one by one.
    ends = [parent.sentinel] if told is None else [parent.sentinel, told]
    while parent.sentinel not in connection.wait(ends):
        if told is not None and signal.SIGTERM in os.read(told, 64):
            break
    else:
        if told is not None:  # on Windows it would end this process here
            os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_CLEANUP_S)
    files.delete_unfinished()
    os._exit(128 + signal.SIGTERM)


def _exit(number: int, _: object) -> None:
    raise SystemExit(128 + number)


P = ParamSpec("P")


class RayExecutor(Executor):
    """Runs tasks on a Ray cluster: ``wids.rewrite(…, executor=wids.RayExecutor())``.

    Workers have to see the same files, under the same paths. A task whose worker dies is started
    again by Ray, by default three times. Cancelling a future also interrupts a running task.

    Use it as a context manager; at the end it waits for its tasks. It neither starts nor ends Ray,
    except that Ray starts by itself on this machine if `ray.init` was not called.

    Args:
        options: Options of Ray's tasks, as for ``ray.remote``: ``num_cpus=2``, ``memory=4e9``,
            ``max_retries=10``, ``scheduling_strategy="SPREAD"``.

    Raises:
        ModuleNotFoundError: Ray is not installed.

    Examples:
        >>> import wids
        >>> shard = wids.TarWriter("letters.tar")
        >>> with shard:
        ...     nbytes = shard.write({"__key__": "a", "txt": "a"})
        >>> with wids.RayExecutor() as executor:
        ...     spec = wids.build_spec(["letters.tar"], executor=executor)
        >>> spec.shards[0].num_samples
        1
    """

    def __init__(self, **options: Any) -> None:
        try:
            import ray
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "RayExecutor needs the package ray, which is not installed: pip install ray",
                name="ray",
            ) from error
        self._ray: Any = ray
        self._options = options
        # Ray refuses empty options.
        self._run = ray.remote(**options)(_called) if options else ray.remote(_called)
        self._running: dict[Future[Any], Future[Any]] = {}  # those of Ray, and those returned
        self._lock = threading.Lock()
        self._is_shut_down = False

    def __repr__(self) -> str:
        stated = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"RayExecutor({stated})"

    def submit(
        self, fn: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[Result]:
        """Start a task and return its future.

        Raises:
            RuntimeError: The executor was shut down.
        """
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("RayExecutor: cannot schedule new futures after shutdown()")
            reference = self._run.remote(fn, args, kwargs)
            done = reference.future()
            future: Future[Result] = Future()
            self._running[done] = future
        future.add_done_callback(partial(self._interrupt, reference))
        done.add_done_callback(self._finish)
        return future

    def _interrupt(self, reference: Any, future: Future[Any]) -> None:
        if future.cancelled():
            self._ray.cancel(reference)

    def _finish(self, done: Future[Any]) -> None:
        """Set the result of a future to that of Ray's future."""
        future = self._running.pop(done)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(done.result())
        except self._ray.exceptions.RayTaskError as error:  # what the function raised
            future.set_exception(error.cause if isinstance(error.cause, Exception) else error)
        except BaseException as error:  # noqa: BLE001 - lost workers too; raised by result()
            future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks; wait for those that were started, even if they were cancelled.

        Args:
            wait: Whether to wait.
            cancel_futures: Whether to cancel them first.
        """
        with self._lock:
            self._is_shut_down = True
        running = dict(self._running)
        for future in running.values() if cancel_futures else ():
            future.cancel()
        if wait:
            _wait(running)


_wait = wait  # a parameter of `shutdown` has its name


def _called(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function, on a worker."""
    return function(*args, **kwargs)
