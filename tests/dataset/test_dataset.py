"""``dataset[i]`` and everything around it."""

from __future__ import annotations

import copy
import doctest
import io
import json
import os
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import num_open, open_descriptors, raises, settle, write_shards, write_tar

import wids.dataset.shard_list
from wids import (
    ShardListDataset,
    TarWriter,
)


@pytest.fixture
def dataset(train: Path) -> Iterator[ShardListDataset]:
    with ShardListDataset(train) as dataset:
        yield dataset


def numbers(samples: Any) -> list[int]:
    return [sample["__index__"] for sample in samples]


# A sequence


def test_sample_has_fields_then_provenance(dataset: ShardListDataset, train: Path) -> None:
    """Fields in archive order, decoded; then key, index, shard, index in the shard, dataset."""
    assert list(dataset[9].items()) == [
        (".txt", "text 9"),
        (".cls", 9),
        ("__key__", "s00009"),
        ("__index__", 9),
        ("__shard__", str(train.parent / "train-000001.tar")),
        ("__shardindex__", 1),
        ("__dataset__", "train"),
    ]
    assert {type(dataset[9][k]) for k in ("__index__", "__shardindex__")} == {int}


def test_indices_are_those_of_a_list(dataset: ShardListDataset) -> None:
    """Negative and numpy indices, length, iteration and ``IndexError`` are as for a list."""
    model = list(range(20))

    assert len(dataset) == len(model)
    assert numbers(dataset) == model
    for index in (0, 7, 8, 12, 13, 19, -1, -8, -20):
        assert dataset[index]["__index__"] == model[index]
        assert dataset[np.int32(index)]["__key__"] == f"s{model[index]:05d}"
    for index in (20, -21, 10**9):
        with raises(IndexError, f"index {index} is out of range for a dataset of 20 samples"):
            dataset[index]


@pytest.mark.parametrize("index", [1.0, "1", None, [1.5], np.array([[1]]), [[1, 2], [3]], {}])
def test_other_indices_are_type_errors(dataset: ShardListDataset, index: Any) -> None:
    """The error for anything else says what an index is."""
    with raises(TypeError, "expected an index, a slice, a list of indices or a mask", "found"):
        dataset[index]


@pytest.mark.parametrize(
    "selection",
    [
        *(slice(None), slice(3, 17), slice(9, 10), slice(-4, None), slice(5, 5)),
        *(slice(None, None, 3), slice(None, None, -1), slice(15, 2, -4)),
        [5, 3, -1, 5],
        [],
        np.array([19, 0], np.uint8),
        np.arange(20) % 3 == 0,
    ],
)
def test_view_is_a_dataset(dataset: ShardListDataset, selection: Any) -> None:
    """A view has the samples that a list would have, reads nothing when made, and nests."""
    empty = isinstance(selection, list) and not selection
    model = np.arange(0) if empty else np.arange(20)[selection]

    view = dataset[selection]

    assert dataset.get_stats() == (0, 0)
    assert isinstance(view, ShardListDataset)
    assert len(view) == view.total_length == len(model)
    assert sum(view.lengths) == len(view)
    assert numbers(view) == model.tolist()
    assert numbers(view[::2]) == model[::2].tolist()
    if len(model):
        assert view[-1]["__index__"] == model[-1]
        assert numbers(view[[0, -1]]) == [model[0], model[-1]]
        assert numbers(view.__getitems__([len(view) - 1, 0])) == [model[-1], model[0]]
    with raises(IndexError, f"out of range for a dataset of {len(model)} samples"):
        view[len(model)]


def test_lengths_follow_shards(dataset: ShardListDataset) -> None:
    """TABLE-17: a view has a length for each shard, unless its indices descend somewhere."""
    assert dataset.lengths == [8, 5, 7]
    assert dataset[6:15].lengths == [2, 5, 2]
    assert dataset[9:11].lengths == [0, 2, 0]
    assert dataset[3:3].lengths == [0, 0, 0]
    assert dataset[::2].lengths == [4, 3, 3]
    assert dataset[[1, 2, 2, 19]].lengths == [3, 0, 1]
    assert dataset[[2, 1]].lengths == dataset[3:1:-1].lengths == [2]


