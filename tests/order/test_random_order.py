"""The random order in which a page shows samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from wids.look.page.questions import Selection
from wids.order.random_order import RandomOrder


@pytest.mark.parametrize("num_samples", [1, 2, 3, 4, 5, 16, 17, 1000, 4097])
@pytest.mark.parametrize("seed", [0, 1, -1, 2**70])
def test_each_sample_has_one_position(num_samples: int, seed: int) -> None:
    """Every number of samples is permuted, and positions lead back to samples."""
    shuffle = RandomOrder(num_samples, seed)
    indices = shuffle.indices(range(num_samples))
    assert sorted(indices) == list(range(num_samples))
    assert shuffle.positions(indices).tolist() == list(range(num_samples))


def test_seeds_differ() -> None:
    """Another seed is another order, and neighbours in the dataset are not neighbours in it."""
    orders = [RandomOrder(1000, seed).indices(range(1000)) for seed in (0, 1, -1, 2)]
    assert len({tuple(order) for order in orders}) == 4
    for order in orders:
        assert abs(np.corrcoef(order, range(1000))[0, 1]) < 0.15
        assert (np.abs(np.diff(order)) == 1).sum() < 20


def test_a_page_of_a_huge_dataset_costs_a_page() -> None:
    """No memory for each sample: a page of 10**15 samples is there at once."""
    page = Selection(range(10**15), 10**15, 3).page(10**14, 48)
    assert len(set(page)) == 48
    assert max(page) > 10**14
    assert Selection(range(10**15), 10**15, 3).place(page[7])[:2] == (10**14 + 7, page[6])


def test_a_search_does_not_change_the_order() -> None:
    """Hits are in the order of all samples, without those that were not found."""
    everything = Selection(range(500), 500, 9).page(0, 500)
    found = list(range(0, 500, 7))
    hits = Selection(found, 500, 9)
    assert hits.page(0, 100) == [index for index in everything if index in found]
    assert hits.page(10, 5) == hits.page(0, 100)[10:15]


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("found", [range(30), [3, 5, 8, 13, 21]])
def test_neighbours(seed: int | None, found: Sequence[int]) -> None:
    """Each sample has the one before and after it on the page; others have no place."""
    selection = Selection(found, 30, seed)
    page = selection.page(0, 30)
    for position, index in enumerate(page):
        before = page[position - 1] if position else None
        after = page[position + 1] if position + 1 < len(page) else None
        assert selection.place(index) == (position, before, after)
    if found != range(30):
        assert selection.place(4) == selection.place(29) == (None, None, None)
    assert Selection([], 30, seed).page(0, 9) == []
