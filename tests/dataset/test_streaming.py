"""`wids.stream`: the rank's order as an iterable, shared by workers, with a state."""

from __future__ import annotations

import doctest
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import optional, raises, write_shards
from events import wait_for
from torch.utils.data import DataLoader

import wids
from wids import StateError
from wids.dataset import streaming

# The machine may have fewer processors than a test has workers.
LONG = pytest.mark.long
SPAWNED = pytest.param(2, "spawn", True, marks=LONG)
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[wids.ShardListDataset]:
    """Classes of 500 samples in 7 shards."""
    spec = write_shards(tmp_path, [70, 80, 60, 75, 65, 90, 60])
    with wids.ShardListDataset(spec, fields=["cls"], verify="never") as dataset:
        yield dataset


def indices(samples: Any) -> list[int]:
    return [sample["__index__"] for sample in samples]


def batches(loader: Any) -> list[list[int]]:
    return [batch["__index__"].tolist() for batch in loader]


def sampler(dataset: Any, **options: Any) -> wids.ChunkedSampler:
    return wids.ChunkedSampler(dataset, seed=3, chunksize=50, **options)


@pytest.mark.parametrize(
    ("num_workers", "batch_size"),
    [(0, 1), (0, 16), (2, 16), *(pytest.param(n, 1, marks=LONG) for n in (1, 2, 3))],
)
def test_batches_are_those_of_the_map_style_loader(
    dataset: wids.ShardListDataset, num_workers: int, batch_size: int
) -> None:
    """With the same batch size the order is the loader's, for each number of workers (VIEW-13)."""
    expected = batches(DataLoader(dataset, batch_size=batch_size, sampler=sampler(dataset)))
    stream = wids.stream(dataset, sampler(dataset), batch_size=batch_size)
    loader = DataLoader(stream, batch_size=batch_size, num_workers=num_workers)
    assert len(loader) == len(expected)
    assert batches(loader) == expected


@pytest.mark.parametrize(
    ("num_workers", "context", "persistent"),
    [(0, None, False), (2, "fork", False), (2, "fork", True), SPAWNED],
)
def test_epochs_advance_and_can_be_set(
    dataset: wids.ShardListDataset, num_workers: int, context: str | None, persistent: bool
) -> None:
    """Full passes advance the epoch; ``set_epoch`` fixes it, in all workers."""
    expected = []
    for epoch in range(6):
        reference = sampler(dataset)
        reference.set_epoch(epoch)
        expected.append(list(reference))
    stream = wids.stream(dataset, own := sampler(dataset), batch_size=20)
    loader = DataLoader(
        stream,
        batch_size=20,
        num_workers=num_workers,
        multiprocessing_context=context,
        persistent_workers=persistent,
    )
    passes = [list(itertools.chain(*batches(loader))) for _ in range(3)]
    assert passes == expected[:3]
    left_early = iter(loader)
    assert next(left_early)["__index__"].tolist() == expected[3][:20]
    del left_early
    assert list(itertools.chain(*batches(loader))) == expected[3], "it was not complete"
    stream.set_epoch(5)
    assert list(itertools.chain(*batches(loader))) == expected[5]
    own.set_epoch(1)  # trainers may know only the sampler
    assert list(itertools.chain(*batches(loader))) == expected[1]
    del loader


def test_ranks_stream_their_shares(dataset: wids.ShardListDataset) -> None:
    """Each rank streams what its sampler yields: nothing is split a second time (VIEW-13)."""
    seen = []
    for rank in range(3):
        own = wids.DistributedChunkedSampler(dataset, num_replicas=3, rank=rank, drop_last=True)
        expected = list(own)
        own = wids.DistributedChunkedSampler(dataset, num_replicas=3, rank=rank, drop_last=True)
        stream = wids.stream(dataset, own, batch_size=8)
        streamed = list(itertools.chain(*batches(DataLoader(stream, batch_size=8, num_workers=2))))
        assert streamed == expected
        seen += streamed
    assert len(set(seen)) == len(seen) == 498


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own business
def test_stateful_loader_resumes_at_any_batch(dataset: wids.ShardListDataset) -> None:
    """The batches after a state are those that the interrupted loader would have read (VIEW-15)."""
    stateful = optional("torchdata.stateful_dataloader")

    def loader() -> Any:
        stream = wids.stream(dataset, sampler(dataset), batch_size=30)
        return stateful.StatefulDataLoader(stream, batch_size=30, snapshot_every_n_steps=1)

    whole = loader()
    first, second = batches(whole), batches(whole)
    assert (len(first), len(second)) == (17, 17)
    for consumed in range(1, 17, 4):
        interrupted = loader()
        iterator = iter(interrupted)
        for _ in range(consumed):
            next(iterator)
        state = interrupted.state_dict()
        del iterator, interrupted
        resumed = loader()
        resumed.load_state_dict(state)
        assert batches(resumed) == first[consumed:]
        assert batches(resumed) == second