def test_view_shares_shards_but_not_transformations(dataset: ShardListDataset) -> None:
    """A transformation added to a view stays in the view; open shards are shared."""
    view = dataset[5:].add_transform(lambda sample: sample["__index__"])

    assert view[0] == 5
    assert dataset[5][".cls"] == 5
    assert dataset.get_stats() == view.get_stats() == (2, 1)


def test_batch_equals_one_by_one(dataset: ShardListDataset) -> None:
    """``__getitems__`` returns what indexing returns, in order, each as a dict of its own."""
    indices = [19, 0, 8, -1, 0, 7]

    batch = dataset.__getitems__(indices)

    assert batch == [dataset[index] for index in indices]
    assert batch[1] is not batch[4]
    assert dataset.__getitems__([]) == []
    with raises(IndexError, "index 20 is out of range"):
        dataset.__getitems__([0, 20])


def test_batch_opens_each_shard_once(train: Path) -> None:
    """In whatever order a batch is, a pool of one shard opens each shard once."""
    with ShardListDataset(train, lru_size=1) as dataset:
        dataset.__getitems__([0, 19, 8, 1, 18, 9])

        assert dataset.get_stats()[1] == 3


# What a field is


@pytest.mark.parametrize("nothing", [[], None])
def test_undecoded_fields(train: Path, nothing: Any) -> None:
    """Without transformations a field is a stream, bytes or a view, as ``raw`` says."""
    with ShardListDataset(train, transformations=nothing) as dataset:
        assert isinstance(dataset[1][".txt"], io.BytesIO)
        assert dataset[1][".txt"].getvalue() == b"text 1"
    with ShardListDataset(train, transformations=nothing, raw="bytes") as dataset:
        assert dataset[1][".txt"] == b"text 1"
    with ShardListDataset(train, transformations=nothing, raw="view") as dataset:
        view = dataset[1][".txt"]
        assert isinstance(view, memoryview)
    assert bytes(view) == b"text 1"


def test_only_wanted_fields_are_read(train: Path) -> None:
    """``fields`` leaves out all other fields; provenance stays."""
    with ShardListDataset(train, fields=[".cls"]) as dataset:
        assert [name for name in dataset[3] if name.startswith(".")] == [".cls"]
        assert dataset[3]["__key__"] == "s00003"
    with raises(TypeError, "fields: expected a list of fields, found the text '.cls'"):
        ShardListDataset(train, fields=".cls")


def test_transformations_are_applied_in_order(dataset: ShardListDataset) -> None:
    """The attribute may be assigned, and ``add_transform`` appends and returns the dataset."""
    dataset.transformations = [lambda sample: sample[".txt"].read()]

    assert dataset.add_transform(bytes.decode) is dataset
    assert dataset[3] == "text 3"
    assert dataset.__getitems__([3, 19]) == ["text 3", "text 19"]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"transformations": "jax"}, ValueError, "transformations: expected a list"),
        ({"transformations": [], "allow_pickle": True}, ValueError, "wids.Decoder(allow_pickle"),
        ({"transformations": [3]}, TypeError, "transformations: expected a callable"),
        (
            {"transformations": 3},
            TypeError,
            "transformations: expected a list of callables, found 3",
        ),
        ({"fields": 3}, TypeError, "fields: expected a list of fields, found 3"),
        ({"fields": [3]}, TypeError, "fields: expected names of fields as texts, found [3]"),
        ({"lru_size": "9"}, ValueError, "lru_size: expected at least 1, found '9'"),
        ({"raw": "text"}, ValueError, 'raw: expected "stream", "bytes" or "view", found \'text\''),
        ({"lru_size": 0}, ValueError, "lru_size: expected at least 1, found 0"),
        ({"key_split": "x"}, ValueError, "key_split: expected"),
    ],
)
def test_bad_arguments_are_refused(
    train: Path, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """The error for a wrong argument says what the argument could be."""
    with raises(kind, message):
        ShardListDataset(train, **arguments)[0]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda d: d.get_by_key(3), TypeError, "key: expected a text, found int 3"),
        (lambda d: d.find_key(None), TypeError, "key: expected a text, found NoneType None"),
        (lambda d: d.get_by_key("a", shard=0.5), ValueError, "shard: expected an integer"),
        (lambda d: d.fetch_shard("a"), KeyError, "a: no such shard in"),
        (lambda d: d.fetch_shard(99), IndexError, "shard 99 is out of range for"),
        (
            lambda d: d.map(3),
            TypeError,
            "function: expected a callable that takes a sample, found 3",
        ),
        (lambda d: d.add_transform("PIL"), TypeError, "transformation: expected a callable"),
        (lambda d: d.split(3), ValueError, "parts: expected fractions or counts, found 3"),
        (lambda d: d.set_epoch("x"), ValueError, "epoch: expected an integer of at least 0"),
        (lambda d: d.table(3), TypeError, "columns: expected a dict or a list of paths, found int"),
        (lambda d: d.show(seed="x"), ValueError, "seed: expected an integer, found 'x'"),
        (lambda d: d.show(where=3), TypeError, "where: expected a callable that takes a sample"),
        (lambda d: d.show("a"), ValueError, "num_samples: expected an integer of at least 0"),
        (lambda d: d.show(-1), ValueError, "num_samples: expected an integer of at least 0"),
    ],
)
def test_errors_of_methods_name_the_argument(
    dataset: ShardListDataset, call: Any, kind: type[Exception], message: str
) -> None:
    """So they say what was expected and what was found."""
    with raises(kind, message):
        call(dataset)


