"""`dataset.split`: parts of a dataset, by sample or by shard."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from conftest import raises, write_shards
from hypothesis import given, reject
from hypothesis import strategies as st

from wids import ChunkedSampler, ShardListDataset
from wids.dataset.splits import part_counts, split_indices
from wids.order.epoch_order import permutation


@given(
    lengths=st.lists(st.integers(0, 30), max_size=12),
    weights=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
    seed=st.integers(0, 1 << 40),
    by=st.sampled_from(["sample", "shard"]),
)
def test_each_sample_is_in_one_part(
    lengths: list[int], weights: list[int], seed: int, by: str
) -> None:
    """Together the parts have each index once; each is ascending, and of its size (VIEW-10)."""
    fractions = [weight / sum(weights) for weight in weights]
    try:
        parts = split_indices(lengths, fractions, seed, by)  # type: ignore[arg-type]
    except ValueError:  # too few shards for so many parts
        assert by == "shard"
        reject()
    assert sorted(np.concatenate(parts).tolist()) == list(range(sum(lengths)))
    for part, weight in zip(parts, weights, strict=True):
        assert (np.diff(part) > 0).all()
        excess = len(part) - Fraction(weight, sum(weights)) * sum(lengths)
        if by == "sample":
            assert abs(excess) <= 1
        else:
            assert excess <= max(lengths, default=0) + 1


def test_the_same_seed_is_the_same_split_everywhere() -> None:
    """The draw is part of the promise: a test set that moves would leak into training (VIEW-11)."""
    parts = split_indices([5, 5], [0.7, 0.3], 0, "sample")
    assert [part.tolist() for part in parts] == [[1, 2, 4, 5, 6, 7, 9], [0, 3, 8]]
    assert [p.tolist() for p in split_indices([2, 1, 3], [0.5, 0.5], 0, "shard")] == [
        [3, 4, 5],
        [0, 1, 2],
    ]


def test_a_split_of_millions_is_that_of_the_permutation() -> None:
    """VIEW-10: computed in blocks, parts have the samples that sorting all of them gives."""
    counts, order = [900_000, 0, 15_000, 1_400_000], permutation(2_315_000, 7, 0x5917)
    parts = split_indices([2_315_000], counts, 7, "sample")
    for part, expected in zip(parts, np.split(order, np.cumsum(counts)[:-1]), strict=True):
        assert np.array_equal(part, np.sort(expected))
    digest = hashlib.sha256(np.asarray(parts[0], "<i8").tobytes()).hexdigest()
    assert digest.startswith("df222f8226927b1f"), "as earlier versions split them"


@pytest.mark.long
def test_a_split_of_many_samples_takes_eight_bytes_for_each() -> None:
    """Of 50 million samples, and 100 MB for what is computed; views share the arrays."""
    program = """if True:
        import resource
        from wids.dataset.splits import split_indices
        from wids.shards.positions import select
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for by in ("shard", "sample"):
            parts = split_indices([5_000] * 10_000, [0.99, 0.01], 0, by)
            views = [select(range(50_000_000), part) for part in parts]
            del parts, views
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    scale = 1 if sys.platform == "darwin" else 1024
    assert int(result.stdout) * scale < 50_000_000 * 8 + 100_000_000


def test_parts_are_views_that_follow_shards(tmp_path: Path) -> None:
    """Parts of a view are views; their samplers read shard by shard."""
    with ShardListDataset(write_shards(tmp_path, [20] * 10)) as dataset:
        train, test = dataset[20:].split([150, 30], seed=3)
        keys = [sample["__key__"] for part in (train, test) for sample in part]
        assert len(keys) == len(set(keys)) == 180
        assert (len(train), len(test), min(keys)) == (150, 30, dataset[20]["__key__"])
        whole, rest = dataset.split([0.5, 0.5], by="shard")
        shards = [{sample["__shard__"] for sample in part} for part in (whole, rest)]
        assert (len(shards[0]), len(shards[1]), shards[0] & shards[1]) == (5, 5, set())
        assert len(list(ChunkedSampler(train, chunksize=20))) == 150


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([0.5, 0.4], "which add up to 0.9"),
        ([3, 4], "add up to the 10 samples, found [3, 4]"),
        ([1.5, -0.5], "expected fractions or counts"),
        ([], "expected fractions or counts"),
        ([True, False], "expected fractions or counts"),
        (["a"], "expected fractions or counts"),
    ],
)
def test_parts_that_do_not_add_up_are_refused(parts: list[float], text: str) -> None:
    """Nothing is dropped silently."""
    with raises(ValueError, "parts: ", text):
        part_counts(parts, 10)


def test_too_few_shards_for_the_parts_are_an_error() -> None:
    """A part that would be empty is not returned in silence (VIEW-11)."""
    with raises(ValueError, 'by="shard": expected at least a shard for each part', 'by="sample"'):
        split_indices([10], [0.9, 0.1], 0, "shard")
    assert [len(part) for part in split_indices([5, 5], [1.0, 0.0], 0, "shard")] == [10, 0]


def test_other_arguments_are_checked() -> None:
    """A misspelt `by` or a bad seed is an error."""
    with raises(ValueError, 'by: expected "sample", "shard" or a label', "dataset.table(['key'])"):
        split_indices([3], [1.0], 0, "key")  # type: ignore[arg-type]
    with raises(ValueError, "seed: expected"):
        split_indices([3], [1.0], -1, "sample")


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 40),
)
def test_a_stratified_split(counts: list[int], weights: list[int], seed: int) -> None:
    """By labels, parts have their sizes, and each label the same share in all (VIEW-10)."""
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    fractions = [weight / sum(weights) for weight in weights]
    parts = split_indices([len(labels)], fractions, seed, labels.astype(str))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert [len(part) for part in parts] == part_counts(fractions, len(labels))
    for part, fraction in zip(parts, fractions, strict=True):
        assert (np.diff(part) > 0).all()
        for label, count in enumerate(counts):
            assert abs((labels[part] == label).sum() - fraction * count) <= 2
    with raises(ValueError, "by: expected", "labels, one for each sample"):
        split_indices([len(labels) + 1], fractions, seed, labels)
