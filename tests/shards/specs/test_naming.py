"""The ways in which callers name shards: wildcards, folders, lists of these."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.command import run
from conftest import raises, sample_members, write_shards, write_tar
from loopback import Server

import wids
from wids.shards.specs.naming import names_in, tar_urls
from wids.storage.fetch import Fetcher


@pytest.fixture
def memory() -> Iterator[Any]:
    """A file system of fsspec, emptied afterwards."""
    import fsspec

    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def urls_of(shards: Any, **options: Any) -> list[str]:
    return [os.path.basename(shard.url) for shard in wids.load_spec(shards, **options).shards]


NAMES = [f"train-00000{n}.tar" for n in range(3)]


def test_forms_of_the_same_shards(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wildcards, a folder and lists are as good as a brace pattern (SPEC-14, SPEC-20, SPEC-21)."""
    train.unlink()
    folder = train.parent
    monkeypatch.chdir(folder)
    braces = wids.load_spec(f"{folder}/train-{{000000..000002}}.tar")

    for shards in (
        "train-*.tar", f"{folder}/train-*.tar", Path("train-*.tar"), ["train-*.tar"],
        folder, f"{folder}/", ".", [str(folder)], ["train-00000[01].tar", "train-*2.tar"],
        ["{train-*0.tar,train-*1.tar}", "train-000002.tar"],
    ):  # fmt: skip
        assert wids.load_spec(shards) == braces, shards
    assert wids.load_spec("train-*.tar", base=folder) == braces
    with wids.ShardListDataset("train-*.tar") as dataset:
        assert [sample[".txt"] for sample in dataset] == [f"text {n}" for n in range(20)]
    assert wids.build_spec("train-*.tar").shards[1].num_samples == 5
    assert wids.verify_spec(folder) == []


def test_a_parent_of_folders(train: Path) -> None:
    """The pattern that the error about it suggests names all shards (SPEC-20)."""
    for number, shard in enumerate(sorted(train.parent.glob("*.tar"))):
        (train.parent / f"part-{number}").mkdir()
        shard.rename(train.parent / f"part-{number}" / shard.name)
    train.unlink()
    (train.parent / ".nv-meta").mkdir()
    with raises(wids.NotFoundError) as error:
        wids.ShardListDataset(train.parent)
    pattern = str(error.value).split("all with ")[1].partition(",")[0]
    assert ".nv-meta" not in str(error.value)
    with wids.ShardListDataset(pattern) as dataset:
        assert [sample[".txt"] for sample in dataset] == [f"text {n}" for n in range(20)]


