"""``map(f, seed=…)``: random augmentations that can be repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import raises
from torch.utils.data import DataLoader, StackDataset, Subset

import wids
from wids import ShardListDataset, TransformError


def draw(sample: dict[str, Any], rng: Any) -> tuple[int, int]:
    return sample["__index__"], int(rng.integers(1 << 60))


def epoch_of(loader: DataLoader[Any]) -> dict[int, int]:
    return dict(pair for batch in loader for pair in batch)


def test_what_is_drawn_follows_from_seed_epoch_and_index(train: Path) -> None:
    """The same in any order, batch and view; other for another seed, epoch or sample (VIEW-2)."""
    with ShardListDataset(train) as dataset:
        view = dataset.map(draw, seed=1)
        first = dict(list(view))
        assert len(set(first.values())) == len(dataset)
        assert dict(view.__getitems__(list(range(len(view)))[::-1])) == first
        assert dict(list(view[4:6])) == {4: first[4], 5: first[5]}
        assert dict(list(dataset.map(draw, seed=1))) == first
        assert not set(dict(list(dataset.map(draw, seed=2))).values()) & set(first.values())
        view.set_epoch(1)
        assert not set(dict(list(view)).values()) & set(first.values())
        view.set_epoch(0)
        assert dict(list(view)) == first


@pytest.mark.parametrize(
    ("num_workers", "context", "persistent"),
    [
        (0, None, False),
        (2, "fork", False),
        (2, "fork", True),
        pytest.param(2, "spawn", True, marks=pytest.mark.long),
    ],
)
def test_samplers_set_the_epoch_in_workers(
    train: Path, num_workers: int, context: str | None, persistent: bool
) -> None:
    """Each pass of a wids sampler is another epoch, in workers that stay alive too."""
    with ShardListDataset(train, verify="never") as dataset:
        view = dataset.map(draw, seed=1)
        expected = []
        for epoch in range(3):
            view.set_epoch(epoch)
            expected.append(dict(list(view)))
        view.set_epoch(0)
        loader = DataLoader(
            view,
            batch_size=4,
            sampler=wids.ChunkedSampler(view),
            num_workers=num_workers,
            multiprocessing_context=context,
            persistent_workers=persistent,
            collate_fn=list,
        )
        assert [epoch_of(loader) for _ in range(3)] == expected
        del loader  # ends its workers


def test_all_views_of_a_dataset_have_its_epoch(train: Path) -> None:
    """A sampler over the dataset, or over torch's wrappers, sets the epoch of a view (VIEW-2)."""
    with ShardListDataset(train) as dataset:
        view = dataset.map(draw, seed=1)
        first = view[3]
        view.set_epoch(1)
        second = view[3]
        assert first != second
        dataset.set_epoch(0)
        assert view[3] == first
        sources = (dataset, Subset(view, [1, 3]), StackDataset(a=view), dataset[:4])
        for source in sources:
            sampler = wids.ChunkedSampler(source)
            sampler.set_epoch(1)
            iter(sampler)
            assert view[3] == second
            view.set_epoch(0)


def test_bad_seeds_and_samples_are_errors(train: Path) -> None:
    """A seed is a number; the index has to be there still."""
    with ShardListDataset(train) as dataset:
        with raises(ValueError, "seed: expected an integer of at least 0, found -1"):
            dataset.map(draw, seed=-1)
        with raises(TransformError, "expected a sample with __index__", "before to_tuple"):
            dataset.to_tuple("txt").map(draw, seed=0)[0]
