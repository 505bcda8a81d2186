"""Prefetchers around batches, users' own samplers, and datasets in torch's wrappers."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import need, raises
from events import LONG_S, wait_for
from loopback import Server
from served_shards import LENGTH, NUM_SAMPLES, NUM_SHARDS, identity, serve_shards
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    WeightedRandomSampler,
)

import wids
from wids.dataset import fetch_window

BATCH = 10


@pytest.fixture
def shards(tmp_path: Path, server: Server) -> list[dict[str, Any]]:
    """Eight shards of 25 samples."""
    return serve_shards(tmp_path, server)


@pytest.fixture
def dataset(shards: list[dict[str, Any]]) -> Iterator[wids.ShardListDataset]:
    """The dataset of these shards."""
    with wids.ShardListDataset(shards, access="download") as dataset:
        yield dataset


def texts(loader: Any) -> list[str]:
    """Return the texts of all samples of a loader."""
    return [sample[".txt"] for batch in loader for sample in batch]


def by_batches(dataset: Any, batches: Any, num_workers: int = 0, **others: Any) -> Any:
    """Return a loader of batches that are fetched ahead."""
    sampler = wids.Prefetcher(batches, dataset, **others)
    return DataLoader(dataset, batch_sampler=sampler, num_workers=num_workers, collate_fn=identity)


EVERY_TEXT = Counter(f"text {n}" for n in range(NUM_SAMPLES))
EVERY_SHARD = Counter(f"/{n}.tar" for n in range(NUM_SHARDS))


# Batches


class InPairs(Sampler[list[int]]):
    """A user's own sampler of batches: each pair of shards together."""

    def __iter__(self) -> Iterator[list[int]]:
        for first in range(0, NUM_SAMPLES, 2 * LENGTH):
            both = range(first, first + LENGTH), range(first + LENGTH, first + 2 * LENGTH)
            yield from map(list, zip(*both, strict=True))


def buckets(dataset: wids.ShardListDataset) -> wids.BucketBatchSampler:
    """Return batches of three buckets."""
    sampler = wids.ShardListSampler(dataset)
    return wids.BucketBatchSampler(sampler, [n % 3 for n in range(NUM_SAMPLES)], 8)


def packed(dataset: wids.ShardListDataset) -> wids.PackedBatchSampler:
    """Return batches within a budget."""
    lengths = [n % 3 + 1 for n in range(NUM_SAMPLES)]
    return wids.PackedBatchSampler(wids.ShardListSampler(dataset), lengths, 16, window=8)


@pytest.mark.parametrize(
    ("make", "num_workers"),
    [
        pytest.param(buckets, 0, id="buckets"),
        pytest.param(buckets, 2, id="buckets, in workers"),
        pytest.param(packed, 0, id="packed"),
        pytest.param(
            lambda dataset: BatchSampler(wids.ShardListSampler(dataset), BATCH, drop_last=False),
            0,
            id="of wids' sampler",
        ),
        pytest.param(
            lambda dataset: BatchSampler(SequentialSampler(dataset), BATCH, drop_last=False),
            2,
            id="of torch's sampler, in workers",
        ),
        pytest.param(lambda _: InPairs(), 0, id="own"),
    ],
)
def test_batches_are_fetched_ahead(
    make: Any, num_workers: int, dataset: wids.ShardListDataset, server: Server
) -> None:
    """Each sample is read once and each shard fetched once, around any sampler of batches."""
    assert Counter(texts(by_batches(dataset, make(dataset), num_workers))) == EVERY_TEXT
    assert Counter(server.requests) == EVERY_SHARD


def test_the_next_shards_are_fetched_while_batches_of_one_are_read(
    dataset: wids.ShardListDataset, server: Server
) -> None:
    """Not only are batches passed on: their shards are ordered ahead."""
    batches = BatchSampler(SequentialSampler(dataset), BATCH, drop_last=False)
    loader = iter(by_batches(dataset, batches))
    next(loader)
    wait_for(lambda: len(server.requests) == NUM_SHARDS)


