"""Patterns and folders → the files that they name, on this machine and behind fsspec."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import raises

from wids.errors import FetchError, NotFoundError
from wids.storage.fetch import Fetcher
from wids.storage.transport.listing import content_text, is_folder, is_pattern, matching
from wids.storage.transport.stream import Entry

FILES = ["b-10.tar", "b-2.tar", "b-1.tar", ".b-3.tar", "b.txt", "a/b-1.tar", "c/b-1.tar", "c/d/x"]


@pytest.fixture(params=["path", "file", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder of empty files: a path, a ``file:`` URL, and a file system of fsspec."""
    import fsspec

    memory = fsspec.filesystem("memory")
    for name in FILES:
        if request.param == "memory":
            memory.pipe(f"/bucket/{name}", b"12345")
        else:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
    yield {"path": str(tmp_path), "file": tmp_path.as_uri(), "memory": "memory://bucket"}[
        request.param
    ]
    memory.rm("/", recursive=True)


def found(pattern: str) -> list[str]:
    return [file.url for file in matching(Fetcher().entries, pattern)]


def plain(folder: str) -> str:
    return folder.removeprefix("file://")


def test_wildcards(folder: str) -> None:
    """The files are sorted by name, and hidden ones need a pattern that begins so (SPEC-20)."""
    top = plain(folder)
    assert found(f"{folder}/b-*.tar") == [f"{top}/b-{n}.tar" for n in (1, 10, 2)]
    assert found(f"{folder}/b-[12].tar") == [f"{top}/b-1.tar", f"{top}/b-2.tar"]
    assert found(f"{folder}/b-[!1].tar") == [f"{top}/b-2.tar"]
    assert found(f"{folder}/.b*") == [f"{top}/.b-3.tar"]
    assert found(f"{folder}/*/b-*.tar") == [f"{top}/a/b-1.tar", f"{top}/c/b-1.tar"]
    assert found(f"{folder}/*/d/*") == [f"{top}/c/d/x"]
    if not folder.startswith("memory"):
        assert found(f"{folder}/b-?.tar") == [f"{top}/b-1.tar", f"{top}/b-2.tar"]


def test_any_number_of_folders(folder: str) -> None:
    """``**`` stands for folders at any depth, also none, and never for hidden ones (SPEC-20)."""
    top = plain(folder)
    tars = [f"{top}/{name}" for name in sorted(FILES) if name[0] != "." and name.endswith(".tar")]
    assert found(f"{folder}/**/*.tar") == found(f"{folder}/**/**/*.tar") == sorted(tars)
    assert found(f"{folder}/**/d/*") == [f"{top}/c/d/x"]
    assert found(f"{folder}/c/**") == [f"{top}/c/b-1.tar", f"{top}/c/d/x"]


def test_links_in_a_circle(tmp_path: Path) -> None:
    """A link to a folder above it is not followed, and one to another folder is (SPEC-20)."""
    for name in ("a/b/0.tar", "c/1.tar", ".hidden/2.tar"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "self").symlink_to(".")
    (tmp_path / "a" / "other").symlink_to(tmp_path / "c")
    assert found(f"{tmp_path}/**/*.tar") == [
        f"{tmp_path}/{name}" for name in ("a/b/0.tar", "a/other/1.tar", "c/1.tar")
    ]


def test_remote_listings_state_lengths() -> None:
    """What a listing says need not be asked again; local lengths are asked of the file."""
    import fsspec

    fsspec.filesystem("memory").pipe("/lengths/a.tar", b"123")
    assert matching(Fetcher().entries, "memory://lengths/*.tar")[0].nbytes == 3


def test_a_file_with_such_a_name_is_itself(tmp_path: Path) -> None:
    """A name that exists is no pattern, and neither is a folder in the middle (SPEC-20)."""
    for name in ("train[1].tar", "train1.tar", "a*b.tar", "axb.tar"):
        (tmp_path / name).touch()
    (tmp_path / "x[2]").mkdir()
    (tmp_path / "x[2]" / "0.tar").touch()
    (tmp_path / "x2").mkdir()
    (tmp_path / "x2" / "0.tar").touch()

    assert not is_pattern(f"{tmp_path}/train[1].tar")
    assert not is_pattern(f"{tmp_path}/a*b.tar")
    assert is_pattern(f"{tmp_path}/train[2].tar")
    assert found(f"{tmp_path}/x[2]/*.tar") == [f"{tmp_path}/x[2]/0.tar"]


