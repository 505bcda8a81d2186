"""What is counted on the way of one sample, and what it costs."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import write_shards
from served_shards import identity
from torch.utils.data import DataLoader, Dataset

import wids
from wids.storage import stages

NUM_SAMPLES = 40


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[wids.ShardListDataset[Any]]:
    with wids.ShardListDataset(write_shards(tmp_path, [20, 20])) as dataset:
        yield dataset


@pytest.fixture
def _unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests have left, nobody watches this process."""
    monkeypatch.setattr(stages.this_process, "num_watchers", 0)
    monkeypatch.setattr(stages.this_process, "is_child", False)


class Noted(list[float]):
    """Numbers that note how often they are used."""

    num_uses = 0

    def __getitem__(self, at: Any) -> Any:
        self.num_uses += 1
        return super().__getitem__(at)

    def __setitem__(self, at: Any, value: Any) -> None:
        self.num_uses += 1
        super().__setitem__(at, value)


def counted(dataset: Any) -> tuple[float, float]:
    return dataset.stats()["samples"], dataset.get_stats()[0]


@pytest.mark.usefixtures("_unwatched")
def test_one_sample_uses_no_shared_memory(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted exactly, without a look at numbers that other processes have."""
    samples, accesses = counted(dataset)
    list(dataset)  # opens the shards
    noted = []
    with monkeypatch.context() as patch:
        for rows, name in (
            (stages.here, "row"),
            (stages.here, "common"),
            (dataset.reader.accesses.rows, "row"),
        ):
            noted.append(Noted(getattr(rows, name)))
            patch.setattr(rows, name, noted[-1])
        for index in range(NUM_SAMPLES):
            assert dataset[index]["__index__"] == index
        assert len(list(dataset)) == NUM_SAMPLES
    assert sum(numbers.num_uses for numbers in noted) == 0
    assert counted(dataset) == (samples + 3 * NUM_SAMPLES, accesses + 3 * NUM_SAMPLES)


class Single(Dataset[Any]):
    """A program's own dataset, which reads samples one by one."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_that_read_one_by_one_are_counted(dataset: Any, method: str) -> None:
    """Their samples are in the numbers as soon as they were read, and none is missing."""
    dataset[0]
    samples, accesses = counted(dataset)
    loader: Any = DataLoader(
        Single(dataset),
        8,
        num_workers=2 if method == "fork" else 1,
        collate_fn=identity,
        persistent_workers=True,
        multiprocessing_context=method,
    )
    assert sum(map(len, loader)) == NUM_SAMPLES
    assert counted(dataset) == (samples + NUM_SAMPLES, accesses + NUM_SAMPLES)
    dataset[3]
    assert counted(dataset) == (samples + NUM_SAMPLES + 1, accesses + NUM_SAMPLES + 1)


def test_samples_that_are_passed_over_are_counted(tmp_path: Path) -> None:
    """With ``on_error`` too, batches, single samples and passes are counted."""
    with wids.ShardListDataset(write_shards(tmp_path, [20, 20]), on_error="skip") as dataset:
        samples, _ = counted(dataset)
        dataset.__getitems__([3, 30, 3])
        dataset[3]
        list(dataset)
        assert counted(dataset)[0] == samples + 3 + 1 + NUM_SAMPLES


def refuse_first(sample: Any) -> Any:
    if sample["__index__"] < 5:
        raise ValueError("refused")
    return sample


@pytest.mark.usefixtures("_unwatched")
def test_a_copy_counts_for_max_failed(tmp_path: Path) -> None:
    """A dataset that was sent to another program counts single samples for its share."""
    options: Any = {"on_error": "next", "max_failed": 0.1, "transformations": [refuse_first]}
    with wids.ShardListDataset(write_shards(tmp_path, [100]), **options) as dataset:
        sent = pickle.dumps(dataset)
    stages.this_process.num_watchers = 0  # as in another program
    with pickle.loads(sent) as copy:  # noqa: S301 - made here
        with pytest.warns(UserWarning, match="refused"):
            copy[0]
        for index in [*range(1, 100), *range(100), *range(100)]:
            copy[index]
        assert copy.num_failed == 15


@pytest.mark.parametrize("num_steps", [1, 3])
def test_the_clock_is_read_for_batches(
    dataset: Any, monkeypatch: pytest.MonkeyPatch, num_steps: int
) -> None:
    """However many samples and steps a batch has, its stages take a few readings."""
    for _ in range(num_steps - 1):
        dataset = dataset.map(identity)
    times_s: list[float] = []

    def clock() -> float:
        times_s.append(float(len(times_s)))
        return times_s[-1]

    stages.start()
    try:
        for _ in range(2):  # the second batch shows the shares of the steps
            dataset.__getitems__([0])
        monkeypatch.setattr(stages, "perf_counter", clock)
        for indices in ([1], range(20)):
            times_s.clear()
            before = stages.counted()
            dataset.__getitems__(indices)
            found = {name: number - before[name] for name, number in stages.counted().items()}
            assert len(times_s) <= 5
            assert found["samples"] == len(indices)
            assert found["decode_s"] > 0
    finally:
        stages.stop()


def test_a_first_sample_that_is_slow_is_no_measure_of_the_others(
    dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it takes to import modules does not count as the decoding of later samples."""
    now_s = 0.0
    decode = dataset.sample_access.transformations[0]

    def advance(sample: Any) -> Any:
        nonlocal now_s
        now_s += 1.0
        return sample

    class Slow:
        is_first = True

        def __call__(self, sample: Any) -> Any:
            nonlocal now_s
            now_s += 1000.0 if self.is_first else 0.1
            self.is_first = False
            return decode(sample)

    monkeypatch.setattr(stages, "perf_counter", lambda: now_s)
    monkeypatch.setitem(stages.of_type, Slow, stages.DECODE)
    stages.start()
    try:
        timed = dataset.undecoded().map(Slow()).map(advance)
        timed.__getitems__([0])
        before = stages.counted()
        timed.__getitems__(range(20))
        found = {name: number - before[name] for name, number in stages.counted().items()}
    finally:
        stages.stop()
    assert found["decode_s"] == pytest.approx(20 * 0.1)
    assert found["transform_s"] == pytest.approx(20 * 1.0)


def test_replacements_are_not_counted(tmp_path: Path) -> None:
    """Samples are counted that a program asked for, not those that stand in for them."""
    options: Any = {"on_error": "next", "transformations": [refuse_first]}
    with wids.ShardListDataset(write_shards(tmp_path, [100]), **options) as dataset:
        samples, _ = counted(dataset)
        with pytest.warns(UserWarning, match="refused"):
            assert len(dataset.__getitems__(range(20))) == 20
        assert counted(dataset)[0] == samples + 20


@pytest.mark.usefixtures("_unwatched")
def test_a_copy_and_a_worker_know_what_was_read(dataset: Any) -> None:
    """Accesses are never fewer than openings, whoever asks."""
    for index in range(NUM_SAMPLES):
        dataset[index]
    assert dataset.get_stats() == (NUM_SAMPLES, 2)
    assert pickle.loads(pickle.dumps(dataset)).get_stats() == (NUM_SAMPLES, 2)  # noqa: S301
