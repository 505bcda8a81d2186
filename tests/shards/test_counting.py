"""What a constructor downloads to count samples: said before, refused if it is a lot."""

from __future__ import annotations

import json
import logging
import sys
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from conftest import raises, sample_members, settle, write_tar
from loopback import Fault, Server
from tqdm import tqdm

import wids
from wids.shards.costs import DownloadCost
from wids.shards.indexes import index_file


@pytest.fixture
def urls(server: Server, tmp_path: Path) -> list[str]:
    """Eight remote shards of ten samples."""
    found = []
    for number in range(8):
        path = tmp_path / f"train-{number:03d}.tar"
        write_tar(path, sample_members(number * 10, number * 10 + 10))
        found.append(server.page(f"/{path.name}", path.read_bytes()))
        path.unlink()
    return found


def claim(server: Server, path: str, nbytes: int) -> str:
    """Serve a file that is said to be so long; a request for it fails."""
    url = server.page(path, b"", always=Fault(500))
    server.pages[path].stated_nbytes = nbytes
    server.pages[path].always = None
    return url


def tars_asked(server: Server) -> list[str]:
    """Return the shards whose lengths were asked, apart from files beside them (SPEC-50)."""
    return [request.path for request in server.asked if request.path.endswith(".tar")]


def test_a_wrong_upper_bound_downloads_no_shard(server: Server, urls: list[str]) -> None:
    """All lengths are asked before the first body."""
    pattern = f"{server.url}/train-{{000..011}}.tar"
    for work in (wids.ShardListDataset, wids.build_spec):
        with raises(
            wids.NotFoundError,
            f"expected {pattern}; 000 to 007 exist, 008 and 3 more do not",
        ):
            work(pattern)
    assert server.num_sent == 0
    assert server.log == []
    assert len(tars_asked(server)) == 2 * (len(urls) + 4)


def test_a_missing_local_shard_is_named_with_those_that_exist(tmp_path: Path) -> None:
    """Before any shard is scanned."""
    for number in (0, 1):
        (tmp_path / f"train-{number}.tar").write_bytes(b"no tar")
    for work in (wids.ShardListDataset, wids.build_spec):
        with raises(wids.NotFoundError, "train-{0..3}.tar; 0 to 1 exist, 2 and 1 more do not"):
            work(f"{tmp_path}/train-{{0..3}}.tar")


def test_shards_that_were_indexed_are_counted_without_opening_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the heads of their indexes, which are bound to them; one written again is opened."""
    tars = [
        settle(write_tar(tmp_path / f"{n}.tar", sample_members(n * 10, n * 10 + 10)))
        for n in range(4)
    ]
    with wids.ShardListDataset(tars) as dataset:
        assert (len(dataset), dataset.get_stats()[1]) == (40, 4)
    with monkeypatch.context() as heads_alone:
        heads_alone.setattr(index_file, "parse", None)
        wids.ShardListDataset(tars).close()
    settle(write_tar(tars[1], sample_members(10, 17)))
    with wids.ShardListDataset(tars) as dataset:
        assert (dataset.lengths, dataset.get_stats()[1]) == ([10, 7, 10, 10], 1)
        assert dataset[36]["__key__"] == "s00039"
        assert dataset.get_stats()[1] == 2
        write_tar(tars[2], sample_members(20, 28))
        with raises(wids.MismatchError, "expected 10 samples as when", "found 8", "open the"):
            dataset[20]


def test_a_damaged_index_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is damaged, the shard is opened to be counted (INDEX-3)."""
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "cache"))
    tar = settle(write_tar(tmp_path / "a.tar", sample_members(0, 10)))
    wids.ShardListDataset([tar]).close()
    (stored,) = (tmp_path / "cache" / "indexes").glob("*.index")
    good = stored.read_bytes()
    for at in [*range(0, 248, 8), *range(248, len(good), 61), None]:
        flipped = good if at is None else good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        stored.unlink()
        stored.write_bytes(flipped)
        with wids.ShardListDataset([tar]) as dataset:
            assert (len(dataset), dataset.get_stats()[1]) == (10, at is not None), at


def test_more_than_a_gigabyte_is_refused(server: Server) -> None:
    """The error states the bytes, and what to do; nothing was downloaded (SPEC-26)."""
    urls = [claim(server, f"/{n}.tar", 600_000_000) for n in range(2)]
    with raises(
        wids.SpecError,
        *("1.2 GB in 2 shards would be downloaded now", "more than 1.0 GB", "`wids create`"),
        *("wids.build_spec", 'access="download"'),
    ):
        wids.ShardListDataset(urls)
    assert server.log == []
    # What the spec says is not asked, and costs nothing to refuse.
    server.asked.clear()
    with raises(wids.SpecError, "1.2 GB in 2 shards"):
        wids.ShardListDataset([{"url": url, "filesize": 600_000_000} for url in urls])
    assert tars_asked(server) == []


