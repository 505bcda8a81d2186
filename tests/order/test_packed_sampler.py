"""Packed batches: what may be passed, what a rank packs, states, fill, and steps of equal cost."""

from __future__ import annotations

import doctest
import importlib.util
import json
import subprocess
import sys
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from conftest import need, raises
from ranks import DATA, Lengths
from torch.utils.data import DataLoader, RandomSampler

from wids import (
    ChunkedSampler,
    DistributedChunkedSampler,
    PackedBatchSampler,
    StateError,
)
from wids.order import packed_rounds, packed_sampler
from wids.order.packed_rounds import best_fit

TOKENS = [n * n % 17 + 1 for n in range(20)]
LONG = np.random.default_rng(0).lognormal(6, 1, 60_000).clip(1, 8192).astype(np.int32)


def made(**others: Any) -> PackedBatchSampler:
    """Return batches of 30 tokens over 20 samples."""
    options = {"lengths": TOKENS, "max_tokens": 30, **others}
    return PackedBatchSampler(options.pop("sampler", None) or ChunkedSampler(DATA), **options)


def of_rank(rank: int, num_replicas: int, **others: Any) -> PackedBatchSampler:
    """Return batches of a rank over 60,000 sequences, in windows of 32."""
    sampler = DistributedChunkedSampler(
        range(len(LONG)), num_replicas=num_replicas, rank=rank, even=False
    )
    return PackedBatchSampler(sampler, LONG, 8192, **{"window": 32, **others})


