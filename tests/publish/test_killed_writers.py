"""What a killed writer leaves, and two writers of the same shards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, need, raises
from loopback import Server

import wids
from wids import ShardWriter, TarWriter
from wids.storage import files, locks
from wids.storage.fetch import Fetcher, downloaded


def sample(number: int) -> dict[str, Any]:
    return {"__key__": f"{number:06d}", "txt": f"text {number}"}


def killed(work: Callable[[], object]) -> None:
    """Do something in a process that is killed afterwards."""

    def work_and_die() -> bool:
        kept = work()
        os.kill(os.getpid(), signal.SIGKILL)
        return bool(kept)

    assert not in_child(work_and_die)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def make_old(folder: Path, age_s: float = 3600) -> None:
    for path in folder.glob(".*"):
        os.utime(path, (time.time() - age_s,) * 2)


def test_the_next_writer_deletes_what_a_killed_one_left(tmp_path: Path) -> None:
    """Unfinished shards of the same pattern go at once, and so does the lock (SPEC-16)."""
    pattern = tmp_path / "a-%06d.tar"

    def work() -> object:
        writer = ShardWriter(pattern, maxcount=2)
        for number in range(3):
            writer.write(sample(number))
        return writer

    killed(work)
    assert [name[:14] for name in names(tmp_path) if ".tmp" in name] == [".a-000001.tar."]
    others = [".b-000001.tar.0123456789abcdef.tmp", ".a-000001.tar.mine.tmp", ".a-x.tar.tmp"]
    for name in others:
        (tmp_path / name).touch()
    make_old(tmp_path)

    with ShardWriter(pattern, maxcount=2, if_exists="resume") as writer:
        assert writer.num_samples == 2
        writer.write(sample(2))

    expected = ["a-000000.tar", "a-000001.tar", "a.index", "a.json", *others]
    assert names(tmp_path) == sorted(expected)


@pytest.mark.parametrize("age_s", [3600, -3600])
def test_a_tar_writer_deletes_what_a_killed_one_left(age_s: float, tmp_path: Path) -> None:
    """Of the same name, once it is old; a clock in the future does not keep it for ever."""
    path = tmp_path / "a.tar"
    killed(lambda: TarWriter(path))
    assert len(names(tmp_path)) == 1
    TarWriter(path).close()
    assert len(names(tmp_path)) == 2, "it may be of another machine, whose locks are not seen here"
    make_old(tmp_path, age_s)
    TarWriter(path).close()
    assert names(tmp_path) == ["a.tar"]


def test_a_writer_that_is_slow_keeps_its_file(tmp_path: Path) -> None:
    """A file that is locked by its writer is not deleted, however old it is."""
    path = tmp_path / "a.tar"
    with TarWriter(path) as first:
        first.write(sample(0))
        make_old(tmp_path)
        TarWriter(path).close()
        first.write(sample(1))
    with wids.Shard(path) as shard:
        assert len(shard) == 2


def test_specs_and_dataset_indexes_delete_what_a_killed_build_left(tmp_path: Path) -> None:
    """The next one of the same name does, once it is old."""
    with TarWriter(tmp_path / "a.tar") as writer:
        writer.write(sample(0))
    for name in ("a.index", "a.json"):
        publishing = files.replacing(tmp_path / name)
        killed(publishing.__enter__)
    make_old(tmp_path)
    assert len(names(tmp_path)) == 3
    wids.build_spec([tmp_path / "a.tar"], dataset_index=tmp_path / "a.index").save(
        tmp_path / "a.json"
    )
    assert names(tmp_path) == ["a.index", "a.json", "a.tar"]


@pytest.mark.parametrize("if_exists", ["error", "resume", "replace"])
def test_the_second_writer_of_a_pattern_is_refused(if_exists: Any, tmp_path: Path) -> None:
    """Their shards would be mixed; the first one is not disturbed."""
    pattern = tmp_path / "a-%06d.tar"
    with ShardWriter(pattern, if_exists="replace") as first:
        first.write(sample(0))
        with raises(OSError, "a-%06d.tar", "another one that is open", "a pattern of its own"):
            ShardWriter(pattern, if_exists=if_exists)
        with ShardWriter(tmp_path / "b-%06d.tar") as other:
            other.write(sample(0))
    with ShardWriter(pattern, if_exists="replace") as writer:
        writer.write(sample(5))
    assert names(tmp_path) == [
        *("a-000000.tar", "a.index", "a.json"),
        *("b-000000.tar", "b.index", "b.json"),
    ]


def left_by_child(writer: TarWriter | ShardWriter, how: str) -> bool:
    """Leave the block of a writer in a forked process."""

    def left() -> bool:
        with raises(RuntimeError, "which began to write it, found process", "forked since"):
            writer.write(sample(5))  # nothing is lost before it is told
        if how == "it fails":
            writer.__exit__(SystemExit, SystemExit(), None)
        else:
            with raises(RuntimeError, "which began to write it, found process", "forked since"):
                writer.close()
        return True

    return in_child(left)


@pytest.mark.parametrize("how", ["it fails", "it ends"])
@pytest.mark.parametrize("folder", ["", "memory://forked/", "memory://named/"])
def test_a_forked_process_has_no_part_in_a_shard(
    tmp_path: Path, folder: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes nothing of what its parent has buffered, and deletes and publishes nothing."""
    if folder == "memory://named/":  # as on macOS, where a file without a name has no path
        exists = os.path.exists
        has_path = lambda path: exists(path) and not str(path).startswith("/proc")  # noqa: E731
        monkeypatch.setattr(os.path, "exists", has_path)

    def written(url: str, *, forks: bool) -> bytes:
        with TarWriter(url) as writer:
            for number in range(9):
                writer.write(sample(number))
                if number == 4 and forks:
                    assert left_by_child(writer, how)
        with downloaded(Fetcher(), url) as path:
            return Path(path).read_bytes()

    place = folder or f"{tmp_path}/"
    assert written(f"{place}a.tar", forks=True) == written(f"{place}b.tar", forks=False)


