"""The dataset indexes of specs that are opened together as one dataset."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import num_open, raises, sample_members, write_tar
from loopback import Server
from torch.utils.data import DataLoader

import wids
from wids.cli.main import main

LARGE = b"x" * 50_000
"""Beside each text, so that reading a shard whole would show."""


class Parts:
    """Specs of two shards each, with their dataset indexes, on a server and as local files."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server
        for number, name in enumerate("abc"):
            tars = []
            for shard in range(2):
                start = 20 * number + 10 * shard
                members = [*sample_members(start, start + 10)]
                members += [(f"s{n:05d}.bin", LARGE) for n in range(start, start + 10)]
                tars.append(write_tar(folder / f"{name}-{shard}.tar", sorted(members)))
                server.page(f"/{name}-{shard}.tar", tars[-1].read_bytes())
            index = folder / f"{name}.index"
            spec = wids.build_spec([str(tar) for tar in tars], name=name, dataset_index=index)
            spec.save(folder / f"{name}.json")
            server.page(f"/{name}.index", index.read_bytes())
            server.page(f"/{name}.json", json.loads((folder / f"{name}.json").read_text()))
        server.log.clear()

    def url(self, name: str) -> str:
        return f"{self.server.url}/{name}.json"

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.json")

    def num_sent(self) -> int:
        """Return how many bytes of tars were sent."""
        return sum(r.num_sent for r in self.server.log if r.path.endswith(".tar"))


@pytest.fixture
def parts(tmp_path: Path, server: Server) -> Parts:
    return Parts(tmp_path, server)


def as_urls(parts: Parts) -> list[Any]:
    return [parts.url("a"), parts.url("b")]


def as_specs(parts: Parts) -> list[Any]:
    return [wids.load_spec(parts.url("a")), wids.load_spec(parts.url("b"))]


def as_mixture(parts: Parts) -> list[Any]:
    """Return a spec, single shards without a dataset index, and a document."""
    own = f"{parts.server.url}/c-0.tar"
    return [wids.load_spec(parts.url("a")), (own, 10), {"url": own, "nsamples": 10}, parts.url("b")]


FORMS = [as_urls, as_specs, as_mixture]


@pytest.mark.parametrize("form", FORMS)
def test_a_sample_of_each_part_is_read_by_range(
    parts: Parts, form: Callable[[Parts], list[Any]]
) -> None:
    """One sample of a remote shard costs its own bytes, whatever other specs are beside it."""
    with wids.ShardListDataset(form(parts), fields=["txt"]) as dataset:
        last = len(dataset) - 1
        assert [dataset[i][".txt"] for i in (3, last)] == ["text 3", "text 39"]
        assert not any(dataset.reader.is_local(n) for n in (0, len(dataset.spec.shards) - 1))
        assert dataset[4:5].keys()[0] == "s00004"
    assert parts.num_sent() < 5_000


@pytest.mark.parametrize("form", [as_urls, as_specs])
def test_keys_of_each_part_are_found(parts: Parts, form: Callable[[Parts], list[Any]]) -> None:
    """As with one dataset index: no tar is fetched, and a missing key is a KeyError."""
    with wids.ShardListDataset(form(parts), fields=["txt"]) as dataset:
        for n in (0, 12, 27, 39):
            assert dataset.get_by_key(f"s{n:05d}")[".txt"] == f"text {n}"
            assert dataset.find_key(f"s{n:05d}") == n
        with raises(KeyError, "no sample has the key 's00040'"):
            dataset.get_by_key("s00040")
        view = dataset[::-3]
        assert view.keys()[view.find_key("s00030")] == "s00030"
        assert list(dataset.keys()) == [f"s{n:05d}" for n in range(40)]
    assert parts.num_sent() < 10_000


def test_a_key_that_several_parts_have(parts: Parts) -> None:
    """The first position has it, also if a dataset index has more shards than its spec lists."""
    first = json.loads(Path(parts.path("a")).read_text())
    first["shardlist"] = first["shardlist"][:1]
    (parts.folder / "first.json").write_text(json.dumps(first))
    specs = [parts.path(name) for name in ("first", "b", "a", "b")]
    with wids.ShardListDataset(specs) as dataset:
        assert [dataset.find_key(f"s{n:05d}") for n in (5, 15, 25)] == [5, 45, 15]
        assert dataset[45][".txt"] == "text 15"


@pytest.mark.parametrize("form", FORMS)
def test_a_table_of_parts_reads_their_fields_alone(
    parts: Parts, form: Callable[[Parts], list[Any]]
) -> None:
    """By range, where the index of a shard is known."""
    with wids.ShardListDataset(form(parts), access="auto") as dataset:
        chosen = dataset[[0, 11, len(dataset) - 12, len(dataset) - 1]]
        assert chosen.table([".txt"])[".txt"].to_pylist() == [f"text {n}" for n in (0, 11, 28, 39)]
    assert parts.num_sent() < 20_000


