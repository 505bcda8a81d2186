"""`dataset.keys()` is a lazy sequence, and a dataset is not a mapping."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import raises, sample_members, write_tar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loopback import Server
from remote_site import Site

import wids
from wids.errors import FetchError

KEYS = [f"s{number:05d}" for number in range(20)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.one_of(
        st.slices(20),
        st.lists(st.integers(-20, 19)),
        st.lists(st.booleans(), min_size=20, max_size=20),
    ),
    st.lists(st.integers(-30, 30), max_size=4),
)
def test_keys_are_those_of_the_samples(
    train: Path, selection: slice | list[int], indices: list[int]
) -> None:
    """Of any view, in its order: by index, by slice, in a pass, backwards."""
    with wids.ShardListDataset(train, fields=[]) as dataset:
        view = dataset[selection]
        expected = [sample["__key__"] for sample in view]
        keys = view.keys()
        assert isinstance(keys, Sequence)
        assert (len(keys), list(keys)) == (len(expected), expected)
        assert list(reversed(keys)) == expected[::-1]
        assert [keys[i] for i in range(-len(expected), len(expected))] == expected * 2
        assert list(keys[1:]) == list(keys[list(range(1, len(expected)))]) == expected[1:]
        for index in indices:
            if not -len(expected) <= index < len(expected):
                with pytest.raises(IndexError):
                    keys[index]
        for key in [*KEYS, "nope"]:
            assert (key in keys) is (key in expected)
            assert keys.count(key) == expected.count(key)
            if key in expected:
                assert keys.index(key) == expected.index(key) == view.find_key(key)
        assert 3 not in keys


def test_index_with_bounds_and_errors(train: Path) -> None:
    """As a list does, it takes a start and a stop, and raises ValueError."""
    with wids.ShardListDataset(train) as dataset:
        keys = dataset.keys()
        assert keys.index("s00009", 3) == keys.index("s00009", -12, 10) == 9
        for arguments in (("nope",), ("s00009", 10), ("s00009", 0, 9)):
            with raises(ValueError, "is not among these"):
                keys.index(*arguments)  # type: ignore[arg-type]


def test_nothing_is_read_before_it_is_asked(tmp_path: Path, server: Server) -> None:
    """Of remote shards indexes alone are read; without one it is an error that says what to do."""
    site = Site(tmp_path / "site", server)
    with wids.ShardListDataset(site.spec()) as dataset:
        keys = dataset.keys()
        assert (len(keys), repr(keys)) == (20, "<Keys of 20 samples>")
        with raises(FetchError, "/train-0.tar: expected its index, to have its keys", "create"):
            keys[0]
        assert site.asked() == []
    site.dataset_index()
    with wids.ShardListDataset(site.spec(index="train.index")) as dataset:
        assert list(dataset.keys()) == KEYS
        assert dataset.get_stats() == (0, 0), "no shard is opened"
    assert site.asked() == []


def test_text_is_short(train: Path) -> None:
    """Two keys at most, and nothing that a terminal would obey."""
    with wids.ShardListDataset(train) as dataset:
        assert repr(dataset.keys()) == "<Keys of 20 samples: 's00000', 's00001', …>"
        assert repr(dataset[:2].keys()) == "<Keys of 2 samples: 's00000', 's00001'>"
        assert repr(dataset[:0].keys()) == "<Keys of 0 samples>"
    path = write_tar(train.parent / "odd.tar", [("\x1b[31m\udcff.txt", b"")])
    with wids.ShardListDataset(path) as dataset:
        assert repr(dataset.keys()).isprintable()
        assert list(dataset.keys()) == ["\x1b[31m\udcff"]


def test_keys_can_be_pickled(train: Path) -> None:
    """As a dataset can."""
    with wids.ShardListDataset(train) as dataset:
        keys = pickle.loads(pickle.dumps(dataset[3:9].keys()))  # noqa: S301 - made here
        assert list(keys) == KEYS[3:9]


def test_a_dataset_is_no_mapping(train: Path) -> None:
    """What would scan it, or make nonsense of it, says what to do instead."""
    with wids.ShardListDataset(train) as dataset:
        for view in (dataset, dataset[3:], dataset[:0]):
            for item in ("s00003", 3, {}):
                with raises(TypeError, "expected `key in dataset.keys()`"):
                    item in view  # noqa: B015 - it has to raise
        for use in (dict, lambda d: {**d}, {}.update, lambda d: d["s00003"]):
            with raises(TypeError, "not a mapping", "get_by_key(key)", "found str 's0000"):
                use(dataset)


def test_keys_of_shards_that_are_cut_by_samples(tmp_path: Path) -> None:
    """A few keys of a large shard are decoded one by one, and are the same."""
    path = write_tar(tmp_path / "a.tar", sample_members(0, 500))
    with wids.ShardListDataset(path) as dataset:
        assert list(dataset[::100].keys()) == [f"s{n:05d}" for n in range(0, 500, 100)]
        assert list(dataset[[7, 3, 7]].keys()) == ["s00007", "s00003", "s00007"]