@pytest.mark.parametrize("how", ["it fails", "it ends"])
@pytest.mark.parametrize("if_exists", ["error", "append", "replace"])
def test_a_forked_process_leaves_shards_to_their_writer(
    tmp_path: Path, if_exists: Any, how: str
) -> None:
    """No other writer is admitted once the child has ended, and the dataset becomes complete."""
    pattern = tmp_path / "a-%06d.tar"
    if if_exists != "error":
        with ShardWriter(pattern) as writer:
            writer.write(sample(9))
    with ShardWriter(pattern, if_exists=if_exists, maxcount=1) as writer:
        writer.write(sample(0))
        assert left_by_child(writer, how)
        with raises(OSError, "expected to be the only writer"):
            ShardWriter(pattern)
        writer.write(sample(1))
        assert left_by_child(writer, how)
    with wids.ShardListDataset(tmp_path / "a.json") as dataset:
        texts = [each[".txt"] for each in dataset]
    assert texts == ["text 9"] * (if_exists == "append") + ["text 0", "text 1"]
    assert not [name for name in names(tmp_path) if name.endswith((".partial", ".tmp"))]


def test_a_forked_process_may_write_to_a_stream_of_its_own() -> None:
    """The caller's stream may be a pipe to the parent."""
    ours, theirs = os.pipe()
    with open(theirs, "wb", buffering=0) as stream, open(ours, "rb") as received:
        writer = TarWriter(stream)

        def written() -> bool:
            writer.write(sample(0))
            writer.close()
            return True

        assert in_child(written)
        stream.close()
        assert received.read().startswith(b"000000.txt")


def test_a_process_forked_by_a_writer_has_no_lock(tmp_path: Path) -> None:
    """Workers that are started while a writer is open outlive it without harm."""
    with ShardWriter(tmp_path / "a-%06d.tar") as writer:
        writer.write(sample(0))
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            os.close(theirs)
            os.read(ours, 1)
            os._exit(0)
        os.close(ours)
        (temporary,) = tmp_path.glob(".*.tmp")
        assert not locks.probe(str(temporary))
    try:
        with ShardWriter(tmp_path / "a-%06d.tar", if_exists="replace") as writer:
            writer.write(sample(1))
    finally:
        os.close(theirs)
        os.waitpid(child, 0)


def test_a_killed_build_leaves_no_download(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remote shards are read from a file without a name, which ends with the process."""
    need(os.path.isdir("/proc/self/fd"), "Linux, where a file without a name has a path")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    path = tmp_path / "a.tar"
    with TarWriter(path) as writer:
        writer.write(sample(0))
    url = server.page("/a.tar", path.read_bytes())
    downloading = downloaded(Fetcher(), url)
    seen = tmp_path / "seen"

    killed(lambda: seen.write_bytes(Path(downloading.__enter__()).read_bytes()))

    assert seen.read_bytes() == path.read_bytes()
    assert names(temporary) == []
