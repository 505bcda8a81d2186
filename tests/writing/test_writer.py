"""Samples → a tar shard."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, need, raises

import wids
from wids import Shard, ShardListDataset, ShardWriter, TarWriter, build_pack, load_spec
from wids.writing.build import save_pack
from wids.writing.writer import _headers

SAMPLES: list[dict[str, Any]] = [
    {"__key__": "a", ".txt": "one", "cls": 1, "__index__": 7},
    {"__key__": "猫/" + "k" * 120, "seg.png": b"x", ".TXT": "two"},
]


def write(target: Any) -> TarWriter:
    with TarWriter(target) as writer:
        for sample in SAMPLES:
            writer.write(sample)
    return writer


def test_samples_come_back(tmp_path: Path) -> None:
    """Fields with or without the dot are stored with it; private names are left out."""
    writer = write(tmp_path / "a.tar")

    with Shard(tmp_path / "a.tar") as shard:
        assert list(shard) == [
            {".txt": b"one", ".cls": b"1", "__key__": "a"},
            {".seg.png": b"x", ".TXT": b"two", "__key__": "猫/" + "k" * 120},
        ]
    assert (writer.num_samples, writer.nbytes) == (2, os.path.getsize(tmp_path / "a.tar"))


def test_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    """Owner, mode and time are fixed, so a shard depends on its samples alone."""
    stream = io.BytesIO()
    write(stream)
    write(tmp_path / "a.tar")

    assert stream.getvalue() == (tmp_path / "a.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert {(i.uid, i.uname, i.mode, i.mtime) for i in archive} == {(0, "", 0o444, 0)}


def test_gnu_tar_reads_it(tmp_path: Path) -> None:
    """The shard is an ordinary tar."""
    write(tmp_path / "a.tar")

    listing = subprocess.run(
        ["tar", "--quoting-style=literal", "-tf", "a.tar"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )

    assert listing.stdout.decode().splitlines()[:2] == ["a.txt", "a.cls"]


def test_shard_appears_when_complete(tmp_path: Path) -> None:
    """Before the end the shard has no name, and after an error it leaves nothing."""
    with TarWriter(tmp_path / "a.tar") as writer:
        writer.write(SAMPLES[0])
        assert not (tmp_path / "a.tar").exists()
    assert os.listdir(tmp_path) == ["a.tar"]

    with suppress(KeyboardInterrupt), TarWriter(tmp_path / "b.tar") as writer:
        writer.write(SAMPLES[0])
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["a.tar"]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({".txt": "x"}, 'expected its key under "__key__", found None'),
        ({"__key__": "a"}, "sample 'a': expected at least one field"),
        ({"__key__": "b.c", ".txt": "x"}, "'b.c.txt', which is read back as another key"),
        ({"__key__": "b", "x/y.txt": "x"}, "which is read back as another key"),
        ({"__key__": "b/", ".txt": "x"}, "which is read back as another key"),
    ],
)
def test_sample_that_would_not_come_back_is_refused(sample: dict[str, Any], message: str) -> None:
    """What a reader would split otherwise is an error at once, not a wrong sample later."""
    with raises(ValueError, message), TarWriter(io.BytesIO()) as writer:
        writer.write(sample)


def test_same_key_twice_is_refused() -> None:
    """Two samples of one key would be read as one."""
    with (
        raises(ValueError, "sample 'a': expected a new key"),
        TarWriter(io.BytesIO()) as writer,
    ):
        writer.write({"__key__": "a", ".txt": "x"})
        writer.write({"__key__": "a", ".cls": 1})


def test_refused_sample_leaves_no_member(tmp_path: Path) -> None:
    """A value that cannot be encoded leaves no half sample behind."""
    with TarWriter(tmp_path / "a.tar") as writer:
        with raises(TypeError, 'field ".bin"'):
            writer.write({"__key__": "a", ".txt": "x", ".bin": object()})
        writer.write(SAMPLES[0])

    with Shard(tmp_path / "a.tar") as shard:
        assert len(shard) == 1
        assert shard.index.num_files == 2


def test_same_field_twice_is_refused() -> None:
    """A field with its dot and one without are one field."""
    with (
        raises(ValueError, "sample 'a': expected the field '.txt' once, found it twice"),
        TarWriter(io.BytesIO()) as writer,
    ):
        writer.write({"__key__": "a", "txt": "x", ".txt": "y"})


def test_failed_end_leaves_nothing(tmp_path: Path) -> None:
    """Where a shard cannot take its name, no part of it stays."""
    (tmp_path / "a.tar").mkdir()
    with raises(IsADirectoryError, "a.tar"), TarWriter(tmp_path / "a.tar") as writer:
        writer.write(SAMPLES[0])

    assert os.listdir(tmp_path) == ["a.tar"]
    writer.close()


def test_index_of_the_finished_shard(tmp_path: Path) -> None:
    """A writer gives the index of what it wrote, to be published with it."""
    writer = write(tmp_path / "a.tar")

    assert writer.index is not None
    assert [writer.index.key(i) for i in range(len(writer.index))] == ["a", "猫/" + "k" * 120]
    save_pack(tmp_path / "a.index", [("a.tar", writer.nbytes, writer.index)])
    build_pack(load_spec([tmp_path / "a.tar"]), tmp_path / "b.index")
    assert (tmp_path / "a.index").read_bytes() == (tmp_path / "b.index").read_bytes()


def test_headers_are_those_of_the_standard_library() -> None:
    """What is put into a template is, byte for byte, what ``tarfile`` makes of it."""
    names = ["a.txt", "d/" * 40 + "k.jpg", "y" * 100, "y" * 101, "y" * 99 + "é", "é.txt"]
    for mode, user, group, mtime in [
        (0o444, "", "", 0),
        (0o644, "u", "g" * 31, 2**33),
        (0o600, "é", "", 0),
        (0o444, "", "", 1.5),
    ]:
        header = _headers(mode, user, group, mtime)
        for name in names:
            for nbytes in (0, 1, 8**11 - 1, 8**11):
                member = tarfile.TarInfo(name)
                member.size, member.mode, member.mtime = nbytes, mode, mtime
                member.uname, member.gname = user, group
                expected = member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
                assert header(name, nbytes) == expected


def test_parameters_of_webdatasets_writer(tmp_path: Path) -> None:
    """Owner, mode and time are those that were asked for; ``write`` gives the bytes of fields."""
    path = tmp_path / "a.tar"
    with TarWriter(path, mode=0o640, user="me", group="us", mtime=1.5) as writer:
        assert writer.write({"__key__": "a", "txt": "four", "_meta": "left out"}) == 4

    with tarfile.open(path) as archive:
        found = [(m.name, m.mode, m.uname, m.gname, m.mtime) for m in archive]
    assert found == [("a.txt", 0o640, "me", "us", 1.5)]


def test_encoders(tmp_path: Path) -> None:
    """The table, encoders in front of it, none, or a callable on the sample."""
    sample = {"__key__": "a", "txt": "x", "cls": 3}
    for encoder, expected in [
        (None, b"3"),
        (True, b"3"),
        ({"cls": lambda value: b"<%d>" % value}, b"<3>"),
        (lambda s: {"__key__": s["__key__"], "txt": b"x", "cls": b"!"}, b"!"),
    ]:
        with TarWriter(tmp_path / "a.tar", encoder=encoder) as writer:
            writer.write(sample)
        with Shard(tmp_path / "a.tar") as shard:
            assert shard[0] == {".txt": b"x", ".cls": expected, "__key__": "a"}
    with TarWriter(io.BytesIO(), encoder=False) as writer:
        writer.write({"__key__": "b", "cls": memoryview(b"3")})
        with raises(TypeError, "sample 'a': field \".txt\": expected bytes, found str"):
            writer.write(sample)


@pytest.mark.parametrize("compress", [True, "gz"])
def test_compression_is_refused(compress: Any, tmp_path: Path) -> None:
    """A compressed tar has no random access; the error says what to do instead."""
    with raises(ValueError, "no random access", ".json.gz"):
        TarWriter(tmp_path / "a.tar", compress=compress)
    with raises(ValueError, "a.tar.gz", "no random access"):
        TarWriter(tmp_path / "a.tar.gz")
    with raises(ValueError, "no random access"):
        ShardWriter(tmp_path / "a-%06d.tar", compress=compress)
    assert os.listdir(tmp_path) == []


# Shards


def numbered(start: int, stop: int) -> list[dict[str, Any]]:
    return [{"__key__": f"{n:06d}", "txt": f"text {n}", "cls": n % 10} for n in range(start, stop)]


def fill(writer: ShardWriter, samples: list[dict[str, Any]]) -> None:
    for sample in samples:
        writer.write(sample)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_shards_spec_and_pack(tmp_path: Path) -> None:
    """Numbered shards, each once it is complete, then a spec and a pack that hold good."""
    done = []
    with ShardWriter(tmp_path / "train-%06d.tar", maxcount=10, post=done.append) as writer:
        fill(writer, numbered(0, 25))
        assert [os.path.basename(path) for path in done] == [
            "train-000000.tar",
            "train-000001.tar",
        ]
        assert not (tmp_path / "train.json").exists()

    assert sorted(os.listdir(tmp_path)) == [
        *(f"train-{n:06d}.tar" for n in range(3)),
        "train.index",
        "train.json",
    ]
    with ShardListDataset(tmp_path / "train.json", transformations=None, raw="bytes") as dataset:
        assert dataset.lengths == [10, 10, 5]
        assert [s[".txt"] for s in dataset] == [b"text %d" % n for n in range(25)]
        assert dataset.get_by_key("000017")["__index__"] == 17
        assert dataset.dataset_name == "train"
        for shard in dataset.spec.shards:
            data = Path(shard.local_path()).read_bytes()
            assert (shard.nbytes, shard.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert writer.num_samples == 25
    built = wids.build_spec(tmp_path / "train.json", pack=tmp_path / "again.index")
    assert (tmp_path / "again.index").read_bytes() == (tmp_path / "train.index").read_bytes()
    assert built.shards == load_spec(tmp_path / "train.json").shards


@pytest.mark.parametrize(
    ("maxsize", "lengths"), [(30_719, [5, 5, 5, 5]), (30_720, [8, 8, 4]), (1, [1] * 20)]
)
def test_no_shard_is_larger_than_asked(maxsize: int, lengths: list[int], tmp_path: Path) -> None:
    """A sample that would make a shard too large begins the next; a larger one has its own."""
    with ShardWriter(tmp_path / "a-%d.tar", maxsize=maxsize) as writer:
        fill(writer, [{"__key__": str(n), "bin": bytes(3000)} for n in range(20)])

    assert [shard.num_samples for shard in writer.shards] == lengths
    if maxsize > 1:
        assert {shard.nbytes for shard in writer.shards} <= {20_480, maxsize}


def test_same_samples_give_the_same_files(tmp_path: Path) -> None:
    """Shards, pack and spec depend on the samples alone."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with ShardWriter(tmp_path / name / "a-%06d.tar", maxcount=7) as writer:
            fill(writer, numbered(0, 20))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    """After kill -9 only complete shards are there; resumed, all files are as without the kill."""
    (tmp_path / "killed").mkdir()
    (tmp_path / "whole").mkdir()

    def work() -> bool:
        writer = ShardWriter(tmp_path / "killed" / "a-%06d.tar", maxcount=10)
        fill(writer, numbered(0, 37))
        os.kill(os.getpid(), signal.SIGKILL)
        return True

    assert not in_child(work)
    left = {name for name in os.listdir(tmp_path / "killed") if name.startswith("a-")}
    assert left == {"a-000000.tar", "a-000001.tar", "a-000002.tar"}

    with ShardWriter(tmp_path / "killed" / "a-%06d.tar", maxcount=10, if_exists="resume") as writer:
        assert writer.num_samples == 30
        fill(writer, numbered(writer.num_samples, 50))
    with ShardWriter(tmp_path / "whole" / "a-%06d.tar", maxcount=10) as whole:
        fill(whole, numbered(0, 50))

    found = contents(tmp_path / "killed")
    assert {k: v for k, v in found.items() if not k.startswith(".")} == contents(tmp_path / "whole")


