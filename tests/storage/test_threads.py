"""Threads that read: what a machine without free threads leaves of them."""

from __future__ import annotations

import threading

import pytest

from wids.storage.reading_threads import ReadingThreads, in_threads


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
    started[0].join(5)
    assert [thread.is_alive() for thread in started] == [False]
