"""``pack_folder``: order, shards, outputs, and what a second run does."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import raises
from trees import contents, make_tree, members, packed

import wids
from wids import PackError, ShardListDataset, TarWriter, pack_folder
from wids.publish.packing.pack_plan import Sample
from wids.publish.packing.packed_folder import ordered


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten samples of a text and a picture of some kilobytes, in two folders."""
    files = {}
    for number in range(10):
        files[f"{'ab'[number % 2]}/{number}.txt"] = f"text {number}"
        files[f"{'ab'[number % 2]}/{number}.bin"] = f"{number}" * 1000 * number
    return make_tree(tmp_path / "in", files)


def test_order_of_a_seed() -> None:
    """The order is a promise: by a digest of seed and key, or by key (PACK-12)."""
    samples = [Sample(key, ()) for key in "abcdefgh"]
    for seed in (0, 7, -1):
        expected = sorted(
            "abcdefgh",
            key=lambda key: hashlib.blake2b(f"{seed}\0{key}".encode(), digest_size=16).digest(),
        )
        assert [sample.key for sample in ordered(samples, seed)] == expected
    assert "".join(sample.key for sample in ordered(samples, 0)) == "fdaebghc"
    assert ordered(samples, None) == samples


def test_samples_are_never_cut_in_two(folder: Path, tmp_path: Path) -> None:
    """Shards have at most maxcount samples and maxsize bytes; a larger one is alone (PACK-13)."""
    report = pack_folder(folder, tmp_path / "out", maxcount=4, classes=False)
    assert [shard.num_samples for shard in report.spec.shards] == [4, 4, 2]
    for path in tmp_path.glob("out-*.tar"):
        names = list(members(path))
        assert names[0::2] == [name.removesuffix("txt") + "bin" for name in names[1::2]]

    report = pack_folder(folder, tmp_path / "b", maxsize=20480, classes=False)
    lengths = [(path.stat().st_size, len(members(path))) for path in sorted(tmp_path.glob("b-*"))]
    assert all(nbytes <= 20480 or count == 2 for nbytes, count in lengths)
    assert len(packed(tmp_path, "b")) == 20
    pack_folder(folder, tmp_path / "c", maxsize=20479, classes=False)
    assert len(list(tmp_path.glob("c-*.tar"))) > len(lengths)