def runs_of(state: dict[str, Any]) -> Any:
    """Return what a state has of windows."""
    return json.loads(state["windows"])["runs"]


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many samples are packed at a time."""
    counts: list[int] = []

    def counted(needs: Any, *others: Any) -> Any:
        counts.append(needs.shape[1])
        return best_fit(needs, *others)

    monkeypatch.setattr(packed_rounds, "best_fit", counted)
    return counts


# What may be passed


def test_lengths_in_any_form() -> None:
    """Arrays of all types of integers, tensors, and columns of tables mean the same."""
    expected = list(made())
    forms: list[Any] = [np.array(TOKENS, np.uint8), np.array(TOKENS, np.uint64), tuple(TOKENS)]
    assert all(list(made(lengths=form)) == expected for form in [*forms, torch.tensor(TOKENS)])
    assert len(made(lengths=forms[0], max_tokens=1000)) == 1, "a budget beyond the type of lengths"
    assert made(lengths=forms[0]).state_dict() == made(lengths=forms[1]).state_dict()
    need(importlib.util.find_spec("pyarrow"), "pip install pyarrow")
    import pyarrow as pa

    assert list(made(lengths=pa.chunked_array([TOKENS[:7], TOKENS[7:]]))) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": TOKENS[1:]}, "lengths: expected one integer for each of the dataset's 20"),
        ({"lengths": [0.5] * 20}, "lengths: expected one integer for each sample, found list"),
        (
            {"lengths": [*TOKENS[:-1], -2]},
            "expected at least 0, and less than 2**63, found -2 of sample",
        ),
        *(
            ({"lengths": large, "too_long": "skip"}, "found 9223372036854775808")
            for large in (
                [2**63, *TOKENS[1:]],
                np.array([2**63, *TOKENS[1:]], object),
                np.array([2**63, *TOKENS[1:]], ">u8"),
            )
        ),
        ({"lengths": [True] * 20}, "lengths: expected numbers, found booleans"),
        ({"max_tokens": 16}, 'max_tokens, 16, found 17 of sample 4; pass too_long="skip" to leave'),
        ({"max_tokens": 0}, "max_tokens: expected an integer of at least 1, found 0"),
        ({"max_tokens": 1 << 31}, "max_tokens: expected less than 2**31, found 2147483648"),
        ({"max_items": 0}, "max_items: expected an integer of at least 1"),
        ({"window": 0}, "window: expected an integer of at least 1"),
        ({"too_long": "cut"}, "too_long: expected one of ('error', 'skip', 'alone'), found 'cut'"),
        ({"budgets": {"images": ([3] * 20, 2)}}, "budgets['images']: expected at most its limit"),
        ({"budgets": {"a": ([1] * 20, 2), "b": ([1] * 20, 2)}}, "at most one besides max_tokens"),
        ({"budgets": {"a": [1] * 20}}, "budgets['a']: expected a pair, what each sample needs"),
        ({"budgets": {"a": ([1] * 19, 2)}}, "budgets['a']: expected one integer for each"),
        ({"cost": "cubes"}, "cost: expected one of ('sum', 'squares'), or a number for each"),
        ({"cost": [1.0] * 19}, "found 'float64 of shape (19,)'"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    """The error names the argument, what was expected, what was found, and the choices."""
    with raises(ValueError, message):
        made(**arguments)


def test_other_samplers_are_refused() -> None:
    """A sampler whose order is not known for all ranks cannot have equal ranks."""
    with raises(TypeError, "expected one of wids' samplers", "RandomSampler"):
        PackedBatchSampler(RandomSampler(range(3)), [1] * 3, 2)  # type: ignore[arg-type]


def test_samples_that_are_too_long() -> None:
    """They are left out and counted, or have a batch of their own (ORDER-75)."""
    long = {index for index, tokens in enumerate(TOKENS) if tokens > 9}

    skipping, alone = made(max_tokens=9, too_long="skip"), made(max_tokens=9, too_long="alone")

    assert {index for batch in skipping.ahead() for index in batch} == set(range(20)) - long
    assert skipping.num_left_out == len(long)
    assert {batch[0] for batch in alone.ahead() if long & set(batch)} == long
    assert all(len(batch) == 1 for batch in alone.ahead() if long & set(batch))
    assert 0 < alone.fill <= 1


def test_the_best_fit_has_the_least_space_left() -> None:
    """Large samples come first, each into the fullest batch that has room (ORDER-71)."""
    assert best_fit(np.array([[3, 7, 5, 4, 1]]), [10]) == [[0, 1], [2, 3, 4]]
    assert best_fit(np.array([[3, 7, 5, 4, 1]]), [10], 2) == [[0, 1], [2, 3], [4]]
    assert best_fit(np.array([[1, 1, 1, 1], [2, 1, 1, 2]]), [10, 3]) == [[0, 1], [2, 3]]
    assert best_fit(np.array([[2, 0, 2]]), [2]) == [[0], [1], [2]]


# What a rank packs


def test_only_counts_need_the_other_ranks(packed: list[int]) -> None:
    """The first batch takes one window of one rank, and `len` all windows, once (ORDER-70)."""
    sampler = of_rank(1, 4)
    next(iter(sampler))
    assert len(packed) == 1
    state = sampler.state_dict()
    assert len(packed) == 1, "a state counts nothing"
    assert runs_of(state) == [[1, 0, 0, 0]]

    assert len(sampler) * 4 >= sum(LONG) / 8192
    assert sum(packed) == len(LONG)
    del packed[:]
    assert (len(sampler), sampler.num_repeated, sampler.num_left_out) == (
        len(of_rank(0, 4)),
        of_rank(0, 4).num_repeated,
        0,
    )
    sampler.state_dict()
    del packed[:]
    assert len(sampler) > 0
    assert packed == []


def test_a_rank_reads_its_own_samples_a_window_at_a_time() -> None:
    """Neighbouring batches are of neighbouring samples in the order of the sampler."""
    sampler = of_rank(2, 4)
    run = sampler.sampler.run_blocks(sampler.settings, 0)(2)
    order = [index for block in run for index in block.tolist()]
    places = {index: place for place, index in enumerate(order)}
    at = 0
    for batches in zip(*[iter(islice(sampler, 320))] * 32, strict=True):
        inside = sorted(places[index] for batch in batches for index in batch)
        assert inside == list(range(at, at + len(inside)))
        at += len(inside)


def test_fill_is_that_of_what_was_packed() -> None:
    """It is known from the first window on, exact after `len`, and over 0.99 by default."""
    sampler = of_rank(0, 1, window=512)
    assert sampler.fill > 0.99
    assert sampler.fill == pytest.approx(
        sum(LONG[index] for batch in islice(sampler, 512) for index in batch) / 512 / 8192
    )
    assert len(sampler)
    assert sampler.fill == pytest.approx(LONG.sum() / len(sampler) / 8192)
    assert PackedBatchSampler(ChunkedSampler([]), [], 3).fill == 0


def test_costs_of_a_step_are_about_equal() -> None:
    """The largest cost of a step exceeds the mean by little, to the end of the epoch (ORDER-74)."""

    def mean_ratio(cost: Any) -> float:
        ranks = [list(of_rank(rank, 4, cost=cost, drop_last=True, window=64)) for rank in range(4)]
        costs = np.array([[(LONG[batch] ** 2.0).sum() for batch in batches] for batches in ranks])
        return float((costs.max(0) / costs.mean(0)).mean())

    balanced = mean_ratio("squares")
    assert balanced < 1.15
    assert mean_ratio(None) > 1.8
    assert mean_ratio(LONG.astype(np.float64) ** 2) == balanced


# States


def test_a_state_resumes_with_one_window(packed: list[int]) -> None:
    """Its rank packs the window in which it stands, and looks at no sample before (ORDER-76)."""
    sampler = of_rank(1, 2)
    batches = list(islice(sampler, 300))
    state = json.loads(json.dumps(sampler.state_dict()))
    whole = list(of_rank(1, 2).ahead())
    assert batches == whole[:300]
    del packed[:]

    resumed = of_rank(1, 2)
    resumed.load_state_dict(state)

    assert next(iter(resumed)) == whole[300]
    assert len(packed) == 1
    other = of_rank(0, 2)
    other.load_state_dict(state)
    del packed[:]
    assert next(iter(other)) == list(of_rank(0, 2).ahead())[300]


def test_after_len_a_state_resumes_at_once_on_any_ranks(packed: list[int]) -> None:
    """It has the windows of all ranks, so that others pack what they read (ORDER-53, ORDER-76)."""
    saving = [of_rank(rank, 4) for rank in range(4)]
    read = [batch for sampler in saving for batch in islice(sampler, 100)]
    assert len(saving[2]) > 200
    state = saving[2].state_dict()
    assert [entry[0] for entry in runs_of(state)] == [0, 1, 2, 3]
    del packed[:]

    ranks = [of_rank(rank, 3) for rank in range(3)]
    for rank in ranks:
        rank.load_state_dict(state)
    first = [next(iter(rank)) for rank in ranks]

    assert sum(packed) < 0.6 * len(LONG), "no rank packs what was read, or what others read"
    rest = [batch for rank in ranks for batch in rank.ahead()]
    assert first[0] in rest
    seen = [index for batch in read + rest for index in batch]
    assert set(seen) == set(range(len(LONG)))


@pytest.mark.parametrize(
    "runs", [[], [[0, 3, 5, 0]], [[0, 3, 9, 0]], [[0, 0, 0, 1 << 60]], [[0, 3, 7, 30], [1]], None]
)
def test_false_windows_are_refused(runs: Any) -> None:
    """They would make another rest, or one without an end, without a word (ORDER-76)."""
    saving = made(window=1)
    list(islice(saving, 3))
    state = saving.state_dict()
    assert runs_of(state) not in (runs, [])
    changed = json.dumps({**json.loads(state["windows"]), "runs": runs})
    for windows in (changed, runs):
        with raises(StateError, "the state is damaged: windows: expected the text that was saved"):
            made(window=1).load_state_dict({**state, "windows": windows})


@pytest.mark.parametrize("key", ["windows", "history", "spec", "position"])
def test_a_state_that_lost_a_part_is_refused(key: str) -> None:
    """A checkpoint that reads only some keys would resume elsewhere (ORDER-9)."""
    state = made().state_dict()
    del state[key]
    with raises(StateError, "with ", f"found no {key}", "a part of it was lost"):
        made().load_state_dict(state)


def test_lengths_are_copied() -> None:
    """A change in place changes no batch, so that a state is of the lengths that it states."""
    lengths, cost = np.array(TOKENS), np.array(TOKENS, np.float64)
    sampler = made(lengths=lengths, cost=cost)
    first = list(sampler.ahead())
    lengths += 1
    cost[:] = cost[::-1].copy()
    assert list(sampler.ahead()) == first == list(made(cost=np.array(TOKENS, np.float64)).ahead())
    assert sampler.state_dict() == made(cost=np.array(TOKENS, np.float64)).state_dict()


def test_a_state_of_another_rule_is_refused() -> None:
    """The fingerprint names the rule by which runs are cut and batches dealt out (ORDER-76)."""
    state = made().state_dict()
    older = json.loads(state["fingerprint"]) | {"packing": 1}
    with raises(StateError, "packing: expected 2, found 1 in the state"):
        made().load_state_dict({**state, "fingerprint": json.dumps(older)})


# Epochs


def test_runs_are_cut_by_tokens() -> None:
    """Sources of other lengths give ranks equally many tokens; a sample too long counts as full."""
    lengths = np.repeat([1, 1, 2, 4], 50)
    samplers = [
        PackedBatchSampler(
            DistributedChunkedSampler(range(200), num_replicas=4, rank=rank), lengths, 20, window=4
        )
        for rank in range(4)
    ]
    assert samplers[0].settings.edges.tolist() == [0, 100, 150, 175, 200]
    ranks = [list(sampler) for sampler in samplers]
    assert sorted(index for rank in ranks for batch in rank for index in batch) == list(range(200))
    assert len({len(rank) for rank in ranks}) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"lengths": [51] * 400}, "have 51% of max_tokens on average, since few samples fit"),
        ({"lengths": [10] * 400, "max_items": 3}, "since max_items is reached first"),
        ({"lengths": [9] * 400, "budgets": {"images": ([1] * 400, 2)}}, "the second budget is"),
    ],
)
def test_batches_that_are_far_from_full_are_noted(options: dict[str, Any], why: str) -> None:
    """Once, with the reason: an epoch has more than 1.25 times the batches that tokens need."""
    sampler = PackedBatchSampler(ChunkedSampler(range(400)), max_tokens=100, **options)
    with pytest.warns(UserWarning, match=why):
        assert len(sampler)
    assert list(sampler)


def test_epochs_and_counts_are_those_of_batches() -> None:
    """A state by hand counts batches, and is the next epoch's after the last one (ORDER-76)."""
    sampler = made()
    whole = list(sampler)
    assert sampler.epoch == 1
    sampler.set_epoch(0)
    loader: Any = DataLoader(list(range(20)), batch_sampler=sampler)
    seen = [batch.tolist() for batch in islice(loader, 2)]
    resumed = made()
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict(num_consumed=2))))
    assert seen + list(resumed) == whole
    with raises(ValueError, "at most the 2 batches that this sampler has handed out", "found 3"):
        sampler.state_dict(num_consumed=3)
    assert [batch.tolist() for batch in loader] == whole
    assert sampler.state_dict(num_consumed=len(whole))["epoch"] == 1
    with raises(ValueError, f"at most the {len(whole)} batches that the latest pass has"):
        sampler.state_dict(num_consumed=len(whole) + 1)


