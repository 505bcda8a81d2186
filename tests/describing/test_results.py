"""Results of tasks come as soon as they are there, and are not kept."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from wids.describing.results import results


class Result:
    """Something that can be watched."""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


def test_results_are_forgotten(pool: ThreadPoolExecutor) -> None:
    """Memory does not grow with the tasks: no result is alive after the next one was asked for."""
    alive: weakref.WeakSet[Result] = weakref.WeakSet()

    def made(_: int) -> Result:
        result = Result()
        alive.add(result)
        return result

    found = []
    for task, result in results(pool, made, range(1000)):
        found.append(task)
        if task == 0:
            first = weakref.ref(result)
    del result
    gc.collect()

    assert sorted(found) == list(range(1000))
    assert first() is None
    assert not alive


def test_results_come_before_an_error(pool: ThreadPoolExecutor) -> None:
    """What has finished is passed on, the error is raised, and the rest is not begun."""
    begun = []
    others_wait = threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        if number == 0:
            raise ValueError("task 0")
        if number > 1:
            others_wait.wait(10)
        return number

    found: list[tuple[int, int]] = []
    with pytest.raises(ValueError, match="task 0"):
        found.extend(results(pool, work, range(100)))
    others_wait.set()
    pool.shutdown()

    assert found in ([], [(1, 1)])
    assert len(begun) < 10


def test_running_tasks_are_watched(pool: ThreadPoolExecutor) -> None:
    """While tasks run, the caller sees which ones, and none that waits."""
    seen: list[list[int]] = []
    was_seen = threading.Event()

    def watch(running: list[int]) -> None:
        seen.append(running)
        was_seen.set()

    found = dict(results(pool, lambda _: was_seen.wait(10), range(5), watch))

    assert set(found) == set(range(5))
    assert seen[0] == [0, 1]
