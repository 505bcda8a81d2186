"""torch DataLoaders over real shards, with real worker processes."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from conftest import need, write_shards, write_tar
from torch.utils.data import BatchSampler, DataLoader

from wids import (
    ChunkedSampler,
    DecodeError,
    DistributedChunkedSampler,
    Prefetcher,
    ShardListDataset,
)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write_shards(tmp_path, [30, 11, 40, 19])


@pytest.mark.parametrize(
    "start_method", [None, "fork", pytest.param("spawn", marks=pytest.mark.long), "forkserver"]
)
def test_workers_read_every_sample(spec: Path, start_method: str | None) -> None:
    """A dataset that was used works in workers of every kind, with default collation."""
    with ShardListDataset(spec) as dataset:
        dataset[3]
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=7,
            sampler=ChunkedSampler(dataset, chunksize=20),
            num_workers=2 if start_method else 0,
            multiprocessing_context=start_method,
        )
        seen = []
        for batch in loader:
            assert batch[".txt"] == [f"text {index}" for index in batch["__index__"].tolist()]
            seen += batch["__index__"].tolist()

    assert sorted(seen) == list(range(100))
    assert seen == list(ChunkedSampler(dataset, chunksize=20))


def test_batches_open_shards_once(spec: Path) -> None:
    """The loader reads whole batches, so that chunks open each shard about once."""
    with ShardListDataset(spec, lru_size=1) as dataset:
        batches = BatchSampler(ChunkedSampler(dataset, chunksize=10), 10, drop_last=False)
        for _ in DataLoader(dataset, batch_sampler=batches):  # type: ignore[var-annotated]
            pass

        assert dataset.get_stats()[1] <= 14, "ten chunks, a few batches across two of them"


def test_error_of_a_worker_keeps_its_type(tmp_path: Path) -> None:
    """The main process gets the library's error, with shard, key, field and index."""
    path = write_tar(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"cat")])
    with ShardListDataset(path) as dataset:
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=2, num_workers=1)

        with pytest.raises(DecodeError, match=r'a\.tar: sample "b" \(index 1\): field "\.cls"'):
            list(loader)


# torchdata's loader with a state


def stateful(
    dataset: ShardListDataset, sampler: Any, num_workers: int, *, drop_last: bool = False
) -> Any:
    need(importlib.util.find_spec("torchdata"), "pip install torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(
        dataset, batch_size=7, sampler=sampler, num_workers=num_workers, drop_last=drop_last
    )


def indices(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["__index__"].tolist() for batch in batches]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own business
@pytest.mark.long
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_stateful_loader_resumes_at_any_batch(spec: Path, num_workers: int, is_ahead: bool) -> None:
    """A restored loader returns the rest of the epoch, then the next epochs."""
    with ShardListDataset(spec) as dataset:

        def loader() -> Any:
            sampler = DistributedChunkedSampler(dataset, num_replicas=2, rank=1, chunksize=20)
            return stateful(
                dataset, Prefetcher(sampler, dataset) if is_ahead else sampler, num_workers
            )

        reference = loader()
        epochs = [indices(reference) for _ in range(3)]
        for stop in random.Random(num_workers).sample(range(1, 8), 4):
            interrupted = loader()
            indices(islice(interrupted, stop))
            state = json.loads(json.dumps(interrupted.state_dict()))
            del interrupted
            resumed = loader()
            resumed.load_state_dict(state)
            assert indices(resumed) == epochs[0][stop:]
            assert indices(resumed) == epochs[1]
            assert indices(resumed) == epochs[2]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_state_after_an_epoch_is_the_next_one(spec: Path) -> None:
    """A state from after the last batch continues with the next epoch, and skips none."""
    with ShardListDataset(spec) as dataset:

        def loader() -> Any:
            return stateful(dataset, ChunkedSampler(dataset, chunksize=20), 2)

        reference = loader()
        epochs = [indices(reference) for _ in range(3)]
        for count in (len(epochs[0]), None):
            interrupted = loader()
            indices(islice(interrupted, count))
            resumed = loader()
            resumed.load_state_dict(interrupted.state_dict())
            assert indices(resumed) == epochs[1]
            assert indices(resumed) == epochs[2]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_state_of_a_loader_goes_to_other_ranks(spec: Path) -> None:
    """A state that one of two ranks saved is resumed by one process, or by four."""
    with ShardListDataset(spec) as dataset:

        def loaders(num_replicas: int) -> list[Any]:
            return [
                stateful(
                    dataset,
                    DistributedChunkedSampler(
                        dataset, num_replicas=num_replicas, rank=rank, num_canonical=4
                    ),
                    0,
                )
                for rank in range(num_replicas)
            ]

        for num_replicas in (1, 2, 4):
            before, after = loaders(2), loaders(num_replicas)
            done = [index for loader in before for b in indices(islice(loader, 2)) for index in b]
            for loader in after:
                loader.load_state_dict(before[0].state_dict())
                done += [index for batch in indices(loader) for index in batch]
            assert sorted(done) == list(range(100))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_epochs_that_are_set_are_complete(spec: Path, num_workers: int, drop_last: bool) -> None:
    """A loader restores inside ``iter()``; an epoch that was set before starts at its beginning.

    With ``drop_last`` the sampler is not at its end after the last batch, and yet the next epoch,
    which the training loop sets, is a full one.
    """
    with ShardListDataset(spec) as dataset:

        def loader() -> Any:
            sampler = ChunkedSampler(dataset, chunksize=20)
            return stateful(dataset, sampler, num_workers, drop_last=drop_last)

        reference = loader()
        epochs = []
        for epoch in range(3):
            reference.sampler.set_epoch(epoch)
            epochs.append(indices(reference))
        for count in (3, len(epochs[0])):
            interrupted = loader()
            interrupted.sampler.set_epoch(0)
            indices(islice(interrupted, count))
            resumed = loader()
            resumed.load_state_dict(interrupted.state_dict())
            for epoch in (1, 2):
                resumed.sampler.set_epoch(epoch)
                assert indices(resumed) == epochs[epoch]
