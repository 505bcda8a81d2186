"""Keys lead to samples in constant time, with a dataset index and without one."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal
from unicodedata import normalize

import pytest
from conftest import in_child, raises, sample_members, write_shards, write_tar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loopback import Server
from remote_site import Site

import wids
from wids.errors import FetchError, JoinError, MismatchError, ShardFormatError
from wids.shards.reader import ShardReader


def dataset_index(spec_path: Path) -> None:
    """Make a dataset index of the shards of a spec, and name it in the spec."""
    wids.build_spec(spec_path, dataset_index=spec_path.parent / "train.index")
    document = json.loads(spec_path.read_text())
    spec_path.write_text(json.dumps({**document, "index": "train.index"}))


@pytest.fixture(params=[True, False], ids=["dataset index", "table"])
def spec_path(request: pytest.FixtureRequest, train: Path) -> Path:
    """20 samples in shards of 8, 5 and 7, with a dataset index and without."""
    if request.param:
        dataset_index(train)
    return train


@pytest.fixture
def sizes_asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of tars whose size was asked of the file system."""
    asked = []
    getsize = os.path.getsize
    monkeypatch.setattr(os.path, "getsize", lambda path: asked.append(path) or getsize(path))
    return asked


def test_each_shard_is_looked_at_once(train: Path, sizes_asked: list[str]) -> None:
    """Later only the shard that was found is checked; a key that no shard has asks for none."""
    dataset_index(train)
    with wids.ShardListDataset(train) as dataset:
        sizes_asked.clear()
        assert dataset.find_key("s00018") == 18
        assert len(sizes_asked) == 3 + 1, "INDEX-7"
        sizes_asked.clear()
        assert [dataset.find_key(f"s{n:05d}") for n in (3, 12, 19)] == [3, 12, 19]
        assert [path.rpartition("-")[2] for path in sizes_asked] == [
            "000000.tar",
            "000001.tar",
            "000002.tar",
        ]
        sizes_asked.clear()
        with pytest.raises(KeyError):
            dataset.find_key("nope")
        assert sizes_asked == []
        assert dataset.get_stats() == (0, 0), "no shard is opened to find a key"