@pytest.mark.parametrize("name", ["short", "n" * 97, "n" * 98, "é", "d/" * 60 + "x"])
@pytest.mark.parametrize("count", [1, 3, 19])
def test_the_length_of_a_shard_is_known_before(name: str, count: int, tmp_path: Path) -> None:
    """A shard gets the length that was planned, whatever headers its names need (PACK-13)."""
    tasks: list[Any] = []

    class Noting(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            tasks.extend(args)
            future: Future[Any] = Future()
            future.set_result(fn(*args, **kwargs))
            return future

    make_tree(tmp_path / "in", {f"{name}{n}.txt": "x" * 511 * n for n in range(count)})
    pack_folder(tmp_path / "in", tmp_path / "out", executor=Noting())
    (task,) = tasks
    assert task.nbytes == os.path.getsize(task.path)


def test_the_same_files_make_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    """Whatever the times, owners and permissions of files, and the processes at work (PACK-13)."""
    expected: dict[str, bytes] = {}
    copy = make_tree(
        tmp_path / "copy",
        {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.*"))[::-1]},
    )
    for path in copy.rglob("*.txt"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    with ProcessPoolExecutor(2) as processes, ThreadPoolExecutor(3) as threads:
        runs: list[tuple[Path, Any]] = [(folder, None), (copy, None)]
        runs += [(folder, processes), (copy, threads)]
        for number, (source, executor) in enumerate(runs):
            output = tmp_path / str(number) / "out"
            pack_folder(source, output, maxcount=3, executor=executor)
            expected = expected or contents(output.parent)
            assert contents(output.parent) == expected
    assert len(expected) == 6
    pack_folder(folder, tmp_path / "seed" / "out", maxcount=3, seed=1)
    assert contents(tmp_path / "seed") != expected


def test_the_output_is_what_create_describes(folder: Path, tmp_path: Path, validator: Any) -> None:
    """Spec and dataset index are those of the shards, and valid under the schema."""
    pack_folder(folder, tmp_path / "new" / "folder" / "out", maxcount=3, name="mine")

    output = tmp_path / "new" / "folder"
    assert sorted(contents(output)) == [
        *(f"out-00000{n}.tar" for n in range(4)),
        *("out.index", "out.json"),
    ]
    assert wids.verify_spec(output / "out.json") == []
    built = wids.build_spec(sorted(output.glob("*.tar")), dataset_index=tmp_path / "again.index")
    assert (tmp_path / "again.index").read_bytes() == (output / "out.index").read_bytes()
    spec = wids.load_spec(output / "out.json")
    assert (spec.shards, spec.name) == (built.shards, "mine")
    document = json.loads((output / "out.json").read_text())
    assert [entry["url"] for entry in document["shardlist"]][1] == "out-000001.tar"
    validator.validate(document)
    with ShardListDataset(output / "out.json") as dataset:
        assert dataset.get_by_key("b/7")[".txt"] == "text 7"


def test_large_files_are_copied_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of any length around that of a piece are copied, checked and indexed."""
    monkeypatch.setattr("wids.publish.new_shard.PIECE_NBYTES", 4096)
    lengths = [0, 1, 511, 512, 3072, 3583, 3584, 3585, 4095, 4096, 4097, 8192, 9000, 40_000]
    files = {f"{n:05d}.bin": os.urandom(n) for n in lengths}
    files["metadata.jsonl"] = b'{"file_name": "00001.bin", "x": "' + b"y" * 9000 + b'"}'
    make_tree(tmp_path / "in", files)

    pack_folder(tmp_path / "in", tmp_path / "out")

    found = packed(tmp_path)
    assert json.loads(found.pop("00001.json")) == {"x": "y" * 9000}
    del files["metadata.jsonl"]
    assert dict(sorted(found.items())) == files
    assert wids.verify_spec(tmp_path / "out.json") == []


def test_memory_does_not_grow_with_files(tmp_path: Path) -> None:
    """A file of 100 MB is packed with a tenth of that: files are copied in pieces."""
    import subprocess
    import sys

    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "a.bin").open("wb") as file:
        file.truncate(100_000_000)
    code = (
        "import resource, wids.publish.packing.packed_folder as f\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "f.pack_folder('in', 'out')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert int(out) < 30_000, "kilobytes"


@pytest.mark.parametrize("left", ["out-000000.tar", "out-000007.tar", "out.json", "out.index"])
def test_an_output_that_holds_another_dataset(left: str, folder: Path, tmp_path: Path) -> None:
    """It is an error, and stays as it is; on request it is overwritten."""
    (tmp_path / left).write_text("mine")
    with raises(FileExistsError, left, "already exists", "another output", "--replace"):
        pack_folder(folder, tmp_path / "out")
    assert (tmp_path / left).read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == sorted(["in", left])

    report = pack_folder(folder, tmp_path / "out", if_exists="replace")

    assert wids.verify_spec(tmp_path / "out.json") == []
    is_leftover = left == "out-000007.tar"
    assert "0 bytes: a/0.bin" in report.remarks[0]
    assert [remark[:30] for remark in report.remarks[1:]] == [
        "1 shard of an earlier dataset,"
    ] * is_leftover


def test_a_dataset_is_not_packed_twice(folder: Path, tmp_path: Path) -> None:
    """The same call after a complete run is an error; replacing it gives the same bytes."""
    (tmp_path / "new").mkdir()
    pack_folder(folder, tmp_path / "new" / "out")
    before = contents(tmp_path / "new")
    with raises(FileExistsError, "out.json: already exists"):
        pack_folder(folder, tmp_path / "new" / "out")
    assert contents(tmp_path / "new") == before
    pack_folder(folder, tmp_path / "new" / "out", if_exists="replace")
    assert contents(tmp_path / "new") == before


def test_an_output_in_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    """Also through a link; a folder whose name begins alike is another one."""
    (tmp_path / "link").symlink_to(folder)
    for output in (folder / "out", folder / "new" / "out", tmp_path / "link" / "out"):
        with raises(PackError, str(output), "outside the folder that is packed"):
            pack_folder(folder, output)
    assert sorted(os.listdir(folder)) == ["a", "b"]
    pack_folder(folder, tmp_path / "in2" / "out")
    pack_folder(folder, tmp_path / "in")  # in-000000.tar beside the folder
    assert sorted(os.listdir(tmp_path)) == [
        *("in", "in-000000.tar", "in.index", "in.json", "in2", "link")
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "out/"}, "beginning of file names"),
        ({"output": ".."}, "beginning of file names"),
        ({"output": "out-000000.tar"}, "beginning of file names"),
        ({"output": "out-%06d"}, "beginning of file names"),
        ({"output": "https://h/out"}, "a URL that can be written"),
        ({"output": "s3://b/out?x=1"}, "without a query"),
        ({"output": "s3://out"}, "a URL with a bucket or a folder before the file name"),
        ({"maxcount": 0}, "at least 1, found 0"),
        ({"maxcount": float("nan")}, "at least 1, found nan"),
        ({"maxsize": 0}, "at least 1"),
        ({"maxsize": "much"}, "maxsize: expected bytes"),
        ({"key_split": "middle"}, 'key_split: expected "first" or "last"'),
        ({"if_exists": "resume"}, 'if_exists: expected "error" or "replace"'),
    ],
)
def test_invalid_arguments(
    options: dict[str, Any],
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are named before anything is written."""
    monkeypatch.chdir(folder.parent)
    with raises(ValueError, message):
        pack_folder(**{"folder": folder, "output": "out", **options})
    assert os.listdir() == ["in"]


def test_a_spec_as_output(folder: Path, tmp_path: Path) -> None:
    """``train.json`` is what other commands write, and means the same here."""
    report = pack_folder(folder, tmp_path / "out.json")
    assert report.spec_path == str(tmp_path / "out.json")
    assert wids.load_spec(report.spec_path).name == "out"


def test_another_writer_of_the_shards_is_refused(folder: Path, tmp_path: Path) -> None:
    """As with two writers of one pattern."""
    with wids.ShardWriter(tmp_path / "out-%06d.tar") as writer:
        writer.write({"__key__": "a", "txt": "x"})
        with raises(OSError, "another one that is open"):
            pack_folder(folder, tmp_path / "out")


def test_a_shard_that_comes_up_meanwhile_is_not_overwritten(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another program, after the output was found free; one of the same bytes is."""
    from wids.publish.packing import packed_folder

    pack_folder(folder, tmp_path / "same", maxcount=5)
    write = packed_folder.write_shard
    for content in (b"mine", (tmp_path / "same-000001.tar").read_bytes()):

        def write_and_meet(task: Any, **options: Any) -> Any:
            if task.path.endswith("1.tar"):
                Path(task.path).write_bytes(content)  # noqa: B023 - called in this round
            return write(task, **options)

        monkeypatch.setattr(packed_folder, "write_shard", write_and_meet)
        if content == b"mine":
            with raises(FileExistsError, "out-000001.tar"):
                pack_folder(folder, tmp_path / "out", maxcount=5)
            assert (tmp_path / "out-000001.tar").read_bytes() == b"mine"
            (tmp_path / "out-000001.tar").unlink()
        else:
            pack_folder(folder, tmp_path / "out", maxcount=5)
    assert wids.verify_spec(tmp_path / "out.json") == []
    assert packed(tmp_path) == packed(tmp_path, "same")


def test_reports(folder: Path, tmp_path: Path) -> None:
    """A report has the counts as numbers, and as a line."""
    report = pack_folder(folder, tmp_path / "out", maxcount=4)
    assert (report.num_samples, len(report.spec.shards)) == (10, 3)
    assert report.nbytes == sum(p.stat().st_size for p in tmp_path.glob("*.tar"))
    assert str(report) == f"{tmp_path}/out.json: 10 samples, 3 shards, 81.9 kB"


def test_shards_of_a_tar_writer_are_the_same(folder: Path, tmp_path: Path) -> None:
    """Packing and `TarWriter` write the same bytes and the same index for the same members."""
    pack_folder(folder, tmp_path / "out", seed=None, classes=False)
    with TarWriter(tmp_path / "theirs.tar", encoder=False) as writer:
        for path in sorted(folder.rglob("*.txt")):
            key = str(path.relative_to(folder).with_suffix(""))
            data = path.with_suffix(".bin").read_bytes()
            writer.write({"__key__": key, ".bin": data, ".txt": path.read_bytes()})
    assert (tmp_path / "theirs.tar").read_bytes() == (tmp_path / "out-000000.tar").read_bytes()