def test_unshuffled_batches_stay_in_order() -> None:
    """For evaluation, batches come in the order of their first samples (ORDER-72)."""
    batches = list(made(sampler=ChunkedSampler(DATA, shuffle=False)))
    assert batches == sorted(batches)
    assert sorted(index for batch in batches for index in batch) == list(range(20))


def test_what_packs_needs_no_torch() -> None:
    """Packed batches go to programs without it (ORDER-67)."""
    program = "import sys, wids.order.packed_rounds; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"


def test_the_end_of_an_epoch_says_nothing_of_the_rest() -> None:
    """A resumed job that reads a last window of few samples has no empty epoch to note."""
    whole = PackedBatchSampler(ChunkedSampler(range(395)), [10] * 395, 100, window=39)
    assert len(list(islice(whole, 39))) == 39
    resumed = PackedBatchSampler(ChunkedSampler(range(395)), [10] * 395, 100, window=39)
    resumed.load_state_dict(whole.state_dict())
    assert len(list(resumed)) == 1


def test_views_and_mixed_lengths() -> None:
    """The lengths are those of the dataset that the sampler has, such as a view."""
    sampler = PackedBatchSampler(ChunkedSampler(Lengths(3, 9)), range(12), 11)
    assert max(sum(batch) for batch in sampler) <= 11


def test_examples_run() -> None:
    """The example in the docstring produces what it shows."""
    assert doctest.testmod(packed_sampler).failed == 0
