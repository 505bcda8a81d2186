"""A shard that someone changes while it is open: an error, the new file, or the old bytes.

Each test runs a reader in a process of its own, which a wrong answer would end with a signal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import sample_members, write_tar

from wids import build_spec, load_spec

READER = """
import sys, wids

dataset = wids.ShardListDataset([(sys.argv[1], 400)], transformations=None, raw="bytes")
for line in sys.stdin:
    try:
        if line.startswith("again"):
            dataset = wids.ShardListDataset([sys.argv[1]], transformations=None, raw="bytes")
        samples = [dataset[0], dataset[-1], *dataset.__getitems__([5, 399])]
        print(*(sample[".txt"].decode() for sample in samples), sep=", ", flush=True)
    except Exception as error:
        print(type(error).__name__, str(error), flush=True)
"""


@contextmanager
def reader(path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", READER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        process.stdin.close()  # type: ignore[union-attr]
        assert process.wait(30) == 0, "the reader was ended by a signal"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def ask(process: subprocess.Popen[str], line: str = "read") -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


OLD = "text 0, text 399, text 5, text 399"
NEW = "text 1000, text 1399, text 1005, text 1399"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tar(tmp_path / "a.tar", sample_members(0, 400))


@pytest.mark.parametrize(
    "length", [4096, *(pytest.param(length, marks=pytest.mark.long) for length in (0, 1, 100_000))]
)
def test_truncated_shard_is_an_error(path: Path, length: int) -> None:
    """A read of a shard that was truncated raises, and never ends the process by a signal."""
    with reader(path) as process:
        assert ask(process) == OLD
        # The size of a shard is trusted for five milliseconds after each check.
        time.sleep(0.05)
        os.truncate(path, length)
        answer = ask(process)
        assert answer.startswith("ShardFormatError")
        assert f"found {length}; it was changed in place" in answer
        assert ask(process) == answer


def test_replaced_shard_gives_old_bytes_then_new(path: Path) -> None:
    """An open shard stays the old file; opening it again reads the new one."""
    with reader(path) as process:
        assert ask(process) == OLD
        os.replace(write_tar(path.with_name("b.tar"), sample_members(1000, 1400)), path)
        assert ask(process) == OLD
        assert ask(process, "again") == NEW


def test_deleted_shard_gives_its_old_bytes(path: Path) -> None:
    """An open shard outlives the deletion of its file; opening it again fails."""
    with reader(path) as process:
        assert ask(process) == OLD
        path.unlink()
        assert ask(process) == OLD
        assert ask(process, "again").startswith("NotFoundError")


def test_overwritten_shard_is_an_error_until_it_is_opened_again(path: Path) -> None:
    """A shard that was written in place, longer, is an error; opened again it is the new one."""
    with reader(path) as process:
        assert ask(process) == OLD
        time.sleep(0.05)
        write_tar(path, [*sample_members(1000, 1400), ("x.txt", bytes(50_000))])
        assert "it was changed in place" in ask(process)
        assert ask(process, "again").startswith("text 1000, ")


AT_ONCE = """
import os, sys, wids
from wids import ShardFormatError
dataset = wids.ShardListDataset(sys.argv[1], transformations=None)
dataset[0]
os.truncate(sys.argv[2], 4096)
for take in (lambda: dataset.__getitems__([300, 399]), lambda: dataset[399]):
    try:
        take()
    except ShardFormatError as error:
        print("it was changed in place" in str(error))
"""


@pytest.mark.parametrize("changed", ["a.tar", pytest.param("a.index", marks=pytest.mark.long)])
def test_noticed_truncation_stays_noticed(path: Path, changed: str) -> None:
    """Once a batch has found a shard or an index truncated, single reads fail too."""
    write_tar(path, sample_members(0, 3000))
    spec = load_spec([(str(path), 3000)])
    build_spec(spec, dataset_index=path.with_name("a.index"))
    assert path.with_name("a.index").stat().st_size > 64 << 10  # smaller ones are not mapped
    replace(spec, index=str(path.with_name("a.index"))).save(path.with_name("a.json"))

    result = subprocess.run(
        [sys.executable, "-c", AT_ONCE, path.with_name("a.json"), path.with_name(changed)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (result.returncode, result.stdout) == (0, "True\nTrue\n"), result.stderr


PACK = """
import os, sys, wids
dataset = wids.ShardListDataset(sys.argv[1], transformations=None, raw="bytes", lru_size=1)
dataset.get_by_key("s00700")  # the tables of keys are believed from here on
first = dataset[0]
os.truncate(sys.argv[2], 4096)
print(dataset[450][".txt"].decode(), dataset[1][".txt"].decode())
print(dataset.get_by_key("s00399")["__index__"])
"""


@pytest.mark.long
def test_truncated_dataset_index_is_ignored(path: Path) -> None:
    """A dataset index that loses its end is ignored for shards that are opened later (INDEX-8)."""
    other = write_tar(path.with_name("b.tar"), sample_members(400, 3400))
    spec = load_spec([(str(path), 400), (str(other), 3000)])
    build_spec(spec, dataset_index=path.with_name("a.index"))
    assert path.with_name("a.index").stat().st_size > 64 << 10  # smaller ones are not mapped
    replace(spec, index=str(path.with_name("a.index"))).save(path.with_name("a.json"))

    result = subprocess.run(
        [sys.executable, "-c", PACK, path.with_name("a.json"), path.with_name("a.index")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (result.returncode, result.stdout) == (0, "text 450 text 1\n399\n"), result.stderr
