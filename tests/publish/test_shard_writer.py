"""Samples → numbered shards, their spec and their dataset index."""

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
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, need, raises

import wids
from wids import Shard, ShardListDataset, ShardWriter, TarWriter, load_spec
from wids.storage import locks


def numbered(start: int, stop: int) -> list[dict[str, Any]]:
    return [{"__key__": f"{n:06d}", "txt": f"text {n}", "cls": n % 10} for n in range(start, stop)]


def fill(writer: ShardWriter, samples: list[dict[str, Any]]) -> None:
    for sample in samples:
        writer.write(sample)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_shards_spec_and_dataset_index(tmp_path: Path) -> None:
    """Numbered shards, each published when it is complete, then a valid spec and dataset index."""
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
    built = wids.build_spec(tmp_path / "train.json", dataset_index=tmp_path / "again.index")
    assert (tmp_path / "again.index").read_bytes() == (tmp_path / "train.index").read_bytes()
    assert built.shards == load_spec(tmp_path / "train.json").shards


@pytest.mark.parametrize(
    ("maxsize", "lengths"), [(30_719, [5, 5, 5, 5]), (30_720, [8, 8, 4]), (1, [1] * 20)]
)
def test_no_shard_is_larger_than_maxsize(maxsize: int, lengths: list[int], tmp_path: Path) -> None:
    """A sample that would make a shard too large begins the next one; a larger one is alone."""
    with ShardWriter(tmp_path / "a-%d.tar", maxsize=maxsize) as writer:
        fill(writer, [{"__key__": str(n), "bin": bytes(3000)} for n in range(20)])

    assert [shard.num_samples for shard in writer.shards] == lengths
    if maxsize > 1:
        assert {shard.nbytes for shard in writer.shards} <= {20_480, maxsize}


@pytest.mark.parametrize("options", [{"maxcount": 0}, {"maxcount": float("nan")}, {"maxsize": 0}])
def test_limits_that_no_shard_can_keep_to(options: dict[str, Any], tmp_path: Path) -> None:
    """They are refused before anything is written."""
    with raises(ValueError, "expected a maxcount and a maxsize of at least 1"):
        ShardWriter(tmp_path / "a-%06d.tar", **options)
    assert not list(tmp_path.iterdir())