def test_the_state_is_that_of_the_batches(dataset: wids.ShardListDataset) -> None:
    """Looking ahead leaves the state of a sampler of batches alone; epochs are set through it."""
    for make in (
        buckets,
        lambda data: BatchSampler(wids.ChunkedSampler(data, chunksize=30), BATCH, drop_last=False),
    ):
        plain, ahead = make(dataset), wids.Prefetcher(make(dataset), dataset)
        inner = getattr(plain, "set_epoch", None) or plain.sampler.set_epoch
        inner(2)
        ahead.set_epoch(2)
        whole = list(plain)
        assert (list(ahead), len(ahead)) == (whole, len(plain))
        taken = list(islice(ahead, 7))
        state = json.loads(json.dumps(ahead.state_dict()))
        resumed = wids.Prefetcher(make(dataset), dataset)
        resumed.load_state_dict(state)
        assert taken + list(resumed) == whole


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_stateful_dataloader_resumes_batches(
    num_workers: int, dataset: wids.ShardListDataset
) -> None:
    """Torchdata's loader restores the state of a prefetcher around batches, also with workers."""
    need(importlib.util.find_spec("torchdata"), "pip install torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader() -> Any:
        return StatefulDataLoader(
            dataset,
            batch_sampler=wids.Prefetcher(buckets(dataset), dataset),
            num_workers=num_workers,
            collate_fn=identity,
        )

    whole = [texts([batch]) for batch in loader()]
    before, after = loader(), loader()
    done = [texts([batch]) for batch in islice(before, 9)]
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))

    assert done + [texts([batch]) for batch in after] == whole


# Users' own samplers


class Own(Sampler[int]):
    """A user's own sampler, with a state; its order depends on its seed."""

    def __init__(self, dataset: Any, seed: int = 0) -> None:
        self.dataset = dataset
        self.seed = seed
        self.epoch = self.position = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.position = epoch, 0

    def order(self) -> list[int]:
        order: list[int] = np.random.default_rng([self.seed, self.epoch]).permutation(200).tolist()
        return order

    def __iter__(self) -> Iterator[int]:
        for index in self.order()[self.position :]:
            self.position += 1
            yield index
        self.set_epoch(self.epoch + 1)

    def ahead(self) -> Iterator[int]:
        return iter(self.order()[self.position :])

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


def test_own_sampler_with_a_state_is_resumed_exactly(dataset: wids.ShardListDataset) -> None:
    """Its position is where the loader is, however far ahead shards were looked up."""
    for epoch in (0, 3):
        prefetcher = wids.Prefetcher(Own(dataset), dataset)
        prefetcher.set_epoch(epoch)
        indices = iter(prefetcher)
        taken = list(islice(indices, 33))
        state = prefetcher.state_dict()
        assert state == {"epoch": epoch, "position": 33}
        indices.close()  # type: ignore[attr-defined]
        resumed = wids.Prefetcher(Own(dataset), dataset)
        resumed.load_state_dict(state)
        own = Own(dataset)
        own.set_epoch(epoch)
        assert taken + list(resumed) == list(own)
        assert resumed.state_dict() == {"epoch": epoch + 1, "position": 0}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_own_sampler_is_fetched_ahead(
    num_workers: int, dataset: wids.ShardListDataset, server: Server
) -> None:
    """It computes which shards come, and has a state beside."""
    sampler = wids.Prefetcher(Own(dataset), dataset)
    loader = DataLoader(
        dataset, BATCH, sampler=sampler, num_workers=num_workers, collate_fn=identity
    )
    assert Counter(texts(loader)) == EVERY_TEXT
    assert Counter(server.requests) == EVERY_SHARD


class Computed(Sampler[int]):
    """A sampler that computes what comes, and has no state."""

    num_passes = 0

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __iter__(self) -> Iterator[int]:
        self.num_passes += 1
        return iter(range(NUM_SAMPLES))

    def ahead(self) -> Iterator[int]:
        return iter(range(NUM_SAMPLES))


