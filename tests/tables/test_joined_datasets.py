"""What works on a dataset works on a joined one: loaders, samplers, prefetching, pages."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import in_child, raises
from events import wait_for
from join_shards import fields, shards, shuffled, write_side
from loopback import Server
from remote_site import Site
from torch.utils.data import DataLoader

import wids
from wids.errors import FetchError, JoinError, SpecError
from wids.shards.sample_access import capacity_of
from wids.tables.join_fields import Names
from wids.tables.join_keys import PositionMap
from wids.tables.join_sides import DatasetSide, KeyedSamples
from wids.tables.joined import Joint

KEYS = [f"s{number:05d}" for number in range(20)]


@pytest.fixture
def joined(train: Path) -> wids.ShardListDataset:
    """20 samples with captions of another dataset, scores of a frame and tags of files."""
    write_side(train.parent, "c", shuffled(KEYS), [3, 15], ".caption.txt")
    for number, (start, stop) in enumerate(((0, 8), (8, 13), (13, 20))):
        tags = {key: {"tag.txt": f"tag of {key}"} for key in KEYS[start:stop]}
        (train.parent / f"train-{number:06d}.tags.json").write_text(json.dumps(tags))
    scores = pd.DataFrame({"__key__": shuffled(KEYS, 1)}).assign(
        score=lambda frame: frame["__key__"].str[1:].astype(int)
    )
    dataset = wids.ShardListDataset(train).join(wids.ShardListDataset(shards(train.parent, "c")))
    return dataset.join(scores, prefix="b").join("{shard}.tags.json")


def expected(number: int) -> dict[str, Any]:
    key = f"s{number:05d}"
    return {
        ".txt": f"text {number}",
        ".cls": number % 10,
        ".caption.txt": f".caption.txt of {key}",
        ".b.score": number,
        ".tag.txt": f"tag of {key}",
    }


@pytest.mark.parametrize("method", [None, "fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_loaders_and_samplers(joined: wids.ShardListDataset, method: str | None) -> None:
    """Chunks follow the first side's shards; workers read the same samples."""
    with joined:
        joined[3]
        sampler = wids.ChunkedSampler(joined, chunksize=5)
        loader: DataLoader[Any] = DataLoader(
            joined,
            batch_size=4,
            sampler=sampler,
            num_workers=2 if method else 0,
            multiprocessing_context=method,
            collate_fn=list,
        )
        seen = [sample for batch in loader for sample in batch]
        assert [sample["__index__"] for sample in seen] == list(
            wids.ChunkedSampler(joined, chunksize=5)
        )
        for sample in seen:
            assert fields(sample) == expected(sample["__index__"])


def test_ranks_share_a_join(joined: wids.ShardListDataset) -> None:
    """And views of it, by their lengths."""
    view = joined[[*range(5), *range(9, 20)]]
    assert view.lengths == [5, 4, 7]
    with joined:
        seen = [
            view[index]["__index__"]
            for rank in range(2)
            for index in wids.DistributedChunkedSampler(
                view, num_replicas=2, rank=rank, chunksize=3
            )
        ]
    assert sorted(seen) == [*range(5), *range(9, 20)]


def test_pickles_and_forks(joined: wids.ShardListDataset) -> None:
    """A joined dataset travels, used or not."""
    unused = pickle.loads(pickle.dumps(joined))  # noqa: S301 - made here
    assert fields(joined[7]) == expected(7)
    used = pickle.loads(pickle.dumps(joined[5:]))  # noqa: S301 - made here
    assert fields(unused[7]) == fields(used[2]) == expected(7)
    assert in_child(lambda: fields(joined.__getitems__([19, 7])[1]) == expected(7))
    for dataset in (joined, unused, used):
        dataset.close()


def publish(site: Site, name: str, keys: list[str], cuts: list[int]) -> str:
    """Publish another dataset on the server of a site, with a dataset index; return its URL."""
    folder = site.folder / name
    folder.mkdir()
    paths = shards(write_side(folder, name, keys, cuts, ".cap"), name)
    spec = wids.build_spec(paths, dataset_index=folder / f"{name}.index")
    for path in [*paths, str(folder / f"{name}.index")]:
        site.server.page(f"/{Path(path).name}", Path(path).read_bytes())
    entries = [{**shard.entry(), "url": Path(shard.url).name} for shard in spec.shards]
    return site.server.page(f"/{name}.json", {"shardlist": entries, "index": f"{name}.index"})


