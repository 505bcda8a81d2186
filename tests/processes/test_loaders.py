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
from conftest import need, raises, write_shards, write_tar
from torch.utils.data import BatchSampler, DataLoader

from wids import (
    BucketBatchSampler,
    ChunkedSampler,
    DecodeError,
    DistributedChunkedSampler,
    PackedBatchSampler,
    Prefetcher,
    ShardListDataset,
    stream,
)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write_shards(tmp_path, [30, 11, 40, 19])


@pytest.mark.parametrize(
    "start_method",
    [
        *(None, "fork"),
        *(pytest.param(method, marks=pytest.mark.long) for method in ("spawn", "forkserver")),
    ],
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

        with raises(DecodeError, 'a.tar: sample "b" (index 1): field ".cls"'):
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


@pytest.mark.long
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


# Other numbers of ranks

CHAIN = (4, 6, 5, 3, 7)
"""Ranks that read three batches each, one job after the other; the last reads to the end."""


def samplers_of(dataset: ShardListDataset, num_replicas: int, kind: str) -> list[Any]:
    ranks = [
        DistributedChunkedSampler(dataset, num_replicas=num_replicas, rank=rank, chunksize=20)
        for rank in range(num_replicas)
    ]
    if kind == "batches":
        buckets = [index % 2 for index in range(len(dataset))]
        return [BucketBatchSampler(rank, buckets, 7) for rank in ranks]
    if kind == "packed":
        lengths = [index % 5 + 1 for index in range(len(dataset))]
        return [PackedBatchSampler(rank, lengths, 18, max_items=7, window=5) for rank in ranks]
    return [Prefetcher(rank, dataset) for rank in ranks] if kind == "ahead" else ranks


def check_each_sample_once(seen: list[int], most_again: int) -> None:
    assert set(seen) == set(range(500))
    assert len(seen) - 500 <= most_again


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("kind", ["indices", "ahead", "batches", "packed"])
@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.long)])
def test_state_of_a_loader_goes_to_other_ranks(tmp_path: Path, num_workers: int, kind: str) -> None:
    """What one rank's loader saved is resumed by any number of ranks, again and again (ORDER-50).

    Workers that run ahead, and a prefetcher that looks ahead, follow the same order.
    """
    need(importlib.util.find_spec("torchdata"), "pip install torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader

    with ShardListDataset(write_shards(tmp_path, [130, 11, 140, 219])) as dataset:
        state: dict[str, Any] = {}
        seen: list[int] = []
        for num_replicas, stop in zip(CHAIN, (3, 3, 3, 3, None), strict=True):
            states = []
            for sampler in samplers_of(dataset, num_replicas, kind):
                options: dict[str, Any] = {"batch_size": 7, "sampler": sampler}
                if kind in ("batches", "packed"):
                    options = {"batch_sampler": sampler}
                loader = StatefulDataLoader(dataset, num_workers=num_workers, **options)
                if state:
                    loader.load_state_dict(state)
                seen += [index for batch in indices(islice(loader, stop)) for index in batch]
                states.append(loader.state_dict())
            state = json.loads(json.dumps(states[1]))
        check_each_sample_once(seen, 6 if kind in ("indices", "ahead") else 6 * 7)


@pytest.mark.parametrize("kind", ["ahead", "stream"])
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_counted_state_goes_to_other_ranks(tmp_path: Path, num_workers: int, kind: str) -> None:
    """The same with a plain loader, whose workers run ahead, and a count (ORDER-50)."""
    with ShardListDataset(write_shards(tmp_path, [130, 11, 140, 219])) as dataset:
        state: dict[str, Any] = {}
        seen: list[int] = []
        for num_replicas, stop in zip(CHAIN, (3, 3, 3, 3, None), strict=True):
            for sampler in samplers_of(dataset, num_replicas, kind):
                options: dict[str, Any] = {"num_workers": num_workers, "batch_size": 7}
                own = stream(dataset, sampler, batch_size=7) if kind == "stream" else sampler
                if state:
                    own.load_state_dict(state)
                loader: DataLoader[Any] = (
                    DataLoader(own, **options)
                    if kind == "stream"
                    else DataLoader(dataset, sampler=own, **options)
                )
                seen += [index for batch in indices(islice(loader, stop)) for index in batch]
                saved = None if stop is None else own.state_dict(num_consumed=3 * 7)
            state = json.loads(json.dumps(saved))
        check_each_sample_once(seen, 6)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.usefixtures("forked")  # each epoch starts workers
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("drop_last", [pytest.param(False, marks=pytest.mark.long), True])
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
