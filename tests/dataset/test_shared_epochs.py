"""The epoch that the workers of a DataLoader share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, raises, write_shards
from torch.utils.data._utils import worker as torch_worker

import wids
from wids.dataset.streaming import SharedEpochs
from wids.order.elastic import EpochPlace
from wids.order.passes import Epochs


def as_workers(numbers: Iterable[int], num_workers: int, work: Callable[[int], bool]) -> bool:
    """Do something in a process that is one worker after the other, as torch makes it one."""

    def loop() -> bool:
        for number in numbers:
            torch_worker._worker_info = torch_worker.WorkerInfo(
                id=number, num_workers=num_workers, seed=0, dataset=None
            )
            if not work(number):
                return False
        return True

    return in_child(loop)


@pytest.mark.parametrize("num_workers", [1, 3, 300])
def test_an_epoch_is_complete_when_the_last_worker_is(num_workers: int) -> None:
    """Each worker has a number of its own, however many there are."""
    epochs = SharedEpochs(Epochs(), EpochPlace(0))

    def complete(number: int) -> bool:  # noqa: ARG001 - that of the worker
        before = (epochs.own_number, epochs.number, epochs.num_passes)
        epochs.complete(0)
        return before == (0, 0, 0) and epochs.own_number == 1

    assert as_workers(range(num_workers - 1), num_workers, complete)
    assert (epochs.number, epochs.num_passes) == (0, 0)
    assert as_workers([num_workers - 1], num_workers, complete)
    assert (epochs.number, epochs.num_passes) == (1, 1)


def test_each_worker_is_restored_to_its_own_epoch() -> None:
    """What one worker notes does not change that of another (VIEW-15)."""
    epochs = SharedEpochs(Epochs(), EpochPlace(0))

    def restore(number: int) -> bool:
        epochs.note_restored(number, number + 1)
        return True

    assert as_workers(range(300), 300, restore)
    assert as_workers(range(300), 300, lambda number: epochs.own_number == number + 1)
    assert epochs.restored == (299, 1)


def test_more_workers_than_a_stream_can_have(tmp_path: Path) -> None:
    """The error states how many there can be; nothing is read."""
    with wids.ShardListDataset(write_shards(tmp_path, [5])) as dataset:
        stream = wids.stream(dataset, wids.ChunkedSampler(dataset, shuffle=False))

        def read(_: int) -> bool:
            with raises(ValueError, "at most 1,024 workers", "found 1,025", "num_workers"):
                next(iter(stream))
            return dataset.get_stats() == (0, 0)

        assert as_workers([3], 1025, read)
        assert as_workers([3], 1024, lambda _: next(iter(stream))["__index__"] == 3)


class Numbers:
    """A dataset whose samples are their indices."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


class Workers:
    """Three workers of a loader in this process, which asks them in turn as torchdata does."""

    def __init__(self, num_samples: int, states: list[Any] | None = None, first: int = 0) -> None:
        stream = wids.stream(Numbers(), wids.ChunkedSampler(range(num_samples), chunksize=2))
        self.streams = [copy(stream) for _ in range(3)]
        self.first = first
        for number, each in enumerate(self.streams):
            each.sampler = copy(stream.sampler)
            if states is not None:
                self.act_as(number)
                each.load_state_dict(states[number])
        self.states = [self.state(number) for number in range(3)]

    def act_as(self, number: int) -> None:
        """Make this process one of the workers."""
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=number, num_workers=3, seed=0, dataset=None
        )

    def state(self, number: int) -> Any:
        """Return the state of a worker."""
        self.act_as(number)
        return self.streams[number].state_dict()

    def read(self) -> Iterator[tuple[int, int]]:
        """Yield the samples of a pass, each with the worker that is asked next."""
        left = {(self.first + number) % 3: None for number in range(3)}
        passes = {number: iter(self.streams[number]) for number in left}
        self.states = [self.state(number) for number in range(3)]
        self.first = 0
        while left:
            for number in list(left):
                self.act_as(number)
                sample = next(passes[number], None)
                if sample is None:
                    del left[number]
                else:
                    self.states[number] = self.state(number)
                    yield sample, (number + 1) % 3


@pytest.mark.parametrize("num_samples", [1, 2, 4, 6, 7])
def test_workers_resume_at_each_sample(num_samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they yield what is left, in order, and then the next epoch (VIEW-13, VIEW-15)."""
    monkeypatch.setattr(torch_worker, "_worker_info", None)
    workers = Workers(num_samples)
    order, saved = list[int](), [(list(workers.states), 0)]
    for _ in range(3):
        for sample, following in workers.read():
            order.append(sample)
            saved.append((list(workers.states), following))
    for number, (states, following) in enumerate(saved[: 2 * num_samples]):
        resumed = Workers(num_samples, states, following)
        left = [sample for _ in range(2) for sample, _ in resumed.read()]
        end = (number // num_samples + 2) * num_samples
        assert left == order[number:end], (number, following)