@pytest.mark.long
def test_views_joins_and_workers_use_the_dataset_indexes(parts: Parts) -> None:
    """Of both sides of a join, in a pickle, and in workers that are spawned."""
    captions = {f"s{n:05d}": {".caption": f"caption {n}"} for n in range(40)}
    with wids.ShardListDataset(as_urls(parts), fields=["txt"]) as dataset:
        joined = dataset.join(captions)
        assert joined[25][".caption"] == "caption 25"
        other = wids.ShardListDataset(as_specs(parts), fields=["cls"])
        assert dataset.join(other)[38][".cls"] == 8
        with pickle.loads(pickle.dumps(dataset)) as again:  # noqa: S301 - made here
            assert again.get_by_key("s00033")[".txt"] == "text 33"
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(text_of, (dataset, 29)) == "text 29"
        other.close()
    assert parts.num_sent() < 20_000


def text_of(dataset: Any, index: int) -> str:
    """Return the text of a sample; runs in a worker."""
    key: str = dataset.keys()[index]
    text: str = dataset.get_by_key(key)[".txt"]
    dataset.close()
    return text


@pytest.mark.long
def test_spawned_loaders_use_the_dataset_indexes(parts: Parts) -> None:
    """Each worker reads single samples by range."""
    with wids.ShardListDataset(as_urls(parts), fields=["txt"], access="range") as dataset:
        loader: DataLoader[Any] = DataLoader(
            dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn"
        )
        assert [sample[".txt"] for sample in loader] == [f"text {n}" for n in range(40)]
    assert parts.num_sent() < 60_000


def test_local_parts_are_not_scanned(parts: Parts, own_cache: Path) -> None:
    """The index of a local shard comes from the dataset index: nothing is stored for it."""
    with wids.ShardListDataset([parts.path("a"), parts.path("b")]) as dataset:
        assert [sample[".txt"] for sample in dataset] == [f"text {n}" for n in range(40)]
        assert dataset.fields[:1] != []
    assert not list(own_cache.glob("indexes/*"))


@pytest.mark.parametrize("damage", ["missing", "broken", "keys"])
def test_a_part_whose_dataset_index_is_of_no_use(parts: Parts, damage: str) -> None:
    """Its shards are read without it, and those of other parts with theirs."""
    path = parts.folder / "a.index"
    body = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        body[60 if damage == "broken" else -20] ^= 255
        path.write_bytes(body)
    with wids.ShardListDataset([parts.path("a"), parts.path("b")]) as dataset:
        for n in (7, 31):
            assert dataset.get_by_key(f"s{n:05d}")[".txt"] == f"text {n}"
            assert dataset[n][".txt"] == f"text {n}"


def test_many_parts_cost_few_descriptors(tmp_path: Path) -> None:
    """A mapped dataset index holds one: some stay mapped, others are opened at each use."""
    (tmp_path / "0").mkdir()
    tar = write_tar(tmp_path / "0" / "a.tar", sample_members(0, 2500))
    first = wids.build_spec(str(tar), dataset_index=tmp_path / "0" / "a.index").document(
        str(tmp_path / "0")
    )
    assert (tmp_path / "0" / "a.index").stat().st_size > 64 << 10
    for number in range(1, 80):
        (tmp_path / str(number)).symlink_to(tmp_path / "0")
    specs = [wids.load_spec(first, base=tmp_path / str(number)) for number in range(80)]
    with wids.ShardListDataset(specs, lru_size=3) as dataset:
        assert [dataset[2500 * n][".txt"] for n in range(80)] == ["text 0"] * 80
        assert dataset[2500:].find_key("s02499") == 2499
        assert 0 < num_open(tmp_path) < 64 + 10


def test_a_saved_dataset_of_parts_keeps_the_dataset_indexes(parts: Parts) -> None:
    """SPEC-15: the document has the parts as datasets, which earlier versions read as well."""
    own = str(parts.folder / "c-0.tar")
    spec = wids.load_spec([(own, 10), parts.path("a"), (own, 10), parts.path("b")])
    saved = parts.folder / "all.json"
    spec.save(saved)
    again = wids.load_spec(saved)
    assert (again.shards, again.dataset_indexes) == (spec.shards, spec.dataset_indexes)
    assert [(p.start, p.stop) for p in spec.dataset_indexes] == [(1, 3), (4, 6)]
    document = json.loads(saved.read_text())
    indexes = [part.get("index") for part in document["datasets"]]
    assert indexes == [None, "a.index", None, "b.index"]
    assert wids.verify_spec(saved) == wids.verify_spec([own, parts.path("a"), own, parts.path("b")])
    indexed = wids.build_spec(
        [parts.path("a"), parts.path("b")], dataset_index=parts.folder / "all.index"
    )
    assert indexed.dataset_indexes == ()
    assert indexed.index == str(parts.folder / "all.index")