def test_own_sampler_can_compute_what_comes(dataset: wids.ShardListDataset, server: Server) -> None:
    """``ahead()`` is used instead of a second pass."""
    sampler = Computed()
    loader = DataLoader(
        dataset, BATCH, sampler=wids.Prefetcher(sampler, dataset), collate_fn=identity
    )
    batches = iter(loader)
    next(batches)
    wait_for(lambda: len(server.requests) == NUM_SHARDS)
    assert Counter(texts(batches)) + Counter(f"text {n}" for n in range(BATCH)) == EVERY_TEXT
    assert sampler.num_passes == 1


class Stateful(SequentialSampler):
    """A sampler with a state that does not compute what comes."""

    def state_dict(self) -> dict[str, int]:
        return {"position": 0}

    def load_state_dict(self, _: dict[str, int]) -> None:
        pass


@pytest.mark.parametrize("kind", [RandomSampler, SequentialSampler, Stateful])
def test_state_of_a_sampler_that_is_read_ahead(kind: Any, dataset: wids.ShardListDataset) -> None:
    """The error says what the sampler would need."""
    with raises(TypeError, f"{kind.__name__}: expected state_dict and load_state_dict, as wids'"):
        wids.Prefetcher(kind(dataset), dataset).state_dict()
    with raises(TypeError, "and ahead(), which computes what comes"):
        wids.Prefetcher(kind(dataset), dataset).load_state_dict({})
    with raises(TypeError, "Computed: expected state_dict and load_state_dict"):
        wids.Prefetcher(Computed(), dataset).state_dict()


def test_samplers_of_tensors_and_with_replacement(dataset: wids.ShardListDataset) -> None:
    """Whatever yields indices is passed on as it is."""
    drawn = WeightedRandomSampler([1.0] * NUM_SAMPLES, 50)
    assert len(list(wids.Prefetcher(drawn, dataset))) == 50
    tensors: Any = list(torch.arange(NUM_SAMPLES))
    assert list(wids.Prefetcher(tensors, dataset)) == tensors


# torch's wrappers


@pytest.mark.parametrize("num_workers", [0, 2])
def test_subset_is_fetched_ahead(
    num_workers: int, dataset: wids.ShardListDataset, server: Server
) -> None:
    """Indices of a ``Subset`` are mapped to those of the dataset: only its shards are fetched."""
    subset = Subset(dataset, range(60, 140))
    batches = BatchSampler(SequentialSampler(subset), BATCH, drop_last=False)
    loader = by_batches(subset, batches, num_workers)
    assert texts(loader) == [f"text {n}" for n in range(60, 140)]
    assert Counter(server.requests) == Counter(f"/{n}.tar" for n in range(2, 6))


@pytest.fixture
def others(tmp_path: Path, server: Server) -> Iterator[wids.ShardListDataset]:
    """A second dataset, whose shards have other names."""
    with wids.ShardListDataset(serve_shards(tmp_path, server, "b"), access="download") as dataset:
        yield dataset


def test_concatenation_is_fetched_ahead(
    dataset: wids.ShardListDataset, others: wids.ShardListDataset, server: Server
) -> None:
    """The shards of all parts are fetched, also of subsets and parts without shards."""
    plain: Any = [{".txt": "x"}] * 30
    both = ConcatDataset([dataset, plain, Subset(others, range(50, 200)), dataset[25:50]])
    batches = BatchSampler(SequentialSampler(both), BATCH, drop_last=False)
    loader = iter(by_batches(both, batches))
    first = next(loader)
    needed = {*EVERY_SHARD, *(f"/b{n}.tar" for n in range(2, NUM_SHARDS))}
    wait_for(lambda: set(server.requests) == needed)
    expected = [*range(200), *["x"] * 30, *range(50, 200), *range(25, 50)]
    found = texts(chain([first], loader))
    assert found == [text if text == "x" else f"text {text}" for text in expected]
    assert set(Counter(server.requests).values()) == {1}


