"""What reading costs is counted by stages, in all processes of a program."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from wids.storage import stages


@pytest.fixture
def counting() -> Iterator[None]:
    """Count seconds."""
    stages.start()
    try:
        yield
    finally:
        stages.stop()


def spent(before: dict[str, float]) -> dict[str, float]:
    """Return what was counted since."""
    return {name: value - before[name] for name, value in stages.counted().items()}


def busy(seconds: float) -> None:
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        pass


def decode_inside() -> None:
    busy(0.01)
    with stages.nested(stages.DECODE):
        busy(0.02)
    busy(0.01)


@pytest.mark.usefixtures("counting")
def test_a_nested_stage_counts_once() -> None:
    """The seconds of a nested stage are not those of the outer one too, and their sum is all."""
    before, start_s = stages.counted(), time.perf_counter()
    stages.timed(stages.READ, decode_inside)
    all_s, found = time.perf_counter() - start_s, spent(before)
    assert found["decode_s"] >= 0.02
    assert found["read_s"] >= 0.02
    assert found["decode_s"] + found["read_s"] <= all_s


def test_nothing_is_timed_while_nobody_asks() -> None:
    """Without `start`, no second is counted, and a function is called as it is."""
    before = stages.counted()
    assert stages.timed(stages.READ, int, "5") == 5
    with stages.nested(stages.FETCH):
        pass
    assert not any(spent(before).values())


@pytest.mark.usefixtures("counting")
def test_a_thread_that_reads_for_another_counts_nothing() -> None:
    """The thread that waits for it counts the time, and no stage is in another thread."""
    before = stages.counted()

    def read() -> None:
        thread = threading.Thread(target=decode_inside)
        with stages.nested(stages.FETCH):
            thread.start()
            thread.join()

    stages.timed(stages.READ, read)
    found = spent(before)
    assert found["decode_s"] == 0
    assert found["fetch_s"] >= 0.04


@pytest.mark.usefixtures("counting")
def test_what_comes_between_reads_is_counted_apart() -> None:
    """The time of a thread between two batches is no stage of reading; nor is that of a pause."""
    stages.timed(stages.READ, busy, 0.001)
    before = stages.counted()
    busy(0.02)
    stages.timed(stages.READ, busy, 0.001)
    assert spent(before)["between_s"] >= 0.02
    before = stages.counted()
    stages.start()  # as another block would, after a pause
    stages.stop()
    busy(0.02)
    stages.timed(stages.READ, busy, 0.001)
    assert spent(before)["between_s"] == 0


class Passed:
    """Carries the numbers to a process, as a dataset does."""

    def __call__(self) -> None:
        stages.count(stages.SAMPLES, 3)
        stages.timed(stages.COLLATE, busy, 0.01)

    def __getstate__(self) -> object:
        return {"stages": stages.passed_stages()}

    def __setstate__(self, state: dict[str, object]) -> None:
        stages.join_stages(state["stages"])  # type: ignore[arg-type]


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_processes_count_together(method: str) -> None:
    """What processes counted stays when they end, and a copy made by hand does not count here."""
    before = stages.counted()
    context = multiprocessing.get_context(method)
    for _ in range(2):
        process = context.Process(target=Passed())
        process.start()
        process.join()
        assert process.exitcode == 0
    found = spent(before)
    assert found["samples"] == 6
    assert found["collate_s"] >= 0.02
    assert pickle.loads(pickle.dumps(Passed())) is not None  # noqa: S301 - our own
    stages.count(stages.SAMPLES)
    assert spent(before)["samples"] == 7


def test_ranks_of_one_parent_count_apart() -> None:
    """A process counts those that it has started, no others of its parent; that counts neither."""
    before = stages.counted()
    context = multiprocessing.get_context("fork")
    found: Any = context.SimpleQueue()

    def rank(number: int) -> None:
        own = stages.counted()
        for _ in range(2):
            worker = context.Process(target=stages.count, args=(stages.SAMPLES, number))
            worker.start()
            worker.join()
        found.put(stages.counted()["samples"] - own["samples"])

    for number in (10, 20):
        process = context.Process(target=rank, args=(number,))
        process.start()
        assert found.get() == 2 * number
        process.join()
    assert spent(before)["samples"] == 0


class Step:
    """A transformation that moves a clock by its seconds."""

    def __init__(self, clock: list[float], seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds

    def __call__(self, sample: int) -> int:
        self.clock[0] += self.seconds
        return sample


class Decoding(Step):
    """The same, which counts as decoding."""


def by(steps: Any) -> Any:
    """Return a callable that takes a sample through steps."""
    return lambda sample: [step(sample) for step in steps][-1]


@pytest.mark.usefixtures("counting")
def test_steps_of_a_batch_are_split_as_those_of_some_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time of decoding and of other transformations adds up, though few samples show it."""
    clock, samples = [0.0], list(range(4))
    monkeypatch.setattr(stages, "perf_counter", lambda: clock[0])
    monkeypatch.setitem(stages.of_type, Decoding, stages.DECODE)
    steps, before = [Decoding(clock, 3), Step(clock, 1)], stages.counted()
    for _ in range(2):
        made = stages.timed(stages.READ, stages.timed_steps, steps, by(steps), by, samples)
        assert made == samples
    found = spent(before)
    assert found["decode_s"] == pytest.approx(8 * 3)
    assert found["transform_s"] == pytest.approx(8)
    assert found["read_s"] == found["between_s"] == 0


def test_nothing_is_lost_when_a_row_is_taken_again() -> None:
    """What ended processes have counted stays, and is not that of the next one in their row."""
    before = stages.counted()
    context = multiprocessing.get_context("fork")
    found: Any = context.SimpleQueue()

    def worker() -> None:
        stages.count(stages.SAMPLES)
        found.put(stages.counted()["samples"])

    process = context.Process(target=worker)
    process.start()
    process.join()
    with pytest.MonkeyPatch.context() as patch:
        # The id of a later process, modulo the number of rows.
        patch.setattr(os, "getpid", lambda: (process.pid or 0) + 509)
        other = context.Process(target=worker)
        other.start()
        other.join()
    assert [found.get(), found.get()] == [1, 1]
    assert spent(before)["samples"] == 2


def test_a_worker_never_takes_the_row_of_its_parent() -> None:
    """Both add to their rows at the same time, and would lose numbers in one."""
    context = multiprocessing.get_context("fork")
    found: Any = context.SimpleQueue()
    stages.here.share()
    own = os.getpid()

    def worker() -> None:
        stages.here.row[stages.READ] += 1  # seconds that nobody else counts
        found.put(stages.counted()["read_s"])

    before = list(stages.here.row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: own + 509)
        process = context.Process(target=worker)
        process.start()
        process.join()
    assert found.get() == 1
    assert list(stages.here.row) == before