def test_lists_of_webdataset(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two colons separate names, each of which may be any (SPEC-14)."""
    monkeypatch.chdir(train.parent)
    for shards, expected in (
        ("train-000001.tar::train-000000.tar", [NAMES[1], NAMES[0]]),
        (["train-000001.tar::train-000000.tar"], [NAMES[1], NAMES[0]]),
        ("train-00000{0..1}.tar::train-*2.tar", NAMES),
        (f"train.json::{train.parent}/train-000001.tar", [*NAMES, NAMES[1]]),
        ("train-000000.tar::train.json", [NAMES[0], *NAMES]),
    ):
        assert urls_of(shards) == expected
    with wids.ShardListDataset("::".join(NAMES)) as dataset:
        assert len(dataset) == 20
    with raises(wids.SpecError, "found an empty text"):
        wids.load_spec("train-000000.tar::")
    with raises(wids.SpecError, "expected one shard for the count 8, found a pattern of 2"):
        wids.load_spec([("a.tar::b.tar", 8)])


@pytest.mark.parametrize(
    "name",
    [
        "http://[::1]:80/a.tar",
        "http://[fe80::2]/a.tar",
        "simplecache::https://h/a.tar",
        "zip://a.tar::s3://b/c.zip",
        "pipe:perl -MA::B a.tar::b",
        "here::it is.tar",
    ],
)
def test_colons_inside_a_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses, chains, commands and files that exist keep theirs, in lists too (SPEC-14)."""
    (tmp_path / "here::it is.tar").touch()
    monkeypatch.chdir(tmp_path)
    assert names_in(name) == [name]
    if not name.startswith("here"):
        assert names_in(f"x.tar::{name}::pipe:cat {{1,2}}") == [
            *("x.tar", name, "pipe:cat 1", "pipe:cat 2")
        ]


def test_remote_folders(memory: Any, train: Path) -> None:
    """A prefix with a slash at its end is listed, through fsspec; lengths are those of the list."""
    train.unlink()
    for path in train.parent.iterdir():
        memory.pipe(f"/bucket/data/{path.name}", path.read_bytes())
    memory.pipe("/bucket/data/more/x.tar", b"")

    for shards in ("memory://bucket/data/", "memory://bucket/data/*.tar", "memory://bucket/*/t*"):
        spec = wids.load_spec(shards)
        assert [s.url for s in spec.shards] == [f"memory://bucket/data/{name}" for name in NAMES]
        assert spec.shards[1].nbytes == (train.parent / NAMES[1]).stat().st_size
    with wids.ShardListDataset("memory://bucket/data/") as dataset:
        assert dataset[19][".txt"] == "text 19"


@pytest.mark.parametrize("name", ["[1]", "a*b"])
def test_remote_folders_that_look_like_patterns(name: str, memory: Any, train: Path) -> None:
    """A URL that ends with a slash names a folder, which is what its name says."""
    for each in NAMES:
        memory.pipe(f"/bucket/{name}/{each}", (train.parent / each).read_bytes())
    spec = wids.load_spec(f"memory://bucket/{name}/")
    assert [s.url for s in spec.shards] == [f"memory://bucket/{name}/{each}" for each in NAMES]


def test_wildcards_of_documents(train: Path) -> None:
    """They are components, as in a list; a single one keeps name and dataset index (SPEC-20)."""
    more = json.loads(train.read_text()) | {"name": "more", "index": "train.index"}
    (train.parent / "trail.json").write_text(json.dumps(more))

    spec = wids.load_spec(f"{train.parent}/tr*.json")
    assert [shard.dataset for shard in spec.shards] == ["more"] * 3 + ["train"] * 3
    single = wids.load_spec(f"{train.parent}/trail*.json")
    assert (single.name, single.index) == ("more", f"{train.parent}/train.index")


def test_the_spec_of_a_folder(train: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is used if it names exactly the tars of its folder; else a warning says why (SPEC-23)."""
    caplog.set_level(logging.INFO, "wids")
    spec = wids.load_spec(train.parent)
    assert spec == wids.load_spec(train)
    assert [shard.num_samples for shard in spec.shards] == [8, 5, 7]
    assert "used as the spec of its folder" in caplog.text
    assert [s.dataset for s in wids.load_spec([train.parent, train]).shards] == ["train"] * 6

    # A shard was added, and the spec does not know it.
    write_tar(train.parent / "train-000003.tar", sample_members(20, 22))
    spec = wids.load_spec(train.parent)
    assert [shard.num_samples for shard in spec.shards] == [None] * 4
    assert "names 3 of the 4 tars of its folder and 0 other files, so it is not used" in caplog.text
    assert tar_urls([str(train.parent)], Fetcher()) == sorted(s.url for s in spec.shards)


@pytest.mark.parametrize(
    ("documents", "is_used"),
    [
        ({"train.json": True}, True),
        ({"all.json": True}, False),  # a name that says nothing
        ({"all.json": True, "all.index": True}, True),
        ({"train.json": True, "train-0.json": True}, False),  # which of the two?
        ({"train.json": False}, False),
        ({"train.json": True, "labels.json": False}, True),
    ],
)
def test_which_document_is_the_spec_of_a_folder(
    documents: dict[str, bool], is_used: bool, train: Path
) -> None:
    """The only one with a dataset index, or with a name that all tars begin with (SPEC-23)."""
    text = train.read_text()
    train.unlink()
    for name, is_spec in documents.items():
        (train.parent / name).write_text(text if is_spec else '{"cat": 0}')
    assert (wids.load_spec(train.parent).shards[0].num_samples == 8) is is_used


def test_a_remote_folder_with_a_spec_is_not_trusted(memory: Any, tmp_path: Path) -> None:
    """Its document is one from elsewhere: it must not name files of this machine (SPEC-23)."""
    write_shards(tmp_path, [3])
    memory.pipe("/bucket/train-000000.tar", (tmp_path / "train-000000.tar").read_bytes())
    document = {"shardlist": [{"url": f"{tmp_path}/train-000000.tar", "nsamples": 3}]}
    memory.pipe("/bucket/train.json", json.dumps(document).encode())

    assert [s.url for s in wids.load_spec("memory://bucket/").shards] == [
        "memory://bucket/train-000000.tar"
    ]


def test_documents_list_nothing(tmp_path: Path, memory: Any) -> None:
    """In a document, and in an entry like one, each name is that of one file (SEC-55)."""
    write_shards(tmp_path, [3, 3])
    memory.pipe("/bucket/a.tar", b"")
    names = ["train-*.tar", ".", "memory://bucket/", "memory://bucket/*.tar", "{a,b}.tar"]
    spec = tmp_path / "all.json"
    spec.write_text(json.dumps({"shardlist": names}))

    found = [shard.url for shard in wids.load_spec(spec).shards]
    assert found == [
        f"{tmp_path}/train-*.tar",
        str(tmp_path),
        *names[2:4],
        f"{tmp_path}/{{a,b}}.tar",
    ]
    entries = [{"url": name} for name in names]
    assert len(wids.load_spec(entries, base=tmp_path).shards) == len(names)


def test_a_count_is_for_one_shard(train: Path) -> None:
    """A pattern with a count would state it for each shard (SPEC-14)."""
    with raises(wids.SpecError, "expected one shard for the count 8, found a pattern"):
        wids.load_spec([(f"{train.parent}/train-*.tar", 8)])


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        ([], ["found nothing"]),
        (["a.jpg", "a.txt", "b.jpg"], ["found 2 .jpg, 1 .txt", "`wids pack`"]),
        (["train/a.tar", "val/a.tar"], ["found 2 folders (train, val)", "such as", "train/"]),
        (
            ["a/0.tar", "b/0.tar", ".nv-meta/0.json"],
            ["(a, b); make shards", "`wids pack`, or name", "/a/, or"],
        ),
        (["a.tar.gz"], ["found 1 .gz", "decompress them first"]),
        (["a.json"], ["if a.json is a spec, pass its name"]),
    ],
)
def test_folders_without_tars(files: list[str], parts: list[str], tmp_path: Path) -> None:
    """The error says what is there, and what to do."""
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with raises(wids.NotFoundError, f"{tmp_path}/: expected a folder with .tar files", *parts):
        wids.load_spec(tmp_path)


def test_http_is_not_listed(server: Server) -> None:
    """No request is sent for wildcards of HTTP."""
    for shards in (f"{server.url}/train-*.tar", f"{server.url}/data/"):
        with raises(wids.FetchError, "plain HTTP, commands and handlers have no lists"):
            wids.ShardListDataset(shards)
    assert server.requests == []


def test_a_text_file_lists_shards(train: Path, server: Server, tmp_path: Path) -> None:
    """A name on each line, from the folder of the file, by the rules of documents (SEC-55)."""
    names = ["train-000001.tar", "train-000000.tar"]
    path = tmp_path / "lists" / "shards.txt"
    path.parent.mkdir()
    path.write_text(f"\ufeff../{names[0]}\r\n\n  {tmp_path / names[1]}  \n", "utf-8")
    with wids.ShardListDataset(path) as dataset:
        assert [s["__key__"] for s in dataset][4:6] == ["s00012", "s00000"]
    assert len(wids.load_spec([path, str(train)]).shards) == 5
    assert run("create", path, "-o", tmp_path / "new.json", "-j", 1)[0] == 0
    assert [s.num_samples for s in wids.load_spec(tmp_path / "new.json").shards] == [5, 8]

    long = tmp_path / "long.txt"  # too long for a document that is parsed without a table
    long.write_text("\n".join(f"{'x' * 40}-{number}.tar" for number in range(30_000)))
    assert len(wids.load_spec(long).shards) == 30_000

    for name in names:
        server.page(f"/d/{name}", (tmp_path / name).read_bytes())
    url = server.page("/d/shards.txt", "\n".join(names).encode())
    assert [s.url for s in wids.load_spec(f"{url}?a=b").shards] == [
        f"{server.url}/d/{name}?a=b" for name in names
    ]
    for text in ("pipe:cat x.tar", "file:///x.tar"):
        server.page("/d/shards.txt", text.encode())
        with raises(wids.SpecError, "shards.txt"):
            wids.load_spec(url)
    server.page("/d/shards.txt", b"\xff\xfe\x00")
    with raises(wids.SpecError, "expected text with the path or URL of a shard on each line"):
        wids.load_spec(url)
