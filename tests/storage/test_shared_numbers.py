"""A number that processes and their threads add to."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import sys
import threading
from types import FrameType
from typing import Any

import pytest
from conftest import in_child

from wids.storage.shared_numbers import SharedArray, SharedNumber

_TIMES = 300
_tracing = threading.Lock()


def trace(frame: FrameType, event: str, arg: object) -> Any:  # noqa: ARG001 - Python's signature
    """Let another thread run between any two steps of `add`, as free-threaded Pythons do."""
    frame.f_trace_opcodes = frame.f_code is SharedNumber.add.__code__
    return trace


def add_from_threads(number: SharedNumber) -> None:
    """Add from four threads at once."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=add_often, args=(number,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)


def add_often(number: SharedNumber) -> None:
    with _tracing:  # Python 3.10 refuses two threads that do this at once
        sys.settrace(trace)
    for _ in range(_TIMES):
        number.add(1)


def test_no_count_of_a_thread_is_lost() -> None:
    """Threads of one process may add at the same time."""
    number = SharedNumber(3)
    add_from_threads(number)
    assert number.value == 3 + 4 * _TIMES


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_no_count_of_a_process_is_lost(method: str) -> None:
    """The threads of a process that was forked or spawned add to the same number."""
    number = SharedNumber()
    process = multiprocessing.get_context(method).Process(target=add_from_threads, args=(number,))
    process.start()
    add_from_threads(number)
    process.join()
    assert process.exitcode == 0
    assert number.value == 8 * _TIMES


@pytest.mark.long
def test_a_fork_while_a_thread_adds() -> None:
    """The child adds too, whatever the threads of its parent did at that moment."""
    number = SharedNumber()
    thread = threading.Thread(target=add_from_threads, args=(number,))
    thread.start()
    for _ in range(20):
        assert in_child(lambda: number.add(1) is None)
    thread.join()
    assert number.value == 4 * _TIMES + 20


def _set(number: SharedNumber, begun: Any) -> None:
    begun.wait()
    for value in range(_TIMES):
        number.set(value)


def test_processes_set_a_number_together() -> None:
    """Ranks that set the same epoch at the same time all read that one."""
    number = SharedNumber(5)
    context = multiprocessing.get_context("fork")
    begun = context.Barrier(2)
    processes = [context.Process(target=_set, args=(number, begun)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert number.value == _TIMES - 1
    number.add(2)
    assert number.value == pickle.loads(pickle.dumps(number)).value == _TIMES + 1  # noqa: S301


def _values(numbers: list[SharedNumber], other: Any, found: Any) -> None:
    for number in numbers:
        number.add(1)
    with other:
        found.put(other.value)


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.long), "forkserver"])
def test_other_shared_memory_is_passed_too(method: str) -> None:
    """A process that is started takes any number of them, and the program's own shared values."""
    context = multiprocessing.get_context(method)
    other, found = context.Value("i", 7), context.Queue()
    numbers = [SharedNumber(n) for n in range(3)]
    process = context.Process(target=_values, args=(numbers, other, found))
    process.start()
    assert found.get(timeout=60) == 7
    process.join(60)
    assert [number.value for number in numbers] == [1, 2, 3]


@pytest.mark.parametrize("kind", ["B", "q"])
def test_a_copy_of_an_array_is_independent(kind: str) -> None:
    """A pickle, and a copy in this process, have the integers of that moment and share none."""
    array = SharedArray(kind, 3)
    array.values[1] = 7
    copies = [copy.copy(array), copy.deepcopy(array), pickle.loads(pickle.dumps(array))]  # noqa: S301
    array.values[0] = 9
    assert [(each.kind, list(each.values)) for each in copies] == [(kind, [0, 7, 0])] * 3
    assert list(SharedArray(kind, [1, 2]).values) == [1, 2]


@pytest.mark.long
def test_processes_share_an_array() -> None:
    """A spawned process writes where this one reads."""
    array = SharedArray("q", 2)
    process = multiprocessing.get_context("spawn").Process(target=_write, args=(array,))
    process.start()
    process.join()
    assert list(array.values) == [0, 5]


def _write(array: SharedArray) -> None:
    array.values[1] = 5


def test_a_process_without_memory_to_share_has_its_own_row() -> None:
    """A fork where there is none, or no descriptor for it, goes on with counts of its own."""
    number = SharedNumber(3)
    number.leave([4.0])
    assert number.row_at(17) is number.row
