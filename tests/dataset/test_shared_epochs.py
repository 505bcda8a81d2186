"""The epoch that the workers of a DataLoader share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

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
        before = (epochs.number, epochs.num_passes)
        epochs.begin(EpochPlace(0))
        epochs.complete()
        return before == (0, 0)

    assert as_workers(range(num_workers - 1), num_workers, complete)
    assert (epochs.number, epochs.num_passes) == (0, 0)
    assert as_workers([num_workers - 1], num_workers, complete)
    assert (epochs.number, epochs.num_passes) == (1, 1)


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
