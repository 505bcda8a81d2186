"""Tars with several members of one name: an error where they are indexed, unless one wants them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from conftest import raises, write_tar
from loopback import Server

import wids
from wids import ShardFormatError, ShardListDataset
from wids.cli.main import main

MEMBERS = [("a.txt", b"A"), ("a.cls", b"1"), ("b.txt", b"B"), ("a.txt", b"C"), ("a.cls", b"2")]
MESSAGE = ("2 names that occur more than once: 'a.txt', 'a.cls'", 'pass repeated="last"')


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A tar whose third sample has the key of the first."""
    return write_tar(tmp_path / "a.tar", MEMBERS)


def texts(dataset: Any) -> list[str]:
    return [sample[".txt"] for sample in dataset]


def test_a_local_tar_is_refused(path: Path) -> None:
    """No sample silently becomes part of another one of its key (KEY-4)."""
    for read in (ShardListDataset, wids.Shard, lambda path: wids.build_spec([str(path)])):
        with raises(ShardFormatError, str(path), *MESSAGE):
            read(path)
    (problem,) = wids.verify_spec([str(path)])
    assert str(problem).endswith("2 names occur more than once: a.txt, a.cls")


def test_the_last_one_is_read_if_the_caller_wants_it(path: Path) -> None:
    """As an update of a tar leaves it, with the index that is stored then (KEY-4)."""
    for _ in range(2):
        with ShardListDataset(path, repeated="last") as dataset:
            assert texts(dataset) == ["C", "B"]
            assert [sample.get(".cls") for sample in dataset] == [2, None]
    with wids.Shard(path, repeated="last") as shard:
        assert shard[0] == {".txt": b"C", ".cls": b"2", "__key__": "a"}
    wrong: Any = "first"
    with raises(ValueError, 'repeated: expected "error" or "last"'):
        ShardListDataset(path, repeated=wrong)


def test_such_a_tar_is_described(path: Path, server: Server, tmp_path: Path) -> None:
    """With the option an index is published, by which others read the tar (KEY-4)."""
    url = server.page("/a.tar", path.read_bytes())
    for name in (str(path), url):
        output = str(tmp_path / "a.json")
        assert main(["create", name, "-o", output]) == 1
        assert main(["create", name, "-o", output, "--repeated", "last"]) == 0
        with ShardListDataset(output) as dataset:
            assert texts(dataset[:1]) == ["C"]


def test_such_a_tar_is_rewritten(path: Path, tmp_path: Path) -> None:
    """The samples that were read become a tar that others read too."""
    with ShardListDataset(path, repeated="last") as dataset:
        wids.rewrite(dataset, str(tmp_path / "new-%06d.tar"))
    with ShardListDataset(tmp_path / "new-000000.tar") as dataset:
        assert texts(dataset) == ["C", "B"]


@pytest.mark.parametrize("access", ["auto", "download"])
def test_a_remote_tar_is_refused(path: Path, server: Server, access: Any) -> None:
    """A download is compared before it becomes a copy (KEY-4)."""
    url = server.page("/a.tar", path.read_bytes())
    with raises(ShardFormatError, "/a.tar", *MESSAGE):
        ShardListDataset(url, access=access)
    with raises(ShardFormatError, "/a.tar", *MESSAGE):
        wids.build_spec([url])
    with ShardListDataset(url, access=access, repeated="last") as dataset:
        assert texts(dataset) == ["C", "B"]


def test_such_a_shard_is_broken(path: Path, tmp_path: Path) -> None:
    """``on_error`` passes over it, as over any shard that is no proper tar (VIEW-7)."""
    other = write_tar(tmp_path / "b.tar", [("c.txt", b"D")])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*num_failed_shards", UserWarning)
        with ShardListDataset([path, other], on_error="skip") as dataset:
            assert texts(dataset) == ["D"]


def test_members_of_a_sample_may_be_apart(tmp_path: Path) -> None:
    """Fields of one key in different places are one sample, and other files may repeat (KEY-3)."""
    members = [("README", b""), ("a.txt", b"A"), ("b.txt", b"B"), ("a.cls", b"1"), ("README", b"")]
    with ShardListDataset(write_tar(tmp_path / "a.tar", members)) as dataset:
        assert [sample.get(".cls") for sample in dataset] == [1, None]
