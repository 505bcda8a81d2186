"""Loaders that deal out what a sampler yields, or run ahead, noticed by their calls."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import optional, raises, write_shards
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

import wids


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write_shards(tmp_path, [100, 100])


class Listed(Dataset[int]):
    """The indices of a sampler, as wrappers of Lightning, ignite and catalyst list them."""

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.indices = sampler, list[int]()

    def __len__(self) -> int:
        return len(self.sampler)

    def __getitem__(self, index: int) -> int:
        return self.indices[index]


class Wrapper(DistributedSampler[int]):
    """A sampler that deals out what another one yields."""

    def __iter__(self) -> Iterator[int]:
        listed: Any = self.dataset
        listed.indices = list(listed.sampler)
        return (listed[index] for index in super().__iter__())


def dealt(sampler: Any, num_replicas: int = 2) -> list[int]:
    return list(Wrapper(Listed(sampler), num_replicas=num_replicas, rank=0))


def test_an_order_that_is_picked_apart_is_noticed() -> None:
    """A ``DistributedSampler`` around a shuffled sampler warns, once, with the cure."""
    sampler = wids.ChunkedSampler(range(20))
    with pytest.warns(UserWarning, match=r"Wrapper \(test_callers\) lists the whole") as caught:
        assert len(dealt(sampler)) == len(dealt(sampler)) == 10
    assert len(caught) == 1
    assert "use DistributedChunkedSampler" in str(caught[0].message)


def test_a_share_that_is_dealt_out_again_is_noticed() -> None:
    """The same around the sampler of a rank: most of the dataset would not be read."""
    for shuffle in (True, False):
        sampler = wids.DistributedChunkedSampler(range(20), num_replicas=2, rank=0, shuffle=shuffle)
        with pytest.warns(UserWarning, match="has its share already") as caught:
            assert len(dealt(sampler)) == 5
        assert "most of the dataset is never read; pass it unwrapped" in str(caught[0].message)


class HalfBuilt:
    """A caller whose attributes are missing, or fail, while it is made."""

    __module__ = "accelerate.data_loader"

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    @property
    def __class__(self) -> Any:  # type: ignore[override]  # as accelerate's adapter has it
        raise RuntimeError


@pytest.mark.filterwarnings("ignore:.*has its share already")
def test_a_caller_that_is_half_built_does_no_harm() -> None:
    """Whatever the object of a frame does, looking at it never raises."""
    code = "def __iter__(self, sampler): return list(sampler)"
    for module in ("accelerate.data_loader", "ignite.distributed"):
        names: dict[str, Any] = {"__name__": module}
        exec(code, names)  # noqa: S102 - a function of another module
        for name in ("DataLoaderDispatcher", "BatchSamplerShard", "_MultiProcessingDataLoaderIter"):
            caller = type(name, (HalfBuilt,), {})()
            sampler = wids.DistributedChunkedSampler(range(9), num_replicas=2, rank=0)
            assert len(names["__iter__"](caller, sampler)) == 5
            assert sampler.state_dict()["epoch"] == 1


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_accelerate_prepares_a_stateful_loader(num_workers: int) -> None:
    """A loader of accelerate takes a state before it is itself complete."""
    accelerate = optional("accelerate")
    loaders = optional("torchdata.stateful_dataloader")
    options = {"dispatch_batches": True, "use_stateful_dataloader": True}
    accelerator = accelerate.Accelerator(
        cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(**options)
    )
    data: Any = list(range(20))
    sampler = wids.ChunkedSampler(data)
    loader = loaders.StatefulDataLoader(
        data, batch_size=4, sampler=sampler, num_workers=num_workers
    )
    prepared = accelerator.prepare(loader)
    assert sorted(index for batch in prepared for index in batch.tolist()) == data


# Workers that run ahead


def loader_of(sampler: Any, num_workers: int = 2, **options: Any) -> DataLoader[Any]:
    data: Any = range(200)
    return DataLoader(data, sampler=sampler, num_workers=num_workers, batch_size=8, **options)


@pytest.mark.parametrize(("wrap", "persistent"), [(False, False), (True, True)])
def test_a_state_that_is_ahead_of_training_warns(wrap: bool, persistent: bool, spec: Path) -> None:
    """The warning comes once, inside the loop and after it was left, and names both remedies."""
    with wids.ShardListDataset(spec) as dataset:
        for is_inside in (True, False):
            sampler: Any = wids.ChunkedSampler(dataset)
            sampler = wids.Prefetcher(sampler, dataset) if wrap else sampler
            loader = loader_of(sampler, persistent_workers=persistent)
            with pytest.warns(UserWarning, match="run ahead of training") as caught:  # noqa: PT031
                for number, _ in enumerate(loader):
                    if number == 3:
                        if is_inside:
                            sampler.state_dict()
                        break
                sampler.state_dict()
            # Python 3.12 and later warn of forks too.
            (text,) = [str(each.message) for each in caught if each.category is UserWarning]
            assert "state_dict(num_consumed=num_batches * batch_size)" in text
            assert "torchdata's StatefulDataLoader" in text


def test_the_last_batches_of_an_epoch_are_ahead_too() -> None:
    """Where workers have all of an epoch, and training has not, the state is not the next epoch."""
    sampler = wids.ChunkedSampler(range(200))
    loader = loader_of(sampler)
    with pytest.warns(UserWarning, match="run ahead of training"):  # noqa: PT031 - in a loop
        for number, _ in enumerate(loader):
            if number == 23:
                assert sampler.epoch == 1
                sampler.state_dict()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_states_that_are_exact_do_not_warn() -> None:
    """After a whole pass, without workers, with a count, from torchdata, and before the pass."""
    loaders = optional("torchdata.stateful_dataloader")
    for num_workers in (0, 2):
        sampler = wids.ChunkedSampler(range(200))
        loader = loader_of(sampler, num_workers)
        sampler.state_dict()
        for number, _ in enumerate(loader, 1):
            sampler.state_dict(num_consumed=8 * number)
            if not num_workers:
                assert sampler.state_dict() == sampler.state_dict(num_consumed=8 * number)
        assert sampler.state_dict()["epoch"] == 1
        own = wids.ChunkedSampler(range(200))
        data: Any = range(200)
        stateful = loaders.StatefulDataLoader(
            data, sampler=own, num_workers=num_workers, batch_size=8
        )
        for _ in stateful:
            stateful.state_dict()
        copy.deepcopy(own).state_dict()
        pickle.loads(pickle.dumps(own)).state_dict()  # noqa: S301 - our own


def test_a_count_beyond_the_epoch_is_refused() -> None:
    """The error says what to pass; a last batch that is not full may count as full."""
    sampler = wids.DistributedChunkedSampler(range(43), num_replicas=2, rank=0)
    loader = loader_of(sampler, 0)  # batches of 8, and 22 samples on each rank
    for _ in loader:
        pass
    assert sampler.state_dict(num_consumed=24)["epoch"] == 1
    with raises(
        ValueError,
        "num_consumed: expected at most the 22 samples that the latest pass has on this rank, "
        "found 44; pass what training has used since this pass began: num_batches * batch_size",
    ):
        sampler.state_dict(num_consumed=44)  # that of both ranks
    resumed = wids.DistributedChunkedSampler(range(43), num_replicas=2, rank=0)
    resumed.load_state_dict(sampler.state_dict(num_consumed=16))
    with raises(ValueError, "at most the 6 samples", "found 22"):
        resumed.state_dict(num_consumed=22)
    batches = wids.BucketBatchSampler(wids.ChunkedSampler(range(20)), [0] * 20, 3)
    with raises(ValueError, "at most the 7 batches", "found 8", "began: num_batches, where"):
        batches.state_dict(num_consumed=8)
    stream = wids.stream(Numbers(), wids.ChunkedSampler(range(20)))
    with raises(ValueError, "at most the 20 samples", "found 60"):
        stream.state_dict(num_consumed=60)


class Numbers:
    """A dataset that is never read."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


class Passing(DistributedSampler[int]):
    """A sampler that trainers leave as it is, and that yields what another one does."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.inner))

    def __len__(self) -> int:
        return len(self.inner)


def test_right_use_is_silent() -> None:
    """Batches, one rank, and unshuffled orders, which are dealt out in turn, do not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler = wids.DistributedChunkedSampler(range(20), num_replicas=2, rank=1)
        batches = wids.BucketBatchSampler(sampler, [0] * 20, 4)
        for silent in (sampler, batches, BatchSampler(sampler, 4, drop_last=False)):
            assert list(silent)
        assert len(list(DataLoader(range(20), sampler=sampler))) == 10  # type: ignore[arg-type]
        assert len(dealt(wids.ChunkedSampler(range(20)), num_replicas=1)) == 20
        assert len(dealt(sampler, num_replicas=1)) == 10
        assert len(list(Passing(sampler))) == 10
        assert len(dealt(wids.ChunkedSampler(range(20), shuffle=False))) == 10