def test_automatic_chunks_count_the_bytes_of_both_sides(tmp_path: Path, server: Server) -> None:
    """The working set has the shards of both sides, where one cache stores them."""
    site = Site(tmp_path / "site", server, [5] * 8)
    keys = [f"s{number:05d}" for number in range(40)]
    url = publish(site, "caps", keys, [10, 20, 30])  # each has the keys of two shards
    sizes = [path.stat().st_size for path in sorted((site.folder / "caps").glob("*.tar"))]
    local = sorted(map(str, site.folder.glob("train-*.tar")))
    cache = {"cache_dir": tmp_path / "cache", "cache_size": sum(sizes) - 1}

    def chunksize(**options: Any) -> int | None:
        other = wids.ShardListDataset(url, **options)
        with wids.ShardListDataset(local, cache_dir=tmp_path / "cache").join(other) as joined:
            limits = joined[:12].limits
            if limits.cache_nbytes is not None:
                assert limits.nbytes.tolist() == [sizes[0] / 2] * 2 + [sizes[1] / 2] + [0] * 5
                assert joined.limits.nbytes.sum() == sum(sizes)
                assert limits.cache_nbytes == cache["cache_size"]
            return wids.ChunkedSampler(joined, chunksize="auto").chunksize

    assert chunksize(**cache) == 2 * 5 - 1, "a chunk has one whole shard"
    assert chunksize(cache_dir=tmp_path / "cache") == 2000
    assert chunksize(**cache, access="range") == 2000
    assert chunksize(**{**cache, "cache_dir": tmp_path / "other"}) == 2000


