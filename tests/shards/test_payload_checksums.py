"""One flipped bit: in a copy, in a local shard with a dataset index, on the way from a server."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import raises
from loopback import Fault, Server, flipped
from remote_site import EXPECTED, Site, texts

import wids
from wids.errors import ShardFormatError
from wids.storage import locks

BAD = 3  # the sample whose text is damaged, in the first shard


def flip(path: Path, what: bytes = b"text 3") -> None:
    """Flip a bit of the text as a disk does: length and times stay."""
    status, data = path.stat(), path.read_bytes()
    assert data.count(what) == 1
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(flipped(data, data.index(what) + 1))
    path.chmod(status.st_mode)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    return Site(tmp_path / "site", server)


@pytest.fixture
def first_copy(site: Site, own_cache: Path) -> Path:
    """The copy of the first shard, after all shards were fetched."""
    with wids.ShardListDataset(site.spec(), access="download") as dataset:
        assert texts(dataset) == EXPECTED
    (path,) = (own_cache / "shards").glob("*-train-0.tar")
    site.server.log.clear()
    return path


def single(dataset: wids.ShardListDataset) -> Any:
    return dataset[BAD][".txt"]


def batch(dataset: wids.ShardListDataset) -> Any:
    samples = dataset.__getitems__([BAD + 1, BAD, BAD - 1, BAD, 19])
    expected = [EXPECTED[i] for i in (BAD + 1, BAD - 1, BAD, 19)]
    found = [sample[".txt"] for sample in samples]
    assert found[:1] + found[2:] == expected
    return found[1]


def whole_pass(dataset: wids.ShardListDataset) -> Any:
    return texts(dataset)[BAD]


READS = [single, batch, whole_pass]
Read = Callable[[wids.ShardListDataset], Any]


@pytest.mark.parametrize("read", READS)
def test_damaged_copy_is_fetched_once_more(
    site: Site, first_copy: Path, caplog: pytest.LogCaptureFixture, read: Read
) -> None:
    """A flipped bit in a copy costs a download, and is never decoded (INDEX-10)."""
    flip(first_copy)
    with wids.ShardListDataset(site.spec(), access="download") as dataset:
        assert read(dataset) == "text 3"
        assert texts(dataset) == EXPECTED
    assert site.asked() == ["/train-0.tar"]
    (line,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert 'member "s00003.txt"' in line
    assert "fetching the shard again" in line


@pytest.mark.parametrize("read", READS)
def test_copy_that_is_damaged_while_it_is_open_is_fetched_once_more(
    site: Site, first_copy: Path, read: Read
) -> None:
    """The shard is closed, and opened from its new copy (INDEX-10)."""
    with wids.ShardListDataset(site.spec(), access="download") as dataset:
        assert dataset[0][".txt"] == "text 0"
        flip(first_copy)
        assert read(dataset) == "text 3"
    assert site.asked() == ["/train-0.tar"]


def test_a_copy_that_cannot_be_deleted_is_never_believed(
    site: Site, first_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows keeps a file that is mapped: reading it fails, and the next dataset fetches it."""
    flip(first_copy)
    unlink, replace = os.unlink, os.replace

    def refuse(path: str, *to: str) -> None:
        if path == str(first_copy):
            raise PermissionError(errno.EACCES, "used by another process", path)
        (replace if to else unlink)(path, *to)

    with monkeypatch.context() as windows:
        windows.setattr(locks, "REFUSES_DELETION", True)
        windows.setattr(os, "unlink", refuse)
        windows.setattr(os, "replace", refuse)
        with wids.ShardListDataset(site.spec(), access="download") as dataset:
            for _ in range(2):
                with raises(ShardFormatError, "train-0.tar"):
                    single(dataset)
    assert site.asked() == []
    with wids.ShardListDataset(site.spec(), access="download") as dataset:
        assert texts(dataset) == EXPECTED
    assert site.asked() == ["/train-0.tar"]


def test_rewriting_fetches_a_damaged_copy_once_more(
    site: Site, first_copy: Path, tmp_path: Path
) -> None:
    """Members that are copied as they are stored are compared too."""
    flip(first_copy)
    with wids.ShardListDataset(site.spec(), access="download") as dataset:
        wids.rewrite(dataset, tmp_path / "new-%d.tar")
    assert site.asked() == ["/train-0.tar"]
    with wids.ShardListDataset(tmp_path / "new.json") as dataset:
        assert texts(dataset) == EXPECTED


def test_copy_that_is_damaged_again_is_an_error(site: Site, first_copy: Path) -> None:
    """A dataset fetches a damaged copy once; a disk that damages all files is an error."""
    with wids.ShardListDataset(site.spec(), access="download") as dataset:
        for _ in range(2):
            flip(first_copy)
            if site.asked():
                with raises(ShardFormatError, "train-0.tar", '"s00003.txt"', "restore"):
                    single(dataset)
            else:
                assert single(dataset) == "text 3"
    assert site.asked() == ["/train-0.tar"]


def test_others_use_the_copy_that_was_fetched_again(site: Site, first_copy: Path) -> None:
    """Two datasets that had the damaged copy open fetch it once."""
    url = site.spec()
    with (
        wids.ShardListDataset(url, access="download") as one,
        wids.ShardListDataset(url, access="download") as other,
    ):
        assert one[0][".txt"] == other[0][".txt"] == "text 0"
        flip(first_copy)
        assert single(one) == single(other) == "text 3"
    assert site.asked() == ["/train-0.tar"]


