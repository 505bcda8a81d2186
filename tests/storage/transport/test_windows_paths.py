"""Paths of Windows, with the standard library's own rules for them, which run on any system."""

from __future__ import annotations

import ntpath
import os
from types import ModuleType
from typing import Any

import pytest
from conftest import raises

import wids
from wids.publish import output as shard_names
from wids.publish.output import Output, ShardNames
from wids.publish.packing import folder_listing
from wids.publish.rewriting import rewrite
from wids.shards.specs import saving
from wids.shards.specs.model import DatasetSpec, ShardSpec
from wids.storage import upload
from wids.storage.transport import listing, pipe, urls
from wids.storage.transport.stream import Entry


class _Windows(ModuleType):
    """The module ``os`` with the paths of Windows."""

    path, sep, name = ntpath, "\\", "nt"

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@pytest.fixture(autouse=True)
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """These modules join, split and compare paths as on Windows."""
    for module in (urls, listing, pipe, upload, shard_names, rewrite, saving, folder_listing):
        monkeypatch.setattr(module, "os", _Windows("os"))


@pytest.mark.parametrize("path", [r"C:\data\train.json", "C:/data/train.json", "c://train.json"])
def test_a_drive_is_no_scheme(path: str) -> None:
    """A path that begins with a drive is local, however its parts are divided."""
    assert urls.scheme(path) == ""
    assert urls.is_local(path)
    assert urls.redact(path) == path


@pytest.mark.parametrize(
    ("base", "reference", "expected"),
    [
        (r"C:\data", "a.tar", "C:/data/a.tar"),
        (r"C:\data", "sub/a.tar", "C:/data/sub/a.tar"),
        (r"C:\data", r"sub\a b.tar", "C:/data/sub/a b.tar"),
        (r"C:\data\e", r"..\a.tar", "C:/data/a.tar"),
        (r"C:\data", r"D:\x\a.tar", "D:/x/a.tar"),
        (r"C:\data", "D:/x/a.tar", "D:/x/a.tar"),
        ("C:\\", "a.tar", "C:/a.tar"),
        (r"\\server\share", "a.tar", "//server/share/a.tar"),
        (r"C:\data", "file:///D:/x%20y/a.tar", "D:/x y/a.tar"),
        ("file:///C:/data", "a.tar", "C:/data/a.tar"),
        (r"C:\data", "https://h/a.tar", "https://h/a.tar"),
        ("https://h/d", "a.tar", "https://h/d/a.tar"),
    ],
)
def test_references_have_slashes(base: str, reference: str, expected: str) -> None:
    """A local reference becomes an absolute path with slashes, which Windows takes too."""
    assert urls.join(base, reference) == expected


@pytest.mark.parametrize("reference", [r"..\secret.tar", r"D:\secret.tar", r"\secret.tar"])
def test_nothing_leads_out_of_a_folder(reference: str) -> None:
    """Neither dots, nor a drive, nor a root is inside the folder that it is joined to."""
    assert not urls.is_within(urls.join(r"C:\mirror", reference), r"C:\mirror")
    assert urls.is_within(urls.join(r"C:\mirror", r"sub\a.tar"), r"C:\mirror")


def test_specs_have_slashes() -> None:
    """A spec names a shard in a subfolder as on other systems, and one on another drive in full."""
    assert urls.relative(r"C:\data\sub\a.tar", r"C:\data") == "sub/a.tar"
    assert urls.relative("C:/data/a.tar", "C:/data") == "a.tar"
    assert urls.relative("D:/data/a.tar", "C:/data") == "D:/data/a.tar"


def test_wildcards() -> None:
    """A pattern is split at backslashes too, and its folder is listed."""
    listed = []

    def entries(folder: str) -> list[Entry]:
        listed.append(folder)
        return [Entry(name, None, is_folder=False) for name in ("a-0.tar", "b.txt")]

    assert listing.matching(entries, r"C:\data\a-*.tar")[0].url == "C:/data/a-0.tar"
    assert listed == ["C:/data/"]


def test_names_of_shards() -> None:
    """Shards of a folder and of a bucket have slashes before their names, as do their specs."""
    for pattern, folder in [
        (r"C:\out\t-%06d.tar", "C:/out"),
        ("s3://b/out/t-%06d.tar", "s3://b/out"),
    ]:
        names = ShardNames.from_pattern(pattern)
        assert names.path(7) == f"{folder}/t-000007.tar"
        assert names.spec_path(spec=True) == f"{folder}/t.json"


def test_the_input_is_not_overwritten() -> None:
    """A rewrite into the folder of its input is refused."""
    spec = DatasetSpec((ShardSpec(urls.join(r"C:\data", "t-000000.tar")),))
    output = Output.for_pattern(r"C:\data\t-%06d.tar", "rewriting")
    with raises(wids.PackError, "expected another output than the input"):
        rewrite._check_not_input(spec, output)


def test_documents_of_windows() -> None:
    """Shards that a document names with backslashes have a folder, and names in it."""
    shards = [r"C:\data\a.tar", r"C:\data\b.tar"]
    assert [saving.name_with_query(url) for url in shards] == ["a.tar", "b.tar"]
    assert saving._common_base("train.json", {}, shards) == {"base": "C:/data/"}
    assert saving._common_base("train.json", {"base": "s3://b/"}, ["x/a.tar"]) == {
        "base": "s3://b/x/"
    }


def test_links_to_other_drives() -> None:
    """A link to another drive leads out of a folder; one to the folder itself does not."""
    assert folder_listing.is_inside(r"C:\data\sub", r"C:\data")
    assert folder_listing.is_inside(r"C:\data", r"C:\data")
    assert not folder_listing.is_inside(r"D:\data", r"C:\data")
    assert not folder_listing.is_inside(r"C:\data2", r"C:\data")


def test_the_path_of_a_command() -> None:
    """The shell of Windows knows only double quotes."""
    assert pipe._quoted(r"C:\a b\shard.tar") == r'"C:\a b\shard.tar"'