def test_limits_count_each_url_once(tmp_path: Path, server: Server) -> None:
    """The cache has one file for a URL, whichever sides of joins read it."""
    site = Site(tmp_path / "site", server, [5] * 8)
    site.state(filesize=len)
    site.dataset_index()
    total = sum(map(len, site.bodies))
    caps = publish(site, "caps", [f"s{number:05d}" for number in range(40)], [10, 20, 30])
    cap_sizes = [path.stat().st_size for path in sorted((site.folder / "caps").glob("*.tar"))]
    cache: dict[str, Any] = {"cache_dir": tmp_path / "cache", "cache_size": total // 2}
    left = wids.ShardListDataset(site.spec(index="train.index"), **cache)
    by_range = wids.ShardListDataset(site.spec(index="train.index"), access="range", **cache)
    own = left.limits.nbytes
    auto = wids.ChunkedSampler(left, chunksize="auto").chunksize

    itself = left.join(left.map(dict), prefix="b")
    assert itself.limits.nbytes.tolist() == own.tolist()
    assert wids.ChunkedSampler(itself, chunksize="auto").chunksize == auto
    assert left.join(by_range, prefix="b").limits.nbytes.tolist() == own.tolist()

    other = wids.ShardListDataset(caps, **cache)
    both = left.join(other).limits.nbytes
    assert both.sum() == own.sum() + sum(cap_sizes)
    for again in (left, other, left.join(other, prefix="x"), other.join(other, prefix="x")):
        nested = left.join(other).join(again, prefix="b")
        assert nested.limits.nbytes.tolist() == both.tolist()
    inside = left.join(other.join(other, prefix="x").join(other, prefix="y"), prefix="b")
    assert inside.limits.nbytes.tolist() == both.tolist()

    # What the other side does not need is not counted by it, and so may be counted later.
    few = left.join(other[:10], missing="none", prefix="x")
    assert few.limits.nbytes.sum() == own.sum() + cap_sizes[0]
    assert few.join(other, prefix="y").limits.nbytes.sum() == both.sum()


def test_limits_of_many_shards_in_random_order_take_little_memory() -> None:
    """Not that of all pairs of shards, and nothing of it is pickled."""
    num_shards, length = 1000, 1000

    def dataset(name: str) -> wids.ShardListDataset:
        entries = [
            {"url": f"http://localhost:1/{name}-{n}.tar", "nsamples": length, "filesize": 1000 + n}
            for n in range(num_shards)
        ]
        document: Any = {"wids_version": 1, "shardlist": entries}
        return wids.ShardListDataset(document, cache_size="1GB")

    left, right = dataset("a"), dataset("b")
    targets = np.random.default_rng(0).permutation(num_shards * length)
    other = DatasetSide(KeyedSamples(right), Names(""), ())
    joint = Joint(KeyedSamples(left), other, PositionMap(0, targets), fills=False)
    reader = joint.reader()
    lengths = [length] * num_shards
    # This also imports modules, which take memory, and looks up how samples are read.
    assert left.limits.nbytes.sum() == capacity_of(right.reader, lengths).nbytes.sum()
    nbytes_pickled = len(pickle.dumps(reader))
    tracemalloc.start()
    try:
        limits = capacity_of(reader, lengths)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20
    rows = targets.reshape(num_shards, length) // length
    is_needed = np.zeros((num_shards, num_shards), bool)
    is_needed[np.arange(num_shards)[:, None], rows] = True
    sizes = 1000 + np.arange(num_shards)
    np.testing.assert_allclose(limits.nbytes, sizes + is_needed @ (sizes / is_needed.sum(0)))

    assert not reader.is_local(0)
    assert reader.nbytes(1) == sizes[1] + sizes[is_needed[1]].sum()
    pickled = pickle.dumps(reader)
    assert len(pickled) == nbytes_pickled
    assert pickle.loads(pickled).nbytes(1) == reader.nbytes(1)  # noqa: S301 - made here


def test_a_join_opens_no_shard_again(train: Path) -> None:
    """The dataset and its joins share open shards and their numbers, in other processes too."""
    with wids.ShardListDataset(train) as left:
        result = left.join(left, prefix="b")
        for joined in (result, pickle.loads(pickle.dumps(result))):  # noqa: S301 - made here
            own = joined.reader.joint.own.reader
            assert joined.reader.open(1) is own.open(1)
            assert joined.get_stats() == own.accesses.sums()


def test_fetching_ahead_fetches_both_sides(tmp_path: Path, server: Server) -> None:
    """Each remote shard of either side once, before it is read."""
    site = Site(tmp_path / "site", server)
    site.state(filesize=len)
    site.dataset_index()
    url = publish(site, "caps", KEYS, [10])
    left = wids.ShardListDataset(site.spec(index="train.index"), access="download")
    result = left.join(wids.ShardListDataset(url, access="download"))
    assert site.asked() == [], "indexes are enough to join"
    assert [result.reader.is_local(number) for number in range(3)] == [False] * 3
    assert result.reader.nbytes(1) == sum(len(body) for body in site.bodies[1:2]) + 2 * 20480
    sampler = wids.Prefetcher(wids.ChunkedSampler(result, shuffle=False), result)
    indices = iter(sampler)
    with result:
        first = next(indices)
        result[first]
        # They are fetched before they are read.
        wait_for(lambda: all(map(result.reader.is_local, range(3))))
        for index in chain([first], indices):
            sample = result[index]
            assert sample[".cap"].getvalue() == f".cap of {sample['__key__']}".encode()
    assert sorted(site.asked()) == [
        *[f"/caps-{number}.tar" for number in range(2)],
        *[f"/train-{number}.tar" for number in range(3)],
    ]


def test_a_join_by_range_reads_only_what_it_needs(tmp_path: Path, server: Server) -> None:
    """Single samples of both sides come by range; `only` fetches nothing else."""
    site = Site(tmp_path / "site", server)
    site.dataset_index()
    url = publish(site, "caps", shuffled(KEYS), [3, 12])
    with wids.ShardListDataset(site.spec(index="train.index")) as left:
        result = left.join(wids.ShardListDataset(url))
        assert result[3][".cap"].getvalue() == b".cap of s00003"
        with result.only([".cap"]) as view:
            assert view[4] == {**view[4], ".cap": b".cap of s00004"}
        assert all(r.range for r in server.log if r.path.endswith(".tar"))
        result.close()


@pytest.mark.parametrize("access", ["range", "download"])
def test_each_side_fetches_as_its_own_settings_say(
    tmp_path: Path, server: Server, train: Path, access: Any
) -> None:
    """The other side may be read by range only, or be fetched as a whole."""
    site = Site(tmp_path / "site", server)
    url = publish(site, "caps", shuffled(KEYS), [3, 12])
    for left_access in ("auto", "range", "download"):
        server.log.clear()
        with (
            wids.ShardListDataset(train, access=left_access) as left,  # type: ignore[arg-type]
            wids.ShardListDataset(url, access=access, cache_dir=tmp_path / left_access) as right,
        ):
            result = left.join(right)
            for sample in (result[3], result.__getitems__([4, 3])[1], next(iter(result[3:]))):
                assert sample[".cap"].getvalue() == b".cap of s00003"
        asked = [r.range is None for r in server.log if r.path.endswith(".tar")]
        assert asked
        assert set(asked) == {access == "download"}


def test_a_server_without_ranges_on_the_other_side(
    tmp_path: Path, server: Server, train: Path
) -> None:
    """The shard is fetched as a whole instead, as for any dataset."""
    site = Site(tmp_path / "site", server)
    url = publish(site, "caps", KEYS, [3, 12])
    for path in (tmp_path / "site" / "caps").glob("*.tar"):
        server.page(f"/{path.name}", path.read_bytes(), has_ranges=False)
    with wids.ShardListDataset(train) as left, wids.ShardListDataset(url) as right:
        result = left.join(right)
        assert result[3][".cap"].getvalue() == b".cap of s00003"
        assert result.__getitems__([14])[0][".cap"].getvalue() == b".cap of s00014"


def test_a_damaged_copy_of_the_other_side_is_fetched_again(
    tmp_path: Path, server: Server, train: Path, own_cache: Path
) -> None:
    """Alone and in batches, as for any dataset."""
    site = Site(tmp_path / "site", server)
    url = publish(site, "caps", KEYS, [10])
    for read in (lambda r: r[3], lambda r: r.__getitems__([3, 4])[0]):
        with wids.ShardListDataset(url, access="download", verify="always") as right:
            right[3]
            (copy,) = (own_cache / "shards").glob("*caps-0.tar")
            data = copy.read_bytes().replace(b".cap of s00003", b".cap of sXXXXX")
            status = copy.stat()
            copy.chmod(0o600)
            copy.write_bytes(data)
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
            with wids.ShardListDataset(train) as left:
                assert read(left.join(right))[".cap"].getvalue() == b".cap of s00003"


def test_shards_without_an_index_are_an_error(tmp_path: Path, server: Server) -> None:
    """Nothing is fetched to join; the error says what to do."""
    site = Site(tmp_path / "site", server)
    with wids.ShardListDataset(site.spec()) as dataset:
        with raises(FetchError, "/train-0.tar: expected its index", "wids create"):
            dataset.join(dict.fromkeys(KEYS, 1))
        assert site.asked() == []


def test_notebooks_show_fields_of_all_sides(joined: wids.ShardListDataset) -> None:
    """The summary, the gallery, a gallery of a search, and views of them."""
    with joined:
        summary = joined._repr_html_()
        for name in expected(0):
            assert f"<code>{name}</code>" in summary
        assert ".caption.txt of s00000" in summary
        gallery = joined[4:].show(3, where=lambda sample: sample[".b.score"] == 9)
        assert gallery.indices == [5]
        html = gallery._repr_html_()
        assert ".caption.txt of s00009" in html
        assert ".b.score 1 B, .tag.txt 13 B" in html


def test_searches_find_fields_of_all_sides(joined: wids.ShardListDataset) -> None:
    """Words, values and fields are those of samples, whichever side has them."""
    with joined:
        found = joined[9:].search(where='.cls >= 7 and .tag.txt != "tag of s00018"')
        assert [sample["__key__"] for sample in found] == ["s00009", "s00017", "s00019"]
        assert [s["__key__"] for s in joined.search("caption s00009")] == ["s00009"]
        assert len(joined.search(field=".tag.txt")) == 20


def test_bytes_of_a_join_are_those_of_the_first_side(joined: wids.ShardListDataset) -> None:
    """Its fields are opened and placed; what was joined has no bytes of its own."""
    with joined:
        with joined.open_field(9, ".txt") as file:
            assert file.read() == b"text 9"
        for field in (".caption.txt", ".b.score"):
            with raises(KeyError, field):
                joined.open_field(9, field)
            with raises(KeyError, field):
                joined.member(9, field)


def test_tables_have_columns_of_both_datasets(joined: wids.ShardListDataset) -> None:
    """Fields of shards on either side can be columns, of a view too."""
    with joined:
        table = joined[4:].table({"label": ".cls", "caption": ".caption.txt"})
    assert table["label"].to_pylist() == [number % 10 for number in range(4, 20)]
    assert table["caption"].to_pylist() == [f".caption.txt of {key}" for key in KEYS[4:]]


def test_get_shard_of_a_join_is_an_error(joined: wids.ShardListDataset) -> None:
    """No single file has all fields of its samples."""
    with joined, raises(TypeError, "found a joined one; ask the dataset"):
        joined.get_shard(3)


def test_a_field_that_is_in_both_shows_as_an_error(train: Path) -> None:
    """Where people look, the card has the error and the rest is shown."""
    with wids.ShardListDataset(train) as dataset:
        with pytest.raises(JoinError):
            dataset.join(dataset)[0]
        assert "on both" in dataset.join(dataset).show(2)._repr_html_()


def test_classes_of_both_sides(train: Path) -> None:
    """Where both sides state classes, they are the same, unless one is not read (SPEC-62)."""
    left = wids.ShardListDataset(train)
    left.classes = ["cat", "dog"]
    right, texts = wids.ShardListDataset(train), wids.ShardListDataset(train, fields=[".txt"])
    right.classes = texts.classes = ["dog"]
    with raises(SpecError, "the other dataset: expected the classes of the dataset"):
        left.join(right, prefix="b")
    assert left.join(texts, prefix="b")[3][".b.txt"] == "text 3"
    right.classes = ["cat"]
    assert left.join(right, prefix="b")[3][".b.cls"] == 3
