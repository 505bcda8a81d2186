"""Worker processes that end at once when their parent is interrupted or killed.

`concurrent.futures` waits for running tasks, and a task may read or download a large shard for
minutes; workers of a killed parent wait for tasks indefinitely.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Final

from wids.storage import complete_files

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from multiprocessing.context import BaseContext

    from wids.publish.process_pool import Pool

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
    from wids.publish.process_pool import Pool

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

    from wids.publish.process_pool import interrupted_later

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
    signal.signal(signal.SIGTERM, _exit)
    told = None
    if hasattr(os, "fork"):  # on Windows only a socket can be told, and no signal ends a process
        told, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    threading.Thread(target=_end_in_time, args=(told,), name="wids-parent", daemon=True).start()


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
    while parent.sentinel not in wait(ends):
        if told is not None and signal.SIGTERM in os.read(told, 64):
            break
    else:
        if told is not None:  # on Windows it would end this process here
            os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_CLEANUP_S)
    complete_files.delete_unfinished()
    os._exit(128 + signal.SIGTERM)


def _exit(number: int, _: object) -> None:
    raise SystemExit(128 + number)
