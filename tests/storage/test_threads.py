"""Threads that read: what a machine without free threads leaves of them."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
from events import LONG_S

from wids.storage.reading_threads import ReadingThreads, in_threads


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the machine is the one that is raised, and the other threads end."""
    start, started = threading.Thread.start, []
    is_refused = threading.Event()

    def start_one(thread: threading.Thread) -> None:
        if started:
            is_refused.set()
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    def run_all() -> None:
        with ReadingThreads(4, "test") as threads:
            list(threads.map(lambda _: is_refused.wait(LONG_S), range(8)))

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run_all()
    started[0].join(LONG_S)
    assert [thread.is_alive() for thread in started] == [False]


def test_an_idle_thread_takes_the_next_task() -> None:
    """Another one is started only while all are at work."""
    with ReadingThreads(4, "test") as threads:
        for _ in range(3):
            assert threads.submit(int).result(LONG_S) == 0
            assert threads._idle.acquire(timeout=LONG_S)
            threads._idle.release()
        assert len(threads.threads) == 1
        barrier = threading.Barrier(3)
        assert sorted(threads.map(lambda _: barrier.wait(LONG_S), range(3))) == [0, 1, 2]
        assert len(threads.threads) == 3


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


def test_a_thread_that_collects_its_owner_at_its_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It shuts its own threads down before `submit` has returned, and does not wait for itself."""
    start, is_shut_down = threading.Thread.start, threading.Event()
    threads = ReadingThreads(2, "test")

    def shut_down() -> None:
        threads.shutdown(cancel_futures=True)
        is_shut_down.set()

    def start_and_wait(thread: threading.Thread) -> None:
        start(thread)
        assert is_shut_down.wait(LONG_S)

    monkeypatch.setattr(threading.Thread, "start", start_and_wait)
    assert threads.submit(shut_down).result(LONG_S) is None


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
    """Tasks share some threads, and their results are in order."""
    threads = set()

    def task(number: int) -> int:
        threads.add(threading.current_thread())
        return number

    found = in_threads([partial(task, number) for number in range(3000)], "test")
    assert found == list(range(3000))
    assert len(threads) <= 32


def test_no_threads_within_threads() -> None:
    """A task runs its own tasks one after another."""
    most = 0

    def inner(number: int) -> int:
        nonlocal most
        most = max(most, sum(t.name == "nested" for t in threading.enumerate()))
        return number

    def outer(number: int) -> list[int]:
        return in_threads([partial(inner, number * 100 + k) for k in range(100)], "nested")

    found = in_threads([partial(outer, number) for number in range(50)], "nested")
    assert found == [[number * 100 + k for k in range(100)] for number in range(50)]
    assert most <= 32


def test_an_error_ends_the_tasks_that_have_not_begun() -> None:
    """It is raised though the first task has not ended; that one is waited for a moment."""
    is_over, num_begun = threading.Event(), 0

    def task(number: int) -> None:
        nonlocal num_begun
        num_begun += 1
        if number == 0:
            is_over.wait(LONG_S)
        elif number == 1:
            raise ZeroDivisionError
        time.sleep(0.001)

    with pytest.raises(ZeroDivisionError):
        in_threads([partial(task, number) for number in range(10**5)], "test")
    is_over.set()
    assert num_begun < 10**5


def test_any_error_of_a_task_is_raised() -> None:
    """Also one that queues raise."""

    def empty() -> None:
        raise queue.Empty

    with pytest.raises(queue.Empty):
        in_threads([empty, empty], "test")