def test_stack_is_fetched_ahead(
    dataset: wids.ShardListDataset, others: wids.ShardListDataset, server: Server
) -> None:
    """A sample of a ``StackDataset`` is read from a shard of each part."""
    for stack in (StackDataset(dataset, others), StackDataset(a=dataset, b=others)):
        batches = BatchSampler(SequentialSampler(stack), BATCH, drop_last=False)
        loader = iter(by_batches(stack, batches))
        next(loader)
        wait_for(lambda: set(server.requests) == {*EVERY_SHARD, *(f"/b{n}.tar" for n in range(8))})


def test_other_datasets_are_refused() -> None:
    """The error names what is accepted, and what to do."""

    class Mine:
        def __init__(self) -> None:
            self.dataset = wids

    for other in (Mine(), Subset(range(5), [1]), ConcatDataset([range(3)]), [1, 2]):  # type: ignore[arg-type, list-item]
        with raises(TypeError, "dataset: expected a wids.ShardListDataset, or torch's Subset, "):
            wids.Prefetcher(SequentialSampler(range(3)), other)


# When fetching begins


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stops for a second is no loader that pauses."""
    monkeypatch.setattr(fetch_window, "_PAUSE_S", LONG_S)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.usefixtures("no_pause")
def test_batches_that_are_skipped_download_nothing(
    num_workers: int, is_own: bool, dataset: wids.ShardListDataset, server: Server
) -> None:
    """Accelerate's ``skip_first_batches``, as in transformers' Trainer, fetches only what follows.

    Decision 0037: fetching begins when a shard is read.
    """
    need(importlib.util.find_spec("accelerate"), "pip install accelerate")
    from accelerate import skip_first_batches

    sampler: Any = (
        SequentialSampler(dataset) if is_own else wids.ChunkedSampler(dataset, shuffle=False)
    )
    loader = DataLoader(
        dataset,
        batch_size=BATCH,
        sampler=wids.Prefetcher(sampler, dataset),
        num_workers=num_workers,
        collate_fn=identity,
    )
    skipped = 15  # of 20: six shards of eight

    assert texts(skip_first_batches(loader, skipped)) == [f"text {n}" for n in range(150, 200)]

    assert Counter(server.requests) == Counter({"/6.tar": 1, "/7.tar": 1})


def test_the_last_shard_arrives_although_all_indices_were_read(
    dataset: wids.ShardListDataset, server: Server
) -> None:
    """Workers read the last batches when the sampler has ended: what they wait for continues."""
    server.rate_nbytes = 100_000
    batches = wids.Prefetcher(SequentialSampler(dataset[150:]), dataset[150:])
    loader = DataLoader(dataset[150:], BATCH, sampler=batches, num_workers=2, collate_fn=identity)

    assert texts(loader) == [f"text {n}" for n in range(150, 200)]

    assert Counter(server.requests) == Counter({"/6.tar": 1, "/7.tar": 1})


@pytest.mark.usefixtures("no_pause")
def test_skipping_within_batches_of_buckets(dataset: wids.ShardListDataset, server: Server) -> None:
    """The same around a batch sampler."""
    need(importlib.util.find_spec("accelerate"), "pip install accelerate")
    from accelerate import skip_first_batches

    batches = buckets(dataset)
    whole = list(batches)
    batches.set_epoch(0)
    loader = by_batches(dataset, batches)

    found = texts(skip_first_batches(loader, len(whole) - 4))

    assert found == [f"text {n}" for batch in whole[-4:] for n in batch]
    needed = {f"/{n // LENGTH}.tar" for batch in whole[-4:] for n in batch}
    assert Counter(server.requests) == Counter(needed)


def test_a_reader_of_another_dataset_is_noticed_by_its_pause(
    shards: list[dict[str, Any]], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the loader reads another object, fetching begins when it pauses (decision 0037)."""
    monkeypatch.setattr(fetch_window, "_PAUSE_S", 0.1)
    with wids.ShardListDataset(shards) as dataset:
        indices = iter(wids.Prefetcher(SequentialSampler(dataset), dataset))
        next(indices)
        wait_for(lambda: Counter(server.requests) == EVERY_SHARD)
        indices.close()  # type: ignore[attr-defined]
