"""Files without random access become plain tars: compressed tars, MessagePack and CBOR."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import sys
from pathlib import Path
from typing import Any

import cbor2
import msgpack
import pytest
import zstandard
from conftest import raises, write_tar

import wids
from wids.cli.main import main
from wids.publish.rewriting.old_streams import rewrite_streams

KEYS = [f"a/{number:04d}" for number in range(50)]


def zstd(data: bytes) -> bytes:
    """Compress in two frames, as parallel compressors do."""
    half = len(data) // 2
    return b"".join(map(zstandard.ZstdCompressor().compress, (data[:half], data[half:])))


COMPRESS = {
    "tgz": gzip.compress,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstd,
}


def write_old(path: Path, keys: list[str]) -> Path:
    """Write samples of a text and a number, with the packages that made such files."""
    samples = [(key, f"text {key}".encode(), str(n).encode()) for n, key in enumerate(keys)]
    if ".tar" in path.name or path.name.endswith(".tgz"):
        members = [m for key, a, b in samples for m in ((f"{key}.txt", a), (f"{key}.cls", b))]
        data = write_tar(path, members).read_bytes()
    else:
        dumps = cbor2.dumps if ".cbor" in path.name else msgpack.dumps
        data = b"".join(dumps({"__key__": key, "txt": a, "cls": b}) for key, a, b in samples)
    compress = COMPRESS.get(path.name.rpartition(".")[2], bytes)
    path.write_bytes(compress(data))
    return path


NAMES = [
    *("a.tgz", "a.tar.gz", "a.tar.bz2", "a.tar.xz", "a.tar.zst"),
    *("a.msgpack", "a.cbor", "a.msgpack.zst", "a.cbor.gz"),
]


@pytest.mark.parametrize("name", NAMES)
def test_old_files_become_plain_tars(name: str, tmp_path: Path, capsys: Any) -> None:
    """Keys, order and bytes stay; the result is a dataset without problems."""
    source = write_old(tmp_path / name, KEYS)
    before = source.read_bytes()

    assert main(["rewrite", str(source), str(tmp_path / "new"), "--maxcount", "20"]) == 0

    assert capsys.readouterr().out.endswith("new: 3 shards, 50 samples\n")
    with wids.ShardListDataset(tmp_path / "new.json") as dataset:
        assert list(dataset.keys()) == KEYS
        assert dataset.lengths == [20, 20, 10]
        assert (dataset[41][".txt"], dataset[41][".cls"]) == ("text a/0041", 41)
    assert wids.verify_spec(tmp_path / "new.json") == []
    assert source.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == sorted(
        [name, "new.json", "new.index", *(f"new-00000{n}.tar" for n in range(3))]
    )


@pytest.mark.parametrize("name", NAMES)
def test_an_incomplete_file_is_an_error(name: str, tmp_path: Path) -> None:
    """Wherever a file ends too early, it is named, and no spec is published."""
    data = write_old(tmp_path / name, KEYS).read_bytes()
    lengths = (len(data) - 1, len(data) // 2, *range(10, 30, 1 if name == "a.msgpack" else 10))
    for number, length in enumerate(lengths):
        (tmp_path / name).write_bytes(data[:length])
        with raises(wids.ShardFormatError, f"{name}: "):
            rewrite_streams([str(tmp_path / name)], tmp_path / f"{number}-%06d.tar")
        assert not (tmp_path / f"{number}.json").exists()
        assert not (tmp_path / f"{number}.partial").exists()


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.tgz", b"hello", "a.tgz: expected a complete .gz file, found: Not a gzipped file"),
        ("a.tar.zst", b"hello", "a.tar.zst: expected a complete .zst file"),
        ("a.tar.zst", b"", "it ends before its last frame does"),
        ("a.tar.gz", gzip.compress(b"hello", mtime=0), "a.tar.gz: "),
        ("a.msgpack", b"hello", 'sample 0: expected a map of fields with a "__key__", found int'),
        ("a.cbor", b"\x1c", "expected samples; after 0, near byte"),
        ("a.cbor", b"\xa1\x63txt\x41a", 'sample 0: expected a map of fields with a "__key__"'),
    ],
)
def test_foreign_files_are_refused(name: str, data: bytes, text: str, tmp_path: Path) -> None:
    """What is something else is an error that says what was found."""
    (tmp_path / name).write_bytes(data)

    with raises(wids.ShardFormatError, text):
        rewrite_streams([str(tmp_path / name)], tmp_path / "new-%06d.tar")


def test_several_files_and_some_fields(tmp_path: Path) -> None:
    """Files are read in the order of their names; other options are refused."""
    write_old(tmp_path / "old-1.tgz", KEYS[25:])
    write_old(tmp_path / "old-0.tgz", KEYS[:25])
    pattern = str(tmp_path / "old-{0..1}.tgz")

    assert main(["rewrite", pattern, str(tmp_path / "new"), "--fields", "txt"]) == 0
    with wids.ShardListDataset(tmp_path / "new.json") as dataset:
        assert list(dataset.keys()) == KEYS
        assert ".cls" not in dataset[0]
    assert main(["rewrite", pattern, str(tmp_path / "other"), "--shuffle", "0"]) != 0
    assert not list(tmp_path.glob("other*"))
    with raises(FileExistsError, "new.json: already exists"):
        rewrite_streams([str(tmp_path / "old-0.tgz")], tmp_path / "new-%06d.tar")


def test_an_interrupted_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete shards are kept; other files are refused until the run is finished."""
    old = str(write_old(tmp_path / "old.tgz", KEYS))
    pattern = tmp_path / "new-%06d.tar"
    rewrite_streams([old], tmp_path / "whole" / "new-%06d.tar", maxcount=10)
    write, count = wids.TarWriter.append, 0

    def append_or_fail(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == 25:
            raise KeyboardInterrupt
        write(*arguments)

    with monkeypatch.context() as patches:
        patches.setattr(wids.TarWriter, "append", append_or_fail)
        with pytest.raises(KeyboardInterrupt):
            rewrite_streams([old], pattern, maxcount=10)
    kept = (tmp_path / "new-000001.tar").stat().st_mtime_ns
    with raises(FileExistsError, "of an interrupted run"):
        rewrite_streams([old], pattern, maxcount=11)
    rewrite_streams([old], pattern, maxcount=10)

    assert (tmp_path / "new-000001.tar").stat().st_mtime_ns == kept
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_starting_over_leaves_nothing_of_the_interrupted_run(tmp_path: Path) -> None:
    """With ``resume=False`` its shards are deleted, also where the new run has fewer."""
    source = write_old(tmp_path / "old.tar.gz", KEYS)
    broken = write_old(tmp_path / "z.tar.gz", KEYS)
    broken.write_bytes(broken.read_bytes()[:-9])
    pattern = tmp_path / "new-%06d.tar"
    with raises(wids.ShardFormatError, "z.tar.gz"):
        rewrite_streams([str(source), str(broken)], pattern, maxcount=10)
    assert len(list(tmp_path.glob("new-*.tar"))) > 2

    with raises(FileExistsError, "--restart"):
        rewrite_streams([str(source)], pattern, maxcount=25)
    spec = rewrite_streams([str(source)], pattern, maxcount=25, resume=False)

    assert [shard.num_samples for shard in spec.shards] == [25, 25]
    assert len(list(tmp_path.glob("new-*.tar"))) == 2
    assert not (tmp_path / "new.partial").exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra that is not installed is an error with the command that installs it."""
    (tmp_path / "a.cbor").write_bytes(b"\xa0")
    monkeypatch.setitem(sys.modules, "cbor2", None)
    with raises(ModuleNotFoundError, "pip install 'wids[cbor]'"):
        rewrite_streams([str(tmp_path / "a.cbor")], tmp_path / "new-%06d.tar")


def test_bytes_are_copied_whatever_their_field(tmp_path: Path) -> None:
    """Bytes of a compressed tar are not encoded, also where their extension names an encoding."""
    members = [("a.json.gz", gzip.compress(b"{}")), ("b.json.gz", b"not compressed")]
    tar = write_tar(tmp_path / "old.tar", members)
    (tmp_path / "old.tgz").write_bytes(gzip.compress(tar.read_bytes()))

    rewrite_streams([str(tmp_path / "old.tgz")], tmp_path / "new-%06d.tar")

    with wids.ShardListDataset(tmp_path / "new.json", transformations=None) as dataset:
        found = [(f"{sample['__key__']}.json.gz", sample[".json.gz"].read()) for sample in dataset]
    assert found == members


@pytest.mark.parametrize("limits", [{"maxcount": 0}, {"maxsize": 0}, {"maxsize": "much"}])
def test_limits_are_those_of_a_rewrite(limits: dict[str, Any], tmp_path: Path) -> None:
    """No size of a shard is an error that names it, not another size; nothing is written."""
    with raises(ValueError, next(iter(limits))):
        rewrite_streams([str(tmp_path / "old.tar")], tmp_path / "new" / "new-%06d.tar", **limits)
    assert not (tmp_path / "new").exists()
