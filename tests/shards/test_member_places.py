"""Where the bytes of a field are in its shard, for stores that keep such places."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import raises
from loopback import Server
from remote_site import Site

import wids


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    """Shards of 8, 5 and 7 samples, with a dataset index."""
    site = Site(tmp_path / "site", server)
    site.dataset_index()
    return site


def test_places_in_local_shards(site: Site) -> None:
    """The bytes at each place are those of the field, also of views."""
    paths = [site.folder / f"train-{number}.tar" for number in range(3)]
    with wids.ShardListDataset(paths, raw="bytes", transformations=[]) as dataset:
        for view in (dataset, dataset[::-3]):
            for index, sample in enumerate(view):
                path, start, nbytes = view.member(index, ".txt")
                assert path == sample["__shard__"]
                assert Path(path).read_bytes()[start : start + nbytes] == sample[".txt"]
        with raises(KeyError, "train-1.tar", "'s00009'", ".jpg"):
            dataset.member(9, ".jpg")
        with pytest.raises(IndexError):
            dataset.member(20, ".txt")
        joined = dataset.join({f"s{n:05d}": n for n in range(20)}, prefix="n")
        assert joined.member(9, ".cls") == dataset.member(9, ".cls")
        with raises(KeyError, ".n"):
            joined.member(9, ".n")
    with wids.Shard(paths[1]) as shard:
        assert shard.member(-1, ".cls") == dataset.member(12, ".cls")[1:]
        with pytest.raises(KeyError):
            shard.member(0, ".jpg")


def test_an_index_is_parsed_once_for_its_samples(tmp_path: Path) -> None:
    """Places of one sample after another parse their index once, and again if the shard changes."""
    with wids.ShardWriter(tmp_path / "a-%d.tar") as writer:
        for number in range(8):
            writer.write({"__key__": f"{number}", ".txt": f"text {number}"})
    path = tmp_path / "a-0.tar"
    with wids.ShardListDataset(tmp_path / "a.json") as dataset:
        reader = dataset.reader
        dataset.member(0, ".txt")
        parsed = reader.key_index(0)
        dataset.member(7, ".txt")
        assert reader.key_index(0) is parsed
        path.with_name("new").write_bytes(path.read_bytes().replace(b"text 1", b"text X"))
        path.with_name("new").replace(path)
        assert reader.key_index(0) is not parsed


def test_an_index_that_was_cut_is_not_used_again(tmp_path: Path) -> None:
    """Touching mapped bytes beyond the end of a file would end the process: the tar is scanned."""
    with wids.ShardWriter(tmp_path / "a-%d.tar") as writer:
        for number in range(5000):
            writer.write({"__key__": f"{number}", ".txt": f"text {number}"})
    with wids.ShardListDataset(tmp_path / "a.json") as dataset:
        place = dataset.member(4999, ".txt")
        os.truncate(tmp_path / "a.index", 100)
        assert dataset.member(4999, ".txt") == place


def test_places_in_remote_shards(site: Site) -> None:
    """With an index nothing of a shard is read; without one, that is an error."""
    with wids.ShardListDataset(site.spec(index="train.index")) as dataset:
        site.server.log.clear()
        for index in range(20):
            url, start, nbytes = dataset.member(index, ".txt")
            number = int(url[-5])
            assert site.bodies[number][start : start + nbytes] == b"text %d" % index
        assert not [path for path in site.asked() if path.endswith(".tar")]
    with wids.ShardListDataset(site.spec()) as dataset:
        with raises(wids.FetchError, "train-0.tar", "index"):
            dataset.member(0, ".txt")
        dataset.fetch_shard(0)
        assert dataset.member(0, ".txt")[1] == 512
