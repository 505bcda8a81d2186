"""``kill -9`` of a run, wherever it waits for the disk: the next one cleans up after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from conftest import in_child, write_shards

import wids


def rewrite(folder: Path, output: Path) -> None:
    """Rewrite a dataset into two shards."""
    with wids.ShardListDataset(folder / "train.json") as dataset:
        wids.rewrite(dataset, output / "out-%d.tar", maxcount=4)


def pack(folder: Path, output: Path) -> None:
    """Pack a folder into two shards."""
    wids.pack_folder(folder / "files", output / "out", maxcount=4)


def write(folder: Path, output: Path) -> None:
    """Write two shards."""
    with (
        wids.ShardListDataset(folder / "train.json") as dataset,
        wids.ShardWriter(output / "out-%d.tar", maxcount=4, if_exists="resume") as writer,
    ):
        for sample in dataset[writer.num_samples :]:
            writer.write({"__key__": sample["__key__"], "txt": sample[".txt"]})


def kill_at(number: int, work: Callable[[], object]) -> bool:
    """Kill a process where it waits for the disk for this time; return whether it did."""
    calls = count()
    flush = os.fsync

    def killing(handle: int) -> None:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        flush(handle)

    def killed() -> bool:
        os.fsync = killing
        work()
        return True

    return not in_child(killed)


@pytest.mark.parametrize(
    "work", [*(pytest.param(work, marks=pytest.mark.long) for work in (rewrite, pack)), write]
)
def test_the_next_run_leaves_nothing(work: Callable[[Path, Path], None], tmp_path: Path) -> None:
    """Unfinished shards, dataset indexes, specs and locks are gone, however fresh they are."""
    write_shards(tmp_path, [5, 3])
    (tmp_path / "files").mkdir()
    for number in range(8):
        (tmp_path / "files" / f"{number}.txt").write_text(f"text {number}")
    expected, output = tmp_path / "expected", tmp_path / "killed"
    expected.mkdir()
    work(tmp_path, expected)
    num_kills = 0
    while True:
        output.mkdir()
        if not kill_at(num_kills, lambda: work(tmp_path, output)):
            break
        assert any(path.suffix in {".tmp", ".lock"} for path in output.iterdir()), num_kills

        work(tmp_path, output)

        found = {path.name: path.read_bytes() for path in output.iterdir()}
        assert found == {path.name: path.read_bytes() for path in expected.iterdir()}
        for path in output.iterdir():
            path.unlink()
        output.rmdir()
        num_kills += 1
    num_files = 4 if work is write else 5
    assert num_kills == 2 * num_files, "two shards, dataset index, spec, plan, each with its folder"