# Shards and counts


def test_missing_counts_are_found_once(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards without a count are opened to count them, and stay open for reading."""
    monkeypatch.chdir(train.parent)
    with ShardListDataset("train-{000000..000002}.tar") as dataset:
        assert dataset.lengths == [8, 5, 7]
        assert dataset.get_stats() == (3, 3)
        assert numbers(dataset) == list(range(20))
        assert dataset.get_stats()[1] == 3


def test_all_forms_of_shards_give_the_same_samples(train: Path) -> None:
    """A spec, a pattern and lists of paths, pairs and dicts open the same dataset."""
    paths = [str(train.parent / f"train-{i:06d}.tar") for i in range(3)]
    forms: list[Any] = [
        *(train, str(train), json.loads(train.read_text())),
        str(train.parent / "train-{000000..000002}.tar"),
        *(paths, list(map(Path, paths)), list(zip(paths, (8, 5, 7), strict=True))),
        [{"url": path} for path in paths],
    ]
    for form in forms:
        with ShardListDataset(form, base=train.parent, dataset_name="train") as dataset:
            samples = list(dataset)
        with ShardListDataset(train) as expected:
            assert samples == list(expected)


def test_empty_shards_are_skipped(tmp_path: Path) -> None:
    """Shards without samples change nothing, and a dataset of only such shards is empty."""
    with ShardListDataset(write_shards(tmp_path, [0, 3, 0, 0, 2, 0])) as dataset:
        assert numbers(dataset) == [0, 1, 2, 3, 4]
        assert dataset[-1]["__shard__"].endswith("train-000004.tar")
    with ShardListDataset(write_shards(tmp_path, [0])) as dataset:
        assert list(dataset) == []


def test_same_base_name_in_two_folders(tmp_path: Path) -> None:
    """Two shards with one base name stay two shards."""
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        write_tar(tmp_path / folder / "0.tar", [(f"{folder}.txt", folder.encode())])
    with ShardListDataset([tmp_path / "x/0.tar", tmp_path / "y/0.tar"]) as dataset:
        assert [sample[".txt"] for sample in dataset] == ["x", "y"]


def test_regenerated_shard_is_indexed_again(tmp_path: Path) -> None:
    """A local shard that was written again is never read by its old index."""
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"old")])
    with ShardListDataset(path) as dataset:
        assert dataset[0][".txt"] == "old"
    write_tar(path, [("b.txt", b"new"), ("c.txt", b"more")])
    with ShardListDataset(path) as dataset:
        assert [sample[".txt"] for sample in dataset] == ["new", "more"]


AS_NOBODY = """
import os, sys, wids
# All that is imported on the way, before the change of user, who may not read this environment.
cache, os.environ["WIDS_CACHE"] = os.environ["WIDS_CACHE"], "/dev/null"
wids.ShardListDataset(sys.argv[1])[1]
os.environ["WIDS_CACHE"] = cache
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
with wids.ShardListDataset(sys.argv[1]) as dataset:
    print(dataset[1][".cls"], dataset[-1][".cls"])
"""


@pytest.mark.parametrize("has_cache", [False, True])
def test_local_shards_are_read_in_place(tmp_path: Path, has_cache: bool) -> None:
    """A read-only folder of another user works: nothing is written there, copied or locked.

    Where the reader may write to no cache folder either, nothing is written at all, and a warning
    names the folder.
    """
    (tmp_path / "data").mkdir()
    (tmp_path / "cache").mkdir()
    spec = write_shards(tmp_path / "data", [4])
    for path in (tmp_path / "data").iterdir():
        settle(path).chmod(0o444)
    (tmp_path / "data").chmod(0o555)
    (tmp_path / "cache").chmod(0o777 if has_cache else 0o555)
    for folder in (tmp_path, *tmp_path.parents):
        folder.chmod(folder.stat().st_mode | 0o055)  # pytest keeps other users out
        if folder.name.startswith("pytest-of-"):
            break
    before = sorted(tmp_path.rglob("*"))

    result = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(spec)],
        env={**os.environ, "WIDS_CACHE": str(tmp_path / "cache")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.stdout == "1 3\n"
    named = [line.partition(": the cache folder cannot")[0] for line in result.stderr.splitlines()]
    assert named == ["/dev/null", *([] if has_cache else [str(tmp_path / "cache")])]
    written = [path for path in sorted(tmp_path.rglob("*")) if path not in before]
    assert [path.suffix for path in written if path.is_file()] == [".index"] * has_cache
    assert all(path.is_relative_to(tmp_path / "cache") for path in written)
    (tmp_path / "data").chmod(0o755)


def test_many_shards_stay_within_the_descriptors(tmp_path: Path) -> None:
    """A dataset can have more shards than the process may open files."""
    resource = pytest.importorskip("resource")
    spec = write_shards(tmp_path, [1] * 150)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 100 + len(open_descriptors())  # earlier tests may have left connections
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        with ShardListDataset(spec) as dataset:
            assert numbers(dataset) == list(range(150))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# By key


def test_get_by_key(dataset: ShardListDataset, train: Path) -> None:
    """The first sample with the key, in all shards or in one; a view finds only its own."""
    assert dataset.get_by_key("s00009")["__index__"] == 9
    assert dataset.get_by_key("s00009", shard=1)["__index__"] == 9
    assert dataset.get_by_key("s00009", str(train.parent / "train-000001.tar"))[".cls"] == 9
    assert dataset[[3, 9]].get_by_key("s00009")["__index__"] == 9
    with raises(KeyError, "no sample has the key 's00099'"):
        dataset.get_by_key("s00099")
    with raises(KeyError, "train-000000.tar: no sample has the key 's00009'"):
        dataset.get_by_key("s00009", shard=0)
    for view in (dataset[:5], dataset[[3, 8]]):
        with raises(KeyError, "no sample has the key 's00009'"):
            view.get_by_key("s00009")
    with raises(KeyError, "no such shard"):
        dataset.get_by_key("s00009", shard="other.tar")
    with raises(IndexError, "shard 3 is out of range"):
        dataset.get_by_key("s00009", shard=3)


# Copies, processes, threads


def test_used_dataset_can_be_pickled(train: Path) -> None:
    """A pickled dataset, a view or not, has no open shards, and opens them again."""
    with ShardListDataset(train) as dataset:
        first = dataset[3]
        for original in (dataset, dataset[2:9], dataset[[5, 3]]):
            with pickle.loads(pickle.dumps(original)) as other:  # noqa: S301 - made here
                assert other.reader.num_open == 0
                assert list(other) == list(original)
        with copy.deepcopy(dataset) as other:
            assert other[3] == first


def test_forked_child_reads_what_the_parent_opened(dataset: ShardListDataset) -> None:
    """After a fork, parent and child read the same open shards."""
    expected = dataset[3]
    child = os.fork()
    if child == 0:
        os._exit(0 if dataset[3] == expected and dataset[19][".cls"] == 9 else 1)

    assert os.waitpid(child, 0)[1] == 0
    assert dataset[19][".cls"] == 9


def test_threads_share_a_dataset(train: Path) -> None:
    """Four threads and one open shard: every sample is right."""
    errors: list[BaseException] = []

    def read(seed: int) -> None:
        choose = random.Random(seed)
        try:
            for _ in range(60):
                index = choose.randrange(20)
                assert dataset[index][".txt"] == f"text {index}"
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            errors.append(error)

    with ShardListDataset(train, lru_size=1) as dataset:
        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert errors == []


def test_closed_dataset_opens_again(dataset: ShardListDataset, train: Path) -> None:
    """Closing releases the files; a later read opens them again."""
    dataset[0]
    assert num_open(train.parent) == 1
    dataset.close()
    assert num_open(train.parent) == 0
    assert dataset[0][".cls"] == 0


# What users of the old library know


def test_attributes_of_the_old_library(dataset: ShardListDataset, train: Path) -> None:
    """``shards``, ``total_length``, ``get_shard`` and ``get_stats`` are as they were."""
    path = str(train.parent / "train-000001.tar")
    assert dataset.shards[1] == {"url": path, "nsamples": 5}
    assert dataset.total_length == 20
    assert type(dataset.total_length) is int

    shard, local_index, entry = dataset.get_shard(9)

    assert (shard.path, local_index, entry) == (path, 1, dataset.shards[1])
    assert shard[local_index]["__key__"] == "s00009"
    assert dataset.get_shard(-1)[1] == 6
    assert dataset[10:].get_shard(0)[1] == 2
    with raises(IndexError, "index 20"):
        dataset.get_shard(20)
    assert dataset.get_stats() == (3, 2)


def test_repr_is_short(dataset: ShardListDataset) -> None:
    """A dataset shows its name, its size and what it does to samples."""
    assert repr(dataset).startswith("<ShardListDataset 'train': 20 samples, 3 shards")


def test_names_of_datasets(tmp_path: Path) -> None:
    """``__dataset__`` is the component's name, else the argument's, else the spec's."""
    write_tar(tmp_path / "a.tar", [("a.cls", b"1")])
    spec = {
        "name": "outer",
        "shardlist": ["a.tar"],
        "datasets": [{"name": "inner", "shardlist": ["a.tar"]}],
    }
    with ShardListDataset(spec, base=tmp_path) as dataset:
        assert [sample["__dataset__"] for sample in dataset] == ["outer", "inner"]
    with ShardListDataset(spec, base=tmp_path, dataset_name="mine") as dataset:
        assert [sample["__dataset__"] for sample in dataset] == ["mine", "inner"]
    with ShardListDataset([tmp_path / "a.tar"]) as dataset:
        assert dataset[0]["__dataset__"] == "", "default collation cannot stack None"


def test_construction_is_silent(train: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Outside a terminal nothing is printed, also where shards are counted."""
    with ShardListDataset(train), ShardListDataset(sorted(train.parent.glob("*.tar"))):
        pass

    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("index", [2**63, 2**64 - 1, 2**70, -(2**70), np.uint64(2**64 - 1)])
def test_huge_indices_are_out_of_range(dataset: ShardListDataset, index: int) -> None:
    """No index wraps around, alone, in a batch or in an array."""
    for take in (dataset.__getitem__, lambda i: dataset[[i]], lambda i: dataset.__getitems__([i])):
        with raises(IndexError, "is out of range for a dataset of 20 samples"):
            take(index)


def test_booleans_are_no_indices(train: Path) -> None:
    """Of one sample or a batch; only a view takes them, as a mask."""
    with ShardListDataset(train)[:2] as dataset:
        for read in (lambda: dataset[True], lambda: dataset.__getitems__([True, False])):
            with raises(TypeError, "expected an index", "True"):
                read()
        assert len(dataset[[True, False]]) == 1


def test_fields_can_be_any_collection(train: Path) -> None:
    """Fields may be the keys of a dict or come from a generator, also in a pickle."""
    for fields in ({".cls": 1}.keys(), (name for name in [".cls"])):
        with ShardListDataset(train, fields=fields) as dataset:  # type: ignore[arg-type]
            other = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - made here
            for index in (0, 9, 19):
                assert ".txt" not in dataset[index]
                assert other[index] == dataset[index]
            other.close()


def test_key_that_cannot_be_is_absent(dataset: ShardListDataset) -> None:
    """A text that cannot be a member's name is a key that does not exist."""
    for key in ("\ud800", "a\0b", ""):
        with raises(KeyError, "no sample has the key"):
            dataset.get_by_key(key)


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of the class and of its methods, with the dataset of the former."""
    monkeypatch.chdir(tmp_path)
    with TarWriter("train.tar") as writer:
        for n in range(3):
            writer.write({"__key__": f"{n:06d}", "txt": f"text {n}", "cls": n})
    with ShardListDataset("train.tar") as dataset:
        result = doctest.testmod(wids.dataset.shard_list, extraglobs={"dataset": dataset})
        assert (result.failed, result.attempted > 30) == (0, True)
