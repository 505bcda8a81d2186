"""Timed loops inside timed loops, and blocks that cannot begin."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import write_shards
from torch.utils.data import DataLoader

import wids
from wids.dataset.benchmark import benchmark
from wids.storage import stages
from wids.storage.shared_numbers import SharedNumber


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[wids.ShardListDataset[Any]]:
    with wids.ShardListDataset(write_shards(tmp_path, [6])) as dataset:
        yield dataset


class Inner(DataLoader[Any]):
    """A loader that reads by that of its base, as those of accelerate do."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


def test_a_batch_counts_once(dataset: Any) -> None:
    """Where timed loaders call each other, the outermost counts."""
    train, other = Inner(dataset, batch_size=2), DataLoader(dataset, batch_size=2)
    with wids.timings(train) as timings, wids.timings(other):
        for _ in train:
            pass
    assert timings.times().num_batches == 3


class ReadOnly(DataLoader[Any]):
    """A loader whose collate function cannot be replaced."""

    @property
    def collate_fn(self) -> Any:
        return wids.collate

    @collate_fn.setter
    def collate_fn(self, value: Any) -> None:
        if value is not None and value is not wids.collate:
            raise AttributeError("collate_fn is read-only")


def test_a_block_leaves_nothing_behind(dataset: Any) -> None:
    """After a block, also one around an odd loader, its class is as before; nothing is timed."""
    before = ReadOnly.__iter__
    with wids.timings(ReadOnly(dataset, batch_size=2, collate_fn=wids.collate)):
        pass
    assert ReadOnly.__iter__ is before
    assert not stages.here.common[0]


def read_twice() -> None:
    for _ in range(2):
        stages.timed(stages.READ, int)


def test_time_between_batches_of_ended_workers_is_not_of_the_loop(dataset: Any) -> None:
    """It stays that of workers."""
    with wids.timings(DataLoader(dataset)) as timings:
        worker = multiprocessing.get_context("fork").Process(target=read_twice)
        worker.start()
        worker.join()
        assert timings.times().seconds["between"] > 0


def test_setting_a_number_shows_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a number is set, also to what it is, no process reads another one."""
    number = SharedNumber(7)
    number.share()
    number.set(7)
    seen: list[int] = []
    common, table = number.common, list(number._table)

    class Watched:
        """Memory that notes the number after each write."""

        def __setitem__(self, key: Any, value: Any) -> None:
            common[key] = value
            seen.append(number.value)

        def __getitem__(self, key: Any) -> Any:
            return common[key]

        def __len__(self) -> int:
            return len(common)

    monkeypatch.setattr(number, "common", Watched())
    for value in (7, 9):
        number.set(value)
    assert seen == [7, 9]
    assert list(number._table)[len(common) :] == table[len(common) :]  # nothing else is written


def test_a_benchmark_of_tuples(dataset: Any) -> None:
    """Tuples are collated into lists of tensors, which are batches."""
    view = dataset.map(lambda sample: (int(sample["__index__"]), 1.0))
    (run,) = benchmark(view, batch_size=2, num_workers=[0], seconds=0.2).runs
    assert run.is_collated