# 500 samples in batches of 30: the last of 17 is short.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_states_near_the_end_of_an_epoch(dataset: wids.ShardListDataset) -> None:
    """Saved at any of the last batches, or after them, nothing is lost or read twice (VIEW-15)."""
    stateful = optional("torchdata.stateful_dataloader")

    def loader() -> Any:
        stream = wids.stream(dataset, sampler(dataset), batch_size=30)
        return stateful.StatefulDataLoader(stream, batch_size=30)

    epochs = []
    for epoch in range(2):
        reference = sampler(dataset)
        reference.set_epoch(epoch)
        epochs.append(list(reference))
    for consumed in (15, 16, 17, None):
        is_set = consumed != 17  # docs/trainers.md: an incomplete last batch
        interrupted = loader()
        interrupted.dataset.set_epoch(0)
        done = list(itertools.chain(*batches(itertools.islice(interrupted, consumed))))
        resumed = loader()
        resumed.load_state_dict(interrupted.state_dict())
        for epoch in range(1 if len(done) == 500 else 0, 2):
            if is_set:
                resumed.dataset.set_epoch(epoch)
            done += itertools.chain(*batches(resumed))
        assert done == (epochs[0] + epochs[1] if is_set else epochs[0])


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_state_of_workers_is_refused(dataset: wids.ShardListDataset) -> None:
    """Torchdata asks workers for their states; the error says what to pass instead (VIEW-15)."""
    stateful = optional("torchdata.stateful_dataloader")
    stream = wids.stream(dataset, sampler(dataset), batch_size=30)
    loader = stateful.StatefulDataLoader(stream, batch_size=30, num_workers=1)
    with raises(StateError, "found it in a worker", "pass the dataset and the sampler to a"):
        next(iter(loader))


@pytest.mark.usefixtures("forked")  # each pass starts workers
@pytest.mark.parametrize("num_workers", [0, 2])
def test_state_by_hand_is_the_samplers(dataset: wids.ShardListDataset, num_workers: int) -> None:
    """``state_dict(num_consumed)`` in the main process resumes stream or sampler (VIEW-15)."""
    stream = wids.stream(dataset, sampler(dataset), batch_size=30)
    loader = DataLoader(stream, batch_size=30, num_workers=num_workers)
    first = batches(loader)
    iterator = iter(loader)
    second = [next(iterator)["__index__"].tolist() for _ in range(5)]
    state = json.loads(json.dumps(stream.state_dict(num_consumed=150)))
    second += [batch["__index__"].tolist() for batch in iterator]
    assert stream.state_dict(num_consumed=500)["epoch"] == 2
    assert len(first) == len(second) == 17

    plain = sampler(dataset)
    plain.load_state_dict(state)
    assert list(plain) == list(itertools.chain(*second[5:]))

    for workers in (0, 3):
        resumed = wids.stream(dataset, sampler(dataset), batch_size=30)
        resumed.load_state_dict(state)
        loader = DataLoader(resumed, batch_size=30, num_workers=workers)
        assert batches(loader) == second[5:]
        third = list(itertools.chain(*batches(loader)))
        assert sorted(third) == list(range(500))
        assert resumed.state_dict(num_consumed=30)["epoch"] == 2


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_restore_reaches_workers_that_stay(
    dataset: wids.ShardListDataset, num_workers: int
) -> None:
    """Restored between passes, by stream or sampler, the rest is read, also by workers that stay.

    ``set_epoch`` of another epoch clears the position there too (VIEW-15, ORDER-11).
    """
    order = sampler(dataset, num_samples=60)
    stream = wids.stream(dataset, order, batch_size=20)
    loader = DataLoader(
        stream, batch_size=20, num_workers=num_workers, persistent_workers=num_workers > 0
    )
    first = batches(loader)
    reference = sampler(dataset, num_samples=60)
    state = reference.state_dict(20)
    for restored in (stream, order):
        restored.load_state_dict(state)
        assert batches(loader) == first[1:]
    stream.load_state_dict(state)
    stream.set_epoch(1)
    stream.set_epoch(0)
    assert batches(loader) == first