def test_indexes_are_read_once_without_a_dataset_index(
    train: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first key opens all shards, later ones only the shard that has it."""
    with wids.ShardListDataset(train, lru_size=1) as dataset:
        assert dataset.find_key("s00018") == 18
        opened = []
        call = ShardReader._open
        monkeypatch.setattr(
            ShardReader,
            "_open",
            lambda self, facts, wanted: opened.append(facts.number) or call(self, facts, wanted),
        )
        view = dataset[5:]
        assert (view.find_key("s00009"), dataset.find_key("s00000")) == (4, 0)
        for name in ("nope", "", "s00009\0", "\udcff", "\ud800"):
            with pytest.raises(KeyError):
                dataset.find_key(name)
        assert opened == [1, 0]


@pytest.mark.parametrize("length", ["longer", "shorter", "equal"])
def test_a_replaced_shard_is_never_wrong(spec_path: Path, length: str) -> None:
    """A key that is found is where it says; other samples are found as before (INDEX-7)."""
    tar = spec_path.parent / "train-000001.tar"
    with wids.ShardListDataset(spec_path, lru_size=1) as dataset:
        assert dataset.find_key("s00009") == 9
        dataset[0]  # closes the other shard
        members = sample_members(8, 13)[::-1]
        if length == "longer":
            members = [("s00100.txt", bytes(20_000)), *members[:-2]]
        elif length == "shorter":
            members = [("s00100.txt", b"x"), *members[2:]]
            members = [m for m in members if not m[0].endswith(".cls")]
        write_tar(tar.with_name("new"), members)
        tar.with_name("new").rename(tar)
        for key in [f"s{n:05d}" for n in range(20)]:
            try:
                sample = dataset.get_by_key(key)
            except (KeyError, ShardFormatError, MismatchError):
                assert key in [f"s{n:05d}" for n in range(8, 13)]
            else:
                assert sample["__key__"] == key
                assert sample[".txt"] == f"text {int(key[1:])}"
        dataset.close()
        if length == "longer":
            assert dataset.get_by_key("s00100")["__index__"] == 8, "all is looked at again"


@pytest.mark.usefixtures("own_cache")
def test_a_key_of_a_replaced_shard_is_found_again(train: Path) -> None:
    """If the shard of the key was replaced, all shards are looked at again, at once."""
    dataset_index(train)
    tar = train.parent / "train-000001.tar"
    with wids.ShardListDataset(train) as dataset:
        assert dataset.find_key("s00009") == 9
        write_tar(tar, [("big.txt", bytes(20_000)), *sample_members(9, 13)])
        assert dataset.find_key("s00009") == 9
        assert dataset.find_key("big") == 8
        with pytest.raises(KeyError):
            dataset.find_key("s00008")


def test_the_first_of_repeated_keys_is_found(tmp_path: Path) -> None:
    """In the order of the dataset or view, as a list of its keys finds it."""
    spec_path = write_shards(tmp_path, [3, 3, 3])
    for name in ("train-000001.tar", "train-000002.tar"):
        write_tar(tmp_path / name, [*sample_members(1, 2), *sample_members(7, 9)])
    for _ in range(2):
        with wids.ShardListDataset(spec_path) as dataset:
            assert list(dataset.reader.find("s00001")) == [1, 3, 6]
            assert dataset.find_key("s00001") == 1
            assert dataset[2:].find_key("s00001") == 1
            for indices in ([8, 6, 0], [6, 3, 0, 1], [1, 6, 1, 3], [0, 2, 6, 3]):
                view = dataset[indices]
                first = list(view.keys()).index("s00001")
                assert view.find_key("s00001") == view.keys().index("s00001") == first
                assert view.get_by_key("s00001")["__index__"] == indices[first]
            assert dataset[::-1].find_key("s00001") == dataset[::-1].keys().index("s00001", 1) == 2
            assert dataset.find_key("s00007") == 4
        dataset_index(spec_path)


def test_a_rule_of_the_callers_does_not_use_the_dataset_index(tmp_path: Path) -> None:
    """Keys by the last dot are others than those that the dataset index has (INDEX-7)."""
    write_tar(tmp_path / "train-000000.tar", [("a.b.txt", b"1"), ("a.c.txt", b"2")])
    spec_path = tmp_path / "train.json"
    spec_path.write_text(json.dumps({"shardlist": [{"url": "train-000000.tar"}]}))
    dataset_index(spec_path)
    with wids.ShardListDataset(spec_path, key_split="last") as dataset:
        assert [dataset.find_key(key) for key in ("a.b", "a.c")] == [0, 1]
    with wids.ShardListDataset(spec_path) as dataset:
        assert dataset.find_key("a") == 0


def test_a_dataset_index_of_one_shard_does_not_answer_for_the_dataset(train: Path) -> None:
    """Keys of a shard with a dataset index of its own, which the dataset index lacks, are found."""
    dataset_index(train)
    other = write_tar(train.parent / "other.tar", sample_members(70, 75))
    wids.build_spec(str(other), dataset_index=train.parent / "other.index")
    document = json.loads(train.read_text())
    document["shardlist"].append({"url": "other.tar", "index": "other.index"})
    train.write_text(json.dumps(document))
    with wids.ShardListDataset(train) as dataset:
        assert dataset.find_key("s00072") == 22


def test_a_part_of_what_was_indexed(train: Path) -> None:
    """A spec that lists fewer shards than its dataset index finds their keys, and no others."""
    dataset_index(train)
    document = json.loads(train.read_text())
    train.write_text(json.dumps({**document, "shardlist": document["shardlist"][:2]}))
    with wids.ShardListDataset(train) as dataset:
        assert dataset.find_key("s00012") == 12
        with pytest.raises(KeyError):
            dataset.find_key("s00013")


def test_shards_with_other_counts_are_an_error_when_they_are_reached(train: Path) -> None:
    """A position is never counted into the next shard."""
    dataset_index(train)
    document = json.loads(train.read_text())
    document["shardlist"][1]["nsamples"] = 3
    train.write_text(json.dumps(document))
    with wids.ShardListDataset(train) as dataset:
        assert dataset.find_key("s00002") == 2
        with raises(MismatchError, "the spec says 3 samples, the shard has 5"):
            dataset.find_key("s00012")


def test_damaged_shards_are_an_error_only_when_they_are_reached(train: Path) -> None:
    """A key of an earlier shard is found, and later ones after the repair."""
    tar = train.parent / "train-000001.tar"
    good = tar.read_bytes()
    tar.write_bytes(b"no tar" * 200)
    with wids.ShardListDataset(train) as dataset:
        assert dataset.find_key("s00002") == 2
        for key in ("s00018", "nope"):
            with raises(ShardFormatError, "train-000001.tar"):
                dataset.find_key(key)
        tar.write_bytes(good)
        assert [dataset.find_key(f"s{n:05d}") for n in (9, 18, 9)] == [9, 18, 9]


def test_remote_shards_are_searched_as_they_are_fetched(tmp_path: Path, server: Server) -> None:
    """Without a dataset index, fetched shards are searched, and none is fetched for it."""
    site = Site(tmp_path / "site", server)
    with wids.ShardListDataset(site.spec()) as dataset:
        dataset.fetch_shard(0)
        assert dataset.find_key("s00002") == 2
        with raises(FetchError, "/train-1.tar: expected its index", "'s00010'"):
            dataset.find_key("s00010")
        dataset.fetch_shard(1)
        assert dataset.find_key("s00010") == 10
        with raises(FetchError, "/train-2.tar: expected its index"):
            dataset.find_key("s00018")
        dataset.fetch_shard(2)
        assert [dataset.find_key(f"s{n:05d}") for n in range(20)] == list(range(20))


def test_threads_forks_and_pickles_find_the_same(spec_path: Path) -> None:
    """Before and after the first look-up, and at the same time as it."""
    keys = [f"s{number:05d}" for number in range(20)]

    def finds(dataset: wids.ShardListDataset) -> bool:
        return [dataset.find_key(key) for key in keys] == list(range(20))

    with wids.ShardListDataset(spec_path) as dataset:
        unused = pickle.dumps(dataset)
        assert in_child(lambda: finds(dataset))
        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(lambda _: finds(dataset), range(16)))
        assert in_child(lambda: finds(dataset))
        used = pickle.dumps(dataset)
    assert len(used) < len(unused) + 200, "the table does not travel"
    for pickled in (unused, used):
        with pickle.loads(pickled) as other:  # noqa: S301 - made here
            assert finds(other)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(
        st.lists(st.sampled_from("abcdefghij"), unique=True, min_size=1), min_size=1, max_size=4
    ),
    st.booleans(),
)
def test_find_is_what_a_search_through_the_tars_finds(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[str]], is_in_dataset_index: bool
) -> None:
    """Keys in any shards, several times too: the positions are those of the standard library."""
    folder = tmp_path_factory.mktemp("shards")
    for number, keys in enumerate(shards):
        write_tar(folder / f"{number}.tar", [(f"{key}.txt", b"") for key in keys])
    paths = [str(folder / f"{number}.tar") for number in range(len(shards))]
    spec = (
        wids.build_spec(paths, dataset_index=folder / "p.index")
        if is_in_dataset_index
        else wids.load_spec(paths)
    )
    spec.save(folder / "spec.json")
    if is_in_dataset_index:
        document = json.loads((folder / "spec.json").read_text())
        (folder / "spec.json").write_text(json.dumps({**document, "index": "p.index"}))
    stored = []
    for path in paths:
        with tarfile.open(path) as tar:
            stored += [name.removesuffix(".txt") for name in tar.getnames()]
    with wids.ShardListDataset(folder / "spec.json") as dataset:
        for key in "abcdefghijk":
            expected = [at for at, other in enumerate(stored) if other == key]
            assert list(dataset.reader.find(key)) == expected


def write_many(folder: Path, num_shards: int, num_samples: int) -> Path:
    """Write shards of empty members, quickly."""
    for number in range(num_shards):
        start = number * num_samples
        members = [(f"k{start + i:08d}.txt", b"") for i in range(num_samples)]
        write_tar(folder / f"t-{number:05d}.tar", members, tarfile.USTAR_FORMAT)
    shardlist = [
        {"url": f"t-{number:05d}.tar", "nsamples": num_samples} for number in range(num_shards)
    ]
    (folder / "train.json").write_text(json.dumps({"shardlist": shardlist}))
    return folder / "train.json"


def fastest(work: Callable[[], object], rounds: int) -> float:
    """Return the least seconds of processor time of several rounds."""
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


@pytest.mark.alone
def test_a_key_takes_no_longer_among_many_shards(tmp_path: Path) -> None:
    """Among 3,000 shards less than twice as long as among 30, with a dataset index or without."""

    def each_s(spec_path: Path, num_samples: int) -> float:
        keys = [f"k{(number * 7919) % num_samples:08d}" for number in range(200)]
        with wids.ShardListDataset(spec_path) as dataset:
            assert dataset.find_key(keys[1]) == 7919 % num_samples
            return fastest(lambda: [dataset.find_key(key) for key in keys], 7)

    few, many = tmp_path / "few", tmp_path / "many"
    few.mkdir()
    many.mkdir()
    paths = [(write_many(few, 30, 10), 300), (write_many(many, 3000, 10), 30_000)]
    for is_in_dataset_index in (False, True):
        few_s, many_s = (each_s(*arguments) for arguments in paths)
        assert many_s < 2 * few_s, is_in_dataset_index
        for spec_path, _ in paths:
            dataset_index(spec_path)


@pytest.mark.parametrize(("stored", "asked"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_a_key_in_another_unicode_form(
    stored: Literal["NFC", "NFD"], asked: Literal["NFC", "NFD"], tmp_path: Path
) -> None:
    """The errors of look-ups and joins say so, as of names from macOS; others do not."""
    path = write_tar(tmp_path / "a.tar", [(f"{normalize(stored, 'café')}.txt", b"x")])
    dataset = wids.ShardListDataset(path)
    hint = f'in another Unicode form: unicodedata.normalize("{stored}", key)'
    with raises(KeyError, hint):
        dataset.get_by_key(normalize(asked, "café"))
    with raises(KeyError, "its keys() are all"):
        dataset.get_by_key("cafë")
    with raises(JoinError, f'normalize("{asked}", key)'):
        dataset.join({normalize(asked, "café"): 1})