def test_a_download_that_was_asked_for(
    server: Server, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``access="download"`` is the consent; what is known or local costs nothing (SPEC-26)."""
    monkeypatch.setattr("wids.shards.costs.LIMIT_NBYTES", 50_000)
    with raises(wids.SpecError, "in 8 shards would be downloaded"):
        wids.ShardListDataset(urls)
    assert server.log == []
    with wids.ShardListDataset(urls, access="download") as dataset:
        assert len(dataset) == 80
    assert len(server.log) == 8
    with wids.ShardListDataset(urls) as dataset:  # all have copies by now
        assert dataset[79][".txt"] == "text 79"
    server.asked.clear()
    counted = [(url, 10) for url in urls]
    with wids.ShardListDataset(counted) as dataset:
        assert len(dataset) == 80
    assert (len(server.log), server.asked) == (8, [])


def test_a_cache_that_holds_some_of_them(server: Server, urls: list[str], tmp_path: Path) -> None:
    """Each shard is downloaded once, also where the cache holds only some of them."""
    nbytes = len(server.pages["/train-000.tar"].body)
    options = {"cache_dir": tmp_path / "cache", "cache_size": 3 * nbytes}
    with wids.ShardListDataset(urls, **options) as dataset:
        assert len(dataset) == 80
    assert len(server.log) == 8


def test_unknown_lengths(server: Server, urls: list[str], tmp_path: Path) -> None:
    """A server that states no length does not keep a dataset from being opened."""
    data = server.pages["/train-000.tar"].body
    url = server.page("/x.tar", data, is_chunked=True, has_ranges=False)
    with wids.ShardListDataset([url, urls[1]]) as dataset:
        assert dataset.lengths == [10, 10]
    assert str(DownloadCost({"a": None, "b": 5, "c": None})) == (
        "5 B in 3 shards and 2 of unknown length"
    )
    (tmp_path / "a.tar").write_bytes(data)
    with wids.ShardListDataset(f"pipe:cat {tmp_path}/a.tar") as dataset:
        assert len(dataset) == 10


def test_it_says_what_it_downloads(
    urls: list[str],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One bar has the bytes of all shards, and the time that is left (SPEC-26)."""
    caplog.set_level(logging.INFO, "wids")
    monkeypatch.setattr("wids.storage.progress.DELAY_S", 0)
    each = partialmethod(tqdm.__init__, mininterval=0)  # the last one comes within 0.1 s otherwise
    monkeypatch.setattr(tqdm, "__init__", each)
    with wids.ShardListDataset(urls, progress=True):
        pass
    assert "counting samples: downloading 245.8 kB in 8 shards" in caplog.text
    shown = capsys.readouterr().err
    assert "/246k [" in shown
    assert "8 of 8 shards" in shown
    assert "<" in shown  # the time that is left
    assert "fetching train-" not in shown


def test_a_shard_that_cannot_be_downloaded(server: Server, urls: list[str]) -> None:
    """The error is that of the shard, and the others are cancelled."""
    server.pages["/train-003.tar"].always = Fault(403)
    server.pages["/train-003.tar"].stated_nbytes = 5
    with raises(wids.FetchError, "train-003.tar", "403"):
        wids.ShardListDataset(urls)


def test_a_spec_of_counts_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No work for each shard where the counts are stated."""
    monkeypatch.setattr("wids.storage.fetch.Fetcher.nbytes", lambda *_: sys.exit("asked"))
    spec = [(f"https://example.invalid/{n}.tar", 10) for n in range(1000)]
    with wids.ShardListDataset(spec) as dataset:
        assert len(dataset) == 10_000


def _stated(tars: list[str], where: str, folder: Path, num_samples: int) -> Any:
    """Return shards of which the second has this count, in a spec, a table of one, or a file."""
    counts = dict.fromkeys(tars, 3) | {tars[1]: num_samples}
    if where == "sizes.json":
        (folder / where).write_text(json.dumps(counts))
        return [str(folder / name) for name in tars]
    note = " " * ((1 << 20) if where == "table" else 0)
    entries = [{"url": name, "nsamples": count, "note": note} for name, count in counts.items()]
    (folder / "train.json").write_text(json.dumps({"wids_version": 1, "shardlist": entries}))
    return str(folder / "train.json")


@pytest.mark.parametrize("where", ["spec", "table", "sizes.json"])
def test_a_shard_that_is_stated_to_be_empty_is_looked_at(where: str, tmp_path: Path) -> None:
    """A wrong 0 is an error when the dataset is made, as no sample would reveal it."""
    tars = ["0.tar", "1.tar", "2.tar"]
    for name, length in zip(tars, (3, 5, 3), strict=True):
        write_tar(tmp_path / name, sample_members(0, length))
    shards = _stated(tars, where, tmp_path, 0)

    with raises(wids.MismatchError, "1.tar", "says 0 samples, the shard has 5"):
        wids.ShardListDataset(shards)
    with (
        pytest.warns(UserWarning, match="1.tar"),
        wids.ShardListDataset(shards, on_error="skip") as dataset,
    ):
        assert len(dataset) == 6

    write_tar(tmp_path / "1.tar", [])
    with wids.ShardListDataset(shards) as dataset:
        assert len(dataset) == 6


def test_a_remote_shard_that_is_stated_to_be_empty(server: Server, tmp_path: Path) -> None:
    """It is read, unless its index has no samples either; a large one only on request."""
    path = write_tar(tmp_path / "0.tar", sample_members(0, 5))
    url = server.page("/0.tar", path.read_bytes())
    with raises(wids.MismatchError, "/0.tar", "says 0 samples, the shard has 5"):
        wids.ShardListDataset([(url, 0)])
    large = claim(server, "/large.tar", 2 * 10**9)
    with raises(wids.SpecError, "2.0 GB"):
        wids.ShardListDataset([(large, 0)])

    empty = write_tar(tmp_path / "1.tar", [])
    spec = wids.build_spec([path, empty], dataset_index=tmp_path / "train.index")
    spec.save(tmp_path / "train.json")
    for name in ("train.json", "train.index", "1.tar"):
        server.page(f"/{name}", (tmp_path / name).read_bytes())
    del server.log[:]
    with wids.ShardListDataset(f"{server.url}/train.json") as dataset:
        assert len(dataset) == 5
    assert not [name for name in server.requests if name.endswith(".tar")]
