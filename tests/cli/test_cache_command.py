"""``wids cache``: what is shown, checked and cleared, of one dataset or of all."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from command import run, run_in_terminal
from conftest import settle
from loopback import Server
from remote_site import EXPECTED, Site, texts

import wids


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    """Three shards on a server, of which no digest is stated."""
    return Site(tmp_path / "site", server)


def copy_of(folder: Path, number: int) -> Path:
    """Return the copy of a shard."""
    (copy,) = (folder / "shards").glob(f"*-train-{number}.tar")
    return copy


@pytest.mark.parametrize("sample", [[], ["--sample", "100%"]])
def test_a_changed_copy_is_a_problem(sample: list[str], site: Site, own_cache: Path) -> None:
    """One that was restored is none: both are compared with their checksums (CACHE-35)."""
    spec = site.spec()
    with wids.ShardListDataset(spec) as dataset:
        assert texts(dataset) == EXPECTED
    changed, restored, cut = (copy_of(own_cache, number) for number in range(3))
    os.utime(restored, ns=(0, 0))
    assert run("cache", "check", spec, *sample)[0] == 0
    data = changed.read_bytes()
    changed.chmod(0o644)
    changed.write_bytes(data.replace(b"text 5", b"TEXT 5"))
    os.truncate(cut, 3 * 1024)
    status, out, _ = run("cache", "check", spec, *sample)
    assert status == 1
    assert f'{changed}: member "s00005.txt": expected bytes with the checksum' in out
    assert f"{cut}: " in out
    assert str(restored) not in out


def names_in(folder: Path) -> set[str]:
    """Return the readable ends of the names of all files of a cache folder but its locks."""
    paths = [path for part in ("shards", "indexes") for path in (folder / part).glob("*")]
    return {path.name.lstrip(".")[33:] for path in paths}


def num_files(folder: Path) -> int:
    return sum(len(list((folder / part).glob("*"))) for part in ("shards", "indexes"))


@pytest.fixture
def full_cache(
    site: Site, train: Path, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A cache folder with a remote dataset, its dataset index and table, and a local dataset."""
    site.dataset_index()
    local = site.folder / "train.json"
    wids.build_spec([str(site.folder / shard["url"]) for shard in site.shards]).save(local)
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "other"))
    assert run("table", local, "-c", "label=.cls", "-o", site.folder / "t.parquet")[0] == 0
    monkeypatch.setenv("WIDS_CACHE", str(own_cache))
    site.server.page("/t.parquet", (site.folder / "t.parquet").read_bytes())
    document = json.loads(local.read_text())
    site.shards[:] = document["shardlist"]
    spec = site.spec(index="train.index", table=document["table"])
    with wids.ShardListDataset(spec) as dataset:
        assert dataset[0][".txt"] == EXPECTED[0]  # by range, from the dataset index
        assert texts(dataset) == EXPECTED
        assert len(wids.load_table(dataset)) == 20
    for path in train.parent.glob("*.tar"):
        settle(path)
    with wids.ShardListDataset(str(train)) as dataset:
        assert texts(dataset) == EXPECTED
    left = own_cache / "shards" / f".{copy_of(own_cache, 0).name[:40]}.{'a' * 16}.tmp"
    left.touch()
    settle(left)
    return own_cache


REMOTE = {
    *(f"train-{n}.tar{end}" for n in range(3) for end in ("", ".index")),
    *("train.index", "train.index.index", "t.parquet", "t.parquet.index"),
}
LOCAL = {f"train-00000{n}.tar.index" for n in range(3)}
LEFT = {f"train-0.{'a' * 16}.tmp"}


def test_one_dataset_is_cleared(full_cache: Path, site: Site, train: Path) -> None:
    """Its copies and their indexes, its dataset index and its table; other datasets stay."""
    assert names_in(full_cache) == REMOTE | LOCAL | LEFT
    assert "kB  in 14 files in " in run("cache")[1]
    spec = f"{site.server.url}/train.json"
    assert ", 11 files, " in run("cache", "show", spec)[1]
    site.server.log.clear()
    status, out, err = run("cache", "clear", spec)
    assert (status, err) == (0, "")
    assert out.startswith(f"{spec}, in {full_cache}: deleted 11 files, ")
    assert names_in(full_cache) == LOCAL
    assert site.server.requests == ["/train.json"]
    assert run("cache", "clear", train)[1].startswith(f"{train}, in {full_cache}: deleted 3 files")
    assert num_files(full_cache) == 0
    assert "0 B  in 0 files in " in run("cache")[1]


@pytest.fixture
def copies(site: Site, own_cache: Path) -> Path:
    """A cache folder with three copies and their indexes."""
    with wids.ShardListDataset(site.spec()) as dataset:
        assert texts(dataset) == EXPECTED
    return own_cache


def test_clearing_all_datasets_takes_consent(copies: Path) -> None:
    """Files and bytes are stated; nobody can be asked, so that nothing is deleted."""
    status, out, err = run("cache", "clear")
    assert (status, out) == (2, "")
    assert err.startswith("wids: deleting 6 files of all datasets, ")
    assert err.endswith(f"kB, in {copies}; pass --yes to do it without a terminal to ask in\n")
    assert num_files(copies) == 6
    status, out, _ = run("cache", "clear", "--yes")
    assert (status, num_files(copies)) == (0, 0)
    assert out.startswith(f"{copies}: deleted 6 files, ")
    assert run("cache", "clear")[:2] == (0, f"{copies}: deleted 0 files, 0 B\n")


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("", 1), ("no", 1)])
def test_a_terminal_is_asked_before_all_is_cleared(answer: str, status: int, copies: Path) -> None:
    """Only a yes deletes."""
    found, shown = run_in_terminal(["cache", "clear"], answer)
    assert "deleting 6 files of all datasets" in shown
    assert (found, num_files(copies)) == (status, 6 if status else 0)


def test_a_spec_that_cannot_be_read_clears_nothing(copies: Path) -> None:
    """Also an empty name, such as that of an unset shell variable."""
    for spec in ("", "nothing.json"):
        assert run("cache", "clear", spec)[0] == 1
        assert run("cache", "clear", spec, "--yes")[0] == 1
    assert num_files(copies) == 6


def test_secrets_are_not_printed(site: Site, own_cache: Path) -> None:
    """No command prints users, passwords or signed queries (SEC-4)."""
    host = site.server.url.removeprefix("http://")
    site.spec()
    spec = f"http://someone:PASSWORD@{host}/train.json?signature=SIGNED"
    with wids.ShardListDataset(spec) as dataset:
        assert texts(dataset) == EXPECTED
    copy = copy_of(own_cache, 1)
    copy.chmod(0o644)
    copy.write_bytes(copy.read_bytes().replace(b"text 9", b"TEXT 9"))
    for arguments in (
        ["show", spec],
        ["show"],
        ["check", spec],
        ["check", spec, "--sample", "100%"],
        ["check", spec.replace("train.json", "none.json")],
        ["clear", spec],
    ):
        _, out, err = run("cache", *arguments)
        assert out + err
        assert not re.search("someone|PASSWORD|signature|SIGNED", out + err)