@pytest.mark.parametrize(
    "url",
    [
        "https://h/a.tar?sign=*[1]",
        "https://h/a[1].tar",
        "https://[::1]/a.tar",
        "s3://b/a.tar?versionId=[1]",
        "pipe:cat *.tar",
        "s3://b/a[.tar",
        "s3://b/a[0/1].tar",
        "/nothing/a[.tar",
    ],
)
def test_what_is_no_pattern(url: str) -> None:
    """Queries, addresses, commands, brackets of HTTP, brackets that are not closed (SPEC-20)."""
    assert not is_pattern(url)


def test_a_name_of_many_brackets_is_read_once() -> None:
    """A document may have such a name, and each bracket may not cost the length of all."""
    started_s = time.process_time()
    assert not is_pattern("s3://b/" + "[" * 100_000)
    assert is_pattern("s3://b/" + "[" * 100_000 + "]")
    assert time.process_time() - started_s < 5


def test_what_is_a_folder(tmp_path: Path) -> None:
    """A folder of this machine, or a URL that ends as one does (SPEC-21)."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").touch()
    assert is_folder(f"{tmp_path}/a")
    assert is_folder((tmp_path / "a").as_uri())
    for url in ("s3://b/c/", "s3://b", "s3://b/", "hf://datasets/o/n", "hf://datasets/o/n@v1/x/"):
        assert is_folder(url), url
    for url in (f"{tmp_path}/b", "s3://b/c", "s3://b/c.tar", "https://h/x/?file=a", "pipe:ls /",
                "hf://datasets/o/n/a.tar"):  # fmt: skip
        assert not is_folder(url), url


def test_nothing_matches(folder: str) -> None:
    """The error says what was looked for and what is there."""
    with raises(
        NotFoundError,
        *("/b_*.tar: expected files of this name, found none", " has 4 .tar, 1 .txt, "),
        *("2 folders (a, c)", "the nearest names are b-1.tar, b-10.tar, b-2.tar"),
    ):
        found(f"{folder}/b_*.tar")
    with raises(NotFoundError, "/nothing/"):
        found(f"{folder}/nothing/*.tar")
    with raises(NotFoundError, "/**/*.zip: expected files", "2 folders (a, c)"):
        found(f"{folder}/**/*.zip")


@pytest.mark.parametrize("pattern", ["https://h/train-*.tar", "mine://x/*.tar", "https://h/x/"])
def test_servers_without_lists(pattern: str) -> None:
    """Plain HTTP cannot be listed, nor can a caller's handler: the error says so."""
    fetcher = Fetcher(handlers={"mine": open})
    with raises(FetchError, "expected a scheme whose folders can be listed", "{000000..000146}"):
        matching(fetcher.entries, pattern) if "*" in pattern else fetcher.entries(pattern)


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    """The error names it."""
    (tmp_path / "a").touch()
    with raises(FetchError, f"{tmp_path}/a/: expected a readable folder, found: Not a directory"):
        found(f"{tmp_path}/a/*.tar")


def test_names_that_lead_out_of_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a listing says, what is found is inside the folder (SEC-55)."""
    from fsspec import AbstractFileSystem

    class Hostile(AbstractFileSystem):
        protocol = "hostile"

        def ls(self, *_: object, **__: object) -> list[object]:
            names = ["/f/a.tar", "f/../../b.tar", "f/..", "other/c.tar", "/f/d\0.tar", "f", "f/"]
            return [{"name": name, "size": 1, "type": "file"} for name in names]

    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "hostile", Hostile)
    assert Fetcher().entries("hostile://f/") == [Entry("a.tar", 1)]


def test_what_is_in_a_folder_is_counted_in_words() -> None:
    """One other file is one other, and two are others."""
    names = ["a.tar", "b.tar", "c.json", "d.index", "e.txt", "f.md"]
    entries = [Entry(name, 1, is_folder=False) for name in names]
    assert content_text(entries[:5]) == "2 .tar, 1 .json, 1 .index, 1 other"
    assert content_text(entries) == "2 .tar, 1 .json, 1 .index, 2 others"
    assert content_text([Entry("x", None, is_folder=True)]) == "1 folder (x)"