def test_datasets_of_a_document_keep_their_dataset_indexes(parts: Parts) -> None:
    """SPEC-44: unless the document around them has a dataset index of its own."""
    document = {"datasets": [{"source_url": "a.json"}, {"source_url": "b.json", "weight": 2}]}
    url = parts.server.page("/all.json", document)
    with wids.ShardListDataset(url, fields=["txt"]) as dataset:
        assert dataset.get_by_key("s00031")[".txt"] == "text 31"
        assert dataset.weights == {"a": 1, "b": 2}
    assert parts.num_sent() < 5_000
    spec = wids.load_spec({**document, "index": "all.index"}, base=parts.server.url)
    assert (spec.index, spec.dataset_indexes) == (f"{parts.server.url}/all.index", ())


def test_copies_of_dataset_indexes_of_parts_are_cleared(parts: Parts, own_cache: Path) -> None:
    """`wids cache clear SPEC` deletes the copies of all dataset indexes."""
    document = {"datasets": [{"source_url": "a.json"}, {"source_url": "b.json"}]}
    url = parts.server.page("/all.json", document)
    with wids.ShardListDataset(url) as dataset:
        assert dataset.get_by_key("s00031")[".txt"] == "text 31"
    assert len(list(own_cache.glob("shards/*.index.index"))) == 2
    assert main(["cache", "clear", url]) == 0
    assert not list(own_cache.glob("shards/*.index*"))


def test_a_dataset_index_by_another_rule_is_not_used(parts: Parts) -> None:
    """SPEC-44: a document can split the names otherwise than the dataset indexes of its parts."""
    tar = write_tar(parts.folder / "d.tar", [("a.b.txt", b"1"), ("a.c.txt", b"2")])
    wids.build_spec(str(tar), dataset_index=parts.folder / "d.index").save(parts.folder / "d.json")
    document = json.loads(Path(parts.path("d")).read_text())
    del document["shardlist"][0]["nsamples"]
    Path(parts.path("d")).write_text(json.dumps(document))
    other = {"datasets": [{"source_url": "d.json", "key_split": "last"}, {"source_url": "a.json"}]}
    with wids.ShardListDataset(other, base=parts.folder) as dataset:
        assert [(p.start, p.stop) for p in dataset.spec.dataset_indexes] == [(1, 3)]
        assert dataset.get_by_key("a.c")[".txt"] == "2"
        assert dataset.get_by_key("s00019")[".txt"] == "text 19"


def test_a_list_of_specs_is_verified_with_their_dataset_indexes(parts: Parts) -> None:
    """A dataset index of other shards is a problem that names it; so is a key in two parts."""
    specs = [parts.path("a"), parts.path("b")]
    assert wids.verify_spec(specs) == []
    tar, index = parts.folder / "b-1.tar", parts.folder / "b.index"
    write_tar(tar, sample_members(0, 3))
    document = json.loads(Path(parts.path("b")).read_text())
    document["shardlist"] = [shard["url"] for shard in document["shardlist"]]
    Path(parts.path("b")).write_text(json.dumps(document))
    problems = wids.verify_spec(specs)
    assert any(str(index) in p.shard and "its index of b-1.tar" in p.text for p in problems)


def test_a_list_of_one_spec_is_that_spec(parts: Parts) -> None:
    """With its name, its dataset index and its table, as a list of one path is."""
    spec = wids.load_spec(parts.url("a"))
    assert wids.load_spec([spec]) == spec == wids.load_spec([parts.url("a")])
    assert wids.load_spec(iter([spec])).shards[0].dataset == "a"


def test_options_go_to_the_server_of_the_first_spec(parts: Parts) -> None:
    """SEC-9: also if the first of a list was loaded before."""
    spec = wids.load_spec([wids.load_spec(parts.url("a")), wids.load_spec(parts.url("b"))])
    assert spec.origin == parts.server.url


def test_info_shows_the_fields_of_parts(parts: Parts, capsys: pytest.CaptureFixture[str]) -> None:
    """A document of parts has its fields from their dataset indexes, as each of them alone has."""
    spec = wids.load_spec([parts.path("a"), parts.path("b")])
    spec.save(parts.folder / "all.json")
    assert main(["info", *(str(parts.folder / f"{name}.json") for name in ("a", "all"))]) == 0
    text = capsys.readouterr().out
    assert text.count(".txt") == 2