class Gated:
    """80 samples, of which a worker reads the last ones when a file exists."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __getitems__(self, indices: list[int]) -> list[int]:
        if len(indices) < 64:
            wait_for(self.gate.exists)
        return indices


def test_a_pass_that_ends_after_a_restore_does_not_count(tmp_path: Path) -> None:
    """Workers that stay read ahead: what they end then is of the time before (VIEW-15)."""
    order = wids.ChunkedSampler(range(80), chunksize=8, seed=1)
    stream = wids.stream(Gated(tmp_path / "gate"), order, batch_size=4)
    loader: DataLoader[Any] = DataLoader(
        stream, batch_size=4, num_workers=1, persistent_workers=True, prefetch_factor=30
    )
    done = next(iter(loader)).tolist()
    stream.load_state_dict(stream.state_dict(num_consumed=4))
    (tmp_path / "gate").touch()
    rest = [index for batch in loader for index in batch.tolist()]
    assert sorted(done + rest) == list(range(80))
    assert stream.epochs.number == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_is_the_samplers(dataset: wids.ShardListDataset, num_workers: int) -> None:
    """It resumes with other workers, other batches and on other ranks, sample by sample."""
    stream = wids.stream(dataset, sampler(dataset), batch_size=30)
    expected = [sample["__index__"] for sample in stream]
    stream.set_epoch(0)
    for num_read in (7, 64, 130):
        list(itertools.islice(stream, num_read))
        state = json.loads(json.dumps(stream.state_dict()))
        assert state == sampler(dataset).state_dict(num_read) | {"is_fixed": True}
        resumed = wids.stream(dataset, sampler(dataset), batch_size=20)
        resumed.load_state_dict(state)
        loader = DataLoader(resumed, batch_size=20, num_workers=num_workers)
        assert list(itertools.chain(*batches(loader))) == expected[num_read:]
    seen = []
    for rank in range(3):
        own = wids.DistributedChunkedSampler(
            dataset, num_replicas=3, rank=rank, drop_last=True, seed=3, chunksize=50
        )
        other = wids.stream(dataset, own)
        one = wids.DistributedChunkedSampler(
            dataset, num_replicas=1, rank=0, drop_last=True, seed=3, chunksize=50
        )
        alone = wids.stream(dataset, one)
        done = [sample["__index__"] for sample in itertools.islice(alone, 200)]
        other.load_state_dict(alone.state_dict())
        seen += [sample["__index__"] for sample in other]
    assert len(seen) == 300
    assert sorted(done + seen) == list(range(500))


def test_other_loaders_and_samplers_are_refused(dataset: wids.ShardListDataset) -> None:
    """A state of another order, a sampler of batches or of torch, a dataset without batches."""
    stream = wids.stream(dataset, sampler(dataset), batch_size=30)
    next(iter(stream))
    state = stream.state_dict()
    for damaged in (None, 5, {"sampler": state}, {**state, "position": "x"}):
        with raises(StateError, "state"):
            stream.load_state_dict(damaged)  # type: ignore[arg-type]
    with raises(TypeError, "sampler: expected one of wids' samplers of indices", "found range"):
        wids.stream(dataset, range(3))  # type: ignore[arg-type]
    buckets = wids.BucketBatchSampler(sampler(dataset), [0] * 500, 4)
    with raises(TypeError, "samplers of indices", "found BucketBatchSampler"):
        wids.stream(dataset, buckets)  # type: ignore[arg-type]
    with raises(TypeError, "dataset: expected a wids.ShardListDataset, found list"):
        wids.stream([1, 2], sampler(range(2)))  # type: ignore[arg-type]
    with raises(ValueError, "batch_size: expected"):
        wids.stream(dataset, sampler(dataset), batch_size=0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_first_stage_of_a_webdataset_pipeline(tmp_path: Path, num_workers: int) -> None:
    """Webdataset's stages and its loader get the exact order of the rank."""
    wds = optional("webdataset")
    spec = write_shards(tmp_path, [70, 80, 60])
    with wids.ShardListDataset(spec, transformations=[], raw="bytes") as dataset:
        stream = wids.stream(dataset, sampler(dataset), batch_size=16, webdataset=True)
        pipeline = wds.DataPipeline(
            stream, wds.decode(), wds.to_tuple("cls", "txt", "__key__"), wds.batched(16)
        )
        loader = wds.WebLoader(pipeline, batch_size=None, num_workers=num_workers)
        keys = [key for _, _, batch_keys in loader for key in batch_keys]
        labels = [label for labels, _, _ in loader for label in labels.tolist()]
        expected = list(sampler(dataset))
        assert [int(key[1:]) for key in keys] == expected
        second = sampler(dataset)
        second.set_epoch(1)
        assert labels == [index % 10 for index in second]
        sample = next(iter(stream))
        assert (sample["txt"], sample["__url__"]) == (
            f"text {sample['__index__']}".encode(),
            sample["__shard__"],
        )


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the docstring."""
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(streaming).failed == 0