def test_an_exception_leaves_complete_shards(tmp_path: Path) -> None:
    """What was published stays, what was not leaves nothing, and there is no spec of a part."""
    with (
        suppress(KeyboardInterrupt),
        ShardWriter(tmp_path / "a-%06d.tar", maxcount=10) as writer,
    ):
        fill(writer, numbered(0, 15))
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["a-000000.tar"]


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    """Neither a shard nor a spec, unless that is asked for."""
    pattern = tmp_path / "a-%06d.tar"
    with ShardWriter(pattern, maxcount=10) as writer:
        fill(writer, numbered(0, 15))
    before = contents(tmp_path)

    with raises(FileExistsError, "a-000000.tar: it is there already", 'if_exists="resume"'):
        ShardWriter(pattern)
    with raises(FileExistsError, "a.json: it is there already"):
        ShardWriter(pattern, start_shard=5)
    with (
        raises(FileExistsError, "a-000001.tar: it is there already"),
        ShardWriter(pattern, maxcount=1, start_shard=1, spec=False) as writer,
    ):
        pass
    assert contents(tmp_path) == before
    with ShardWriter(pattern, if_exists="replace") as writer:
        fill(writer, numbered(0, 3))
    assert [s.num_samples for s in load_spec(tmp_path / "a.json").shards] == [3]


