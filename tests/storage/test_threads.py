"""Threads that read: what a machine without free threads leaves of them."""

from __future__ import annotations

import operator
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from events import LONG_S, wait_for

from wids.storage.reading_threads import ReadingThreads, in_threads
from wids.storage.transport.gate import num_threads
from wids.storage.transport.request_limit import MOST


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the machine is the one that is raised, and the other threads end."""
    start, started = threading.Thread.start, []

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    def run_all() -> None:
        with ReadingThreads(4, "test") as threads:
            list(threads.map(abs, range(8)))

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run_all()
    started[0].join(LONG_S)
    assert [thread.is_alive() for thread in started] == [False]


def test_ctrl_c_while_a_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no error of Python's lock, and the thread that has just started ends too."""
    start, started = threading.Thread.start, []

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()  # as `Condition.wait` does that was interrupted

    monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        in_threads([int] * 4, "test")
    for thread in started:
        thread.join(LONG_S)
    assert not any(thread.is_alive() for thread in started)


def test_ctrl_c_reaches_a_process_that_was_stopped() -> None:
    """The system may then pass the signal to another thread than the one that waits."""
    code = (
        "import os, time\n"
        "from wids.storage.reading_threads import in_threads\n"
        "def task():\n"
        "    os.write(1, b'begun\\n')\n"
        "    for _ in range(30_000): time.sleep(0.01)\n"
        "in_threads([task] * 3, 'test')\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:  # type: ignore[call-overload]
        try:
            for _ in range(3):
                assert process.stdout.readline() == b"begun\n"
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGCONT)
            _, errors = process.communicate(timeout=LONG_S)
        finally:
            process.kill()
    assert b"KeyboardInterrupt" in errors


def test_no_more_threads_than_requests() -> None:
    """Tasks share the threads that the gate can use, and their results are in order."""
    threads = set()

    def task(number: int) -> int:
        threads.add(threading.current_thread())
        return number

    found = in_threads([partial(task, number) for number in range(3000)], "test")
    assert found == list(range(3000))
    assert len(threads) <= min(MOST, num_threads())


def test_tasks_are_made_when_a_thread_is_free() -> None:
    """An iterator without end is not read ahead, and the first error ends its use."""
    num_made = 0

    def tasks() -> Iterator[Callable[[], float]]:
        nonlocal num_made
        while True:
            num_made += 1
            yield partial(operator.truediv, 1, 100 - num_made)

    with pytest.raises(ZeroDivisionError):
        in_threads(tasks(), "test-tasks")
    wait_for(lambda: not any(t.name == "test-tasks" for t in threading.enumerate()))
    num_then = num_made
    assert next(tasks())() < 0
    assert num_made == num_then + 1


def test_threads_within_threads_share_the_limit() -> None:
    """Tasks that run tasks of their own have no more threads than others, together."""
    most, lock = 0, threading.Lock()

    def inner(number: int) -> int:
        nonlocal most
        with lock:
            most = max(most, sum(t.name.startswith("nested") for t in threading.enumerate()))
        time.sleep(0.001)
        return number

    def outer(number: int) -> list[int]:
        return in_threads([partial(inner, number * 100 + k) for k in range(100)], "nested")

    found = in_threads([partial(outer, number) for number in range(30)], "nested")
    assert found == [[number * 100 + k for k in range(100)] for number in range(30)]
    assert most <= 5 * min(MOST, num_threads())


def test_any_error_of_a_task_is_raised() -> None:
    """Also one that queues raise."""

    def empty() -> None:
        raise queue.Empty

    with pytest.raises(queue.Empty):
        in_threads([empty, empty], "test")
