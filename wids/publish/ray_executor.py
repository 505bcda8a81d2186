"""Run tasks on Ray through the `concurrent.futures.Executor` interface.

Ray has tasks and references, but not this interface. Ray is imported when an executor is made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")


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
        _move(self._running.pop(done), self._ray.exceptions, done)

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


def _move(future: Future[Any], exceptions: Any, done: Future[Any]) -> None:
    """Set the result of a future to that of Ray's future."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(done.result())
    except exceptions.RayTaskError as error:  # what the function raised
        future.set_exception(error.cause if isinstance(error.cause, Exception) else error)
    except BaseException as error:  # noqa: BLE001 - lost workers too; raised by result()
        future.set_exception(error)