@pytest.mark.parametrize("raw", ["bytes", "stream", "view"])
def test_undecoded_fields_are_compared_on_request(site: Site, first_copy: Path, raw: Any) -> None:
    """``verify`` decides: "auto" is for decoded samples, "always" for all, "never" for none."""
    flip(first_copy)

    def field(**options: Any) -> bytes:
        with wids.ShardListDataset(site.spec(), access="download", raw=raw, **options) as dataset:
            value = dataset[BAD][".txt"]
            return bytes(value.getbuffer() if raw == "stream" else value)

    assert field(transformations=[]) == flipped(b"text 3", 1)
    assert field(transformations=[], verify="never") == flipped(b"text 3", 1)
    with wids.ShardListDataset(site.spec(), access="download", verify="never") as dataset:
        assert single(dataset) == flipped(b"text 3", 1).decode()
    assert site.asked() == []
    assert field(transformations=[], verify="always") == b"text 3"
    assert site.asked() == ["/train-0.tar"]


def _loader_texts(dataset: wids.ShardListDataset) -> list[str]:
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, batch_size=5, num_workers=1, collate_fn=list)
    return [sample[".txt"] for samples in loader for sample in samples]


def test_workers_fetch_a_damaged_copy_once_more(site: Site, first_copy: Path) -> None:
    """In the worker of a DataLoader as in the process itself (INDEX-10)."""
    flip(first_copy)
    with wids.ShardListDataset(site.spec(), access="download") as dataset:
        assert _loader_texts(dataset) == EXPECTED
    assert site.asked() == ["/train-0.tar"]


@pytest.fixture
def indexed(site: Site) -> Path:
    """The folder of local shards with a spec and a dataset index."""
    paths = [str(site.folder / shard["url"]) for shard in site.shards]
    wids.build_spec(paths, name="t", dataset_index=site.folder / "t.index").save(
        site.folder / "t.json"
    )
    return site.folder


def test_damaged_local_shard_is_an_error(indexed: Path) -> None:
    """It names the file and the member, and what to do; the file stays (INDEX-10)."""
    path = indexed / "train-0.tar"
    flip(path)
    with wids.ShardListDataset(indexed / "t.json") as dataset:
        for read in READS:
            with raises(ShardFormatError, str(path), '"s00003.txt"', "restore the file") as caught:
                read(dataset)
            del caught
        others = [i for i in range(20) if i != BAD]
        assert [s[".txt"] for s in dataset.__getitems__(others)] == [EXPECTED[i] for i in others]
    with wids.ShardListDataset(indexed / "t.json", on_error=lambda error: error) as dataset:
        found = dataset.__getitems__([BAD - 1, BAD, BAD + 1])
        assert [isinstance(sample, ShardFormatError) for sample in found] == [False, True, False]
        assert "delete" not in str(found[1])
    assert path.exists()


def test_local_shard_without_checksums_is_read_as_it_is(site: Site) -> None:
    """A local scan does not read the members, so there is nothing to compare."""
    path = site.folder / "train-0.tar"
    flip(path)
    with wids.ShardListDataset(path, verify="always") as dataset:
        assert len(dataset.reader.index(0).payload_crcs) == 0  # type: ignore[union-attr]
        assert single(dataset) == flipped(b"text 3", 1).decode()


def by_range(site: Site, **options: Any) -> wids.ShardListDataset:
    site.dataset_index()
    site.state(filesize=len)
    return wids.ShardListDataset(site.spec(index="train.index"), access="range", **options)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("transformations", ["PIL", []])
def test_range_with_a_flipped_bit_is_an_error(site: Site, read: Read, transformations: Any) -> None:
    """What comes over a network is always compared, and read once more first (INDEX-10)."""
    at = site.bodies[0].index(b"text 3") + 1
    site.server.pages["/train-0.tar"].always = Fault(how="flip", after_nbytes=at)
    with by_range(site, transformations=transformations) as dataset:
        with raises(ShardFormatError, "train-0.tar", '"s00003.txt"'):
            read(dataset)
        assert len(dataset[BAD + 1]) > 4
    with by_range(site, verify="never") as dataset:
        assert single(dataset) == flipped(b"text 3", 1).decode()


@pytest.mark.parametrize("read", [single, batch])
def test_bit_that_flips_on_the_way_is_read_once_more(site: Site, read: Read) -> None:
    """A server or a proxy that damages one response costs a request (INDEX-10)."""
    at = site.bodies[0].index(b"text 3") + 1
    with by_range(site) as dataset:
        assert dataset[0][".txt"] == "text 0"
        site.server.pages["/train-0.tar"].faults = [Fault(how="flip", after_nbytes=at)]
        site.server.log.clear()
        assert read(dataset) == "text 3"
    assert site.asked().count("/train-0.tar") == 2  # also in a batch that has it twice


def test_unknown_value_is_refused(indexed: Path) -> None:
    with raises(ValueError, 'verify: expected "auto", "always" or "never", found \'yes\''):
        wids.ShardListDataset(indexed / "t.json", verify="yes")  # type: ignore[arg-type]