def test_where_the_spec_goes(tmp_path: Path) -> None:
    """By the pattern, to a path, or nowhere; without samples there is none."""
    for pattern, spec in [
        ("x/train-%06d.tar", "train.json"),
        ("x/train_%d.tar", "train.json"),
        ("x/%06d.tar", "shards.json"),
    ]:
        (tmp_path / "x").mkdir()
        with ShardWriter(tmp_path / pattern) as writer:
            fill(writer, numbered(0, 3))
        assert spec in os.listdir(tmp_path / "x")
        shutil.rmtree(tmp_path / "x")
    with ShardWriter(tmp_path / "a-%06d.tar", spec=tmp_path / "b.json", name="n") as writer:
        fill(writer, numbered(0, 3))
    assert sorted(os.listdir(tmp_path)) == ["a-000000.tar", "b.index", "b.json"]
    assert load_spec(tmp_path / "b.json").name == "n"
    with ShardWriter(tmp_path / "c-%06d.tar", start_shard=7, spec=False) as writer:
        fill(writer, numbered(0, 3))
    with ShardWriter(tmp_path / "d-%06d.tar"):
        pass
    assert sorted(os.listdir(tmp_path))[2:] == ["b.json", "c-000007.tar"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pattern": "a.tar"}, "one number such as %06d"),
        ({"pattern": "a-%d-%d.tar"}, "one number such as %06d"),
        ({"pattern": "a-%s.tar"}, "one number such as %06d"),
        ({"pattern": "a-%d.tar", "maxcount": 0}, "at least 1, found 0"),
        ({"pattern": "a-%d.tar", "if_exists": "skip"}, "found 'skip'"),
        ({"pattern": "a-%d.tar.gz"}, "no random access"),
        ({"pattern": "%d/a.tar"}, "one number such as %06d"),
        ({"pattern": "s3://bucket/a-%d.tar"}, "expected a path on this machine, found a URL"),
        ({"pattern": "pipe:cat > a-%d.tar"}, "expected a path on this machine"),
        ({"pattern": "a-%d.tar", "spec": "a.index"}, "ends in .json"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Before anything is written."""
    with raises(ValueError, message):
        ShardWriter(**arguments)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """Published shards stay whole, the unfinished one goes, and a resumed run completes them."""
    need(os.geteuid() == 0 and shutil.which("mount"), "root, to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", disk], check=False
    )
    need(mounted.returncode == 0, "a machine that lets root mount")
    samples = [{"__key__": f"{n:03d}", "bin": bytes([n]) * 3000} for n in range(60)]
    try:
        with (
            raises(OSError, "No space left on device"),
            ShardWriter(disk / "a-%06d.tar", maxcount=10) as writer,
        ):
            fill(writer, samples)
        left = sorted(os.listdir(disk))
        assert left == [f"a-{n:06d}.tar" for n in range(len(left))]
        assert len(left) >= 2
        subprocess.run(["mount", "-o", "remount,size=2m", disk], check=True)
        with ShardWriter(disk / "a-%06d.tar", maxcount=10, if_exists="resume") as writer:
            fill(writer, samples[writer.num_samples :])
        with ShardListDataset(disk / "a.json", transformations=None, raw="bytes") as dataset:
            assert [s[".bin"] for s in dataset] == [sample["bin"] for sample in samples]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_sample_that_was_written_in_part_is_not_published() -> None:
    """Whoever goes on after a failed write gets an error at the end, and no shard."""

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            if len(data) == 3000:
                raise OSError(28, "No space left on device")
            return super().write(data)

    writer = TarWriter(Full())
    with raises(OSError, "No space left"):
        writer.write({"__key__": "a", "bin": bytes(3000)})
    with raises(OSError, "a sample was written in part"):
        writer.write({"__key__": "b", "bin": b"x"})
    with raises(OSError, "a sample was written in part"):
        writer.close()


def test_a_closed_writer_takes_nothing(tmp_path: Path) -> None:
    """What came behind the end would be lost."""
    for writer in (TarWriter(io.BytesIO()), ShardWriter(tmp_path / "a-%d.tar")):
        writer.write({"__key__": "a", "txt": "x"})
        writer.close()
        with raises(ValueError, "found one that was closed"):
            writer.write({"__key__": "b", "txt": "x"})
    assert sorted(os.listdir(tmp_path)) == ["a-0.tar", "a.index", "a.json"]


def test_a_gap_is_not_filled(tmp_path: Path) -> None:
    """Behind a shard that is missing, those that are there would be overwritten."""
    pattern = tmp_path / "a-%06d.tar"
    with ShardWriter(pattern, maxcount=5) as writer:
        fill(writer, numbered(0, 20))
    (tmp_path / "a-000001.tar").unlink()
    before = contents(tmp_path)

    with raises(FileExistsError, "a-000003.tar: it is there already", "a-000001.tar is not"):
        ShardWriter(pattern, maxcount=5, if_exists="resume")
    assert contents(tmp_path) == before


def test_two_writers_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """As ranks of a job do that run the same program: the second one is told, and loses."""
    pattern = tmp_path / "a-%06d.tar"
    with ShardWriter(pattern) as first:
        second = ShardWriter(pattern)
        fill(first, numbered(0, 3))
        fill(second, numbered(5, 9))
    with raises(FileExistsError, "a-000000.tar"):
        second.close()
    with ShardListDataset(tmp_path / "a.json") as dataset:
        assert [s["__key__"] for s in dataset] == ["000000", "000001", "000002"]
    assert sorted(os.listdir(tmp_path)) == ["a-000000.tar", "a.index", "a.json"]


def test_a_failure_after_publishing_ends_the_writer(tmp_path: Path) -> None:
    """The next shard does not take the place of the one that was published."""

    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(28, "No space left on device")

    writer = ShardWriter(tmp_path / "a-%d.tar", maxcount=1)
    writer._indexes.close()
    writer._indexes = Full()
    writer.write({"__key__": "a", "txt": "x"})
    with raises(OSError, "No space left"):
        writer.write({"__key__": "b", "txt": "x"})
    for go_on in (lambda: writer.write({"__key__": "b", "txt": "x"}), writer.close):
        with raises(OSError, "a shard could not be completed before"):
            go_on()
    assert os.listdir(tmp_path) == ["a-0.tar"], "no spec of a part"
    with Shard(tmp_path / "a-0.tar") as shard:
        assert shard[0]["__key__"] == "a"


def test_resuming_keeps_what_the_spec_said(tmp_path: Path) -> None:
    """Its name and description, as `wids update` may have set them."""
    pattern = tmp_path / "a-%d.tar"
    with ShardWriter(pattern, maxcount=2) as writer:
        fill(writer, numbered(0, 2))
    document = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps({**document, "name": "mine", "info": "about"}))

    with ShardWriter(pattern, maxcount=2, if_exists="resume") as writer:
        fill(writer, numbered(2, 3))

    spec = load_spec(tmp_path / "a.json")
    assert (spec.name, spec.extras["info"], len(spec.shards)) == ("mine", "about", 2)


def test_webdataset_and_tar_read_what_is_written(tmp_path: Path) -> None:
    """The shards are what others expect of a WebDataset."""
    need(importlib.util.find_spec("webdataset"), "pip install webdataset")
    with ShardWriter(tmp_path / "a-%06d.tar", maxcount=10) as writer:
        fill(writer, numbered(0, 15))
    code = (
        "import sys, webdataset\n"
        "for s in webdataset.WebDataset(sys.argv[1:], shardshuffle=False).decode():\n"
        "    print(s['__key__'], s['txt'], s['cls'])"
    )
    shards = sorted(tmp_path.glob("*.tar"))

    read = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *shards],
        capture_output=True,
        text=True,
        check=True,
    )
    listed = subprocess.run(["tar", "tvf", shards[1]], capture_output=True, text=True, check=True)

    expected = [f"{n:06d} text {n} {n % 10}" for n in range(15)]
    assert read.stdout.splitlines() == expected
    assert len(listed.stdout.splitlines()) == 10
    assert listed.stdout.startswith("-r--r--r-- 0/0")