def test_same_samples_give_the_same_files(tmp_path: Path) -> None:
    """Shards, dataset index and spec depend on the samples alone."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with ShardWriter(tmp_path / name / "a-%06d.tar", maxcount=7) as writer:
            fill(writer, numbered(0, 20))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_killed_run_is_resumed(tmp_path: Path) -> None:
    """After kill -9 only complete shards exist; after resuming, all files are as without it."""
    (tmp_path / "killed").mkdir()
    (tmp_path / "uninterrupted").mkdir()

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
    with ShardWriter(tmp_path / "uninterrupted" / "a-%06d.tar", maxcount=10) as uninterrupted:
        fill(uninterrupted, numbered(0, 50))

    found = contents(tmp_path / "killed")
    assert {k: v for k, v in found.items() if not k.startswith(".")} == contents(
        tmp_path / "uninterrupted"
    )


def test_an_exception_leaves_complete_shards(tmp_path: Path) -> None:
    """Published shards stay, the other one leaves nothing, and there is no partial spec."""
    with (
        suppress(KeyboardInterrupt),
        ShardWriter(tmp_path / "a-%06d.tar", maxcount=10) as writer,
    ):
        fill(writer, numbered(0, 15))
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["a-000000.tar"]


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    """Neither a shard nor a spec, unless the caller asks for it."""
    pattern = tmp_path / "a-%06d.tar"
    with ShardWriter(pattern, maxcount=10) as writer:
        fill(writer, numbered(0, 15))
    before = contents(tmp_path)

    with raises(FileExistsError, "a-000000.tar: already exists", 'if_exists="resume"'):
        ShardWriter(pattern)
    with raises(FileExistsError, "a.json: already exists"):
        ShardWriter(pattern, start_shard=5)
    with (
        raises(FileExistsError, "a-000001.tar: already exists"),
        ShardWriter(pattern, maxcount=1, start_shard=1, spec=False) as writer,
    ):
        pass
    assert contents(tmp_path) == before
    with ShardWriter(pattern, if_exists="replace") as writer:
        fill(writer, numbered(0, 3))
    assert [s.num_samples for s in load_spec(tmp_path / "a.json").shards] == [3]


def test_where_the_spec_goes(tmp_path: Path) -> None:
    """Named by the pattern, at a path, or nowhere; there is none without samples."""
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
        ({"pattern": "https://h/a-%d.tar"}, "a URL that can be written, such as s3://bucket/name"),
        ({"pattern": "pipe:cat > a-%d.tar"}, "found pipe:"),
        ({"pattern": "file:/tmp/a-%d.tar"}, "found file:; pass the path"),
        ({"pattern": "s3://a-%d.tar"}, "a URL with a bucket or a folder before the file name"),
        ({"pattern": "a-%d.tar", "spec": "s3://bucket/a.json"}, "beside local shards"),
        ({"pattern": "a-%d.tar", "spec": "a.index"}, "ends in .json"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    """An invalid argument is an error before anything is written."""
    with raises(ValueError, message):
        ShardWriter(**arguments)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """Published shards stay intact, the unfinished one goes, and a resumed run adds the rest."""
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


def test_a_closed_writer_takes_nothing(tmp_path: Path) -> None:
    """A sample after the end would be lost."""
    for writer in (TarWriter(io.BytesIO()), ShardWriter(tmp_path / "a-%d.tar")):
        writer.write({"__key__": "a", "txt": "x"})
        writer.close()
        with raises(ValueError, "found one that was closed"):
            writer.write({"__key__": "b", "txt": "x"})
    assert sorted(os.listdir(tmp_path)) == ["a-0.tar", "a.index", "a.json"]


def test_a_gap_is_not_filled(tmp_path: Path) -> None:
    """Resuming before a missing shard would overwrite the later ones."""
    pattern = tmp_path / "a-%06d.tar"
    with ShardWriter(pattern, maxcount=5) as writer:
        fill(writer, numbered(0, 20))
    (tmp_path / "a-000001.tar").unlink()
    before = contents(tmp_path)

    with raises(FileExistsError, "a-000003.tar: already exists", "a-000001.tar does not"):
        ShardWriter(pattern, maxcount=5, if_exists="resume")
    assert contents(tmp_path) == before


def test_two_writers_do_not_overwrite_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where locks do not work: the second writer gets an error when its shard is complete."""
    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setattr(locks, "REFUSES_DELETION", False)
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
    """The next shard does not replace the published one."""

    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(28, "No space left on device")

    writer = ShardWriter(tmp_path / "a-%d.tar", maxcount=1)
    writer._journal.file.close()
    object.__setattr__(writer._journal, "file", Full())
    writer.write({"__key__": "a", "txt": "x"})
    with raises(OSError, "No space left"):
        writer.write({"__key__": "b", "txt": "x"})
    for action in (lambda: writer.write({"__key__": "b", "txt": "x"}), writer.close):
        with raises(OSError, "an earlier shard could not be completed"):
            action()
    assert os.listdir(tmp_path) == ["a-0.tar"], "no partial spec"
    with Shard(tmp_path / "a-0.tar") as shard:
        assert shard[0]["__key__"] == "a"


def test_resuming_keeps_name_and_description(tmp_path: Path) -> None:
    """Its name and description stay, as `wids update` may have set them."""
    pattern = tmp_path / "a-%d.tar"
    with ShardWriter(pattern, maxcount=2) as writer:
        fill(writer, numbered(0, 2))
    document = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(
        json.dumps({**document, "name": "mine", "info": "a description"})
    )

    with ShardWriter(pattern, maxcount=2, if_exists="resume") as writer:
        fill(writer, numbered(2, 3))

    spec = load_spec(tmp_path / "a.json")
    assert (spec.name, spec.extras["info"], len(spec.shards)) == ("mine", "a description", 2)


@pytest.mark.long
def test_webdataset_and_tar_read_what_is_written(tmp_path: Path) -> None:
    """Other programs read the shards as a WebDataset."""
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
