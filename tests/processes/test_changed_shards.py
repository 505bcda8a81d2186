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
from pathlib import Path

import pytest
from conftest import sample_members, write_tar

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


@pytest.mark.parametrize("length", [0, 1, 4096, 100_000])
def test_truncated_shard_is_an_error(path: Path, length: int) -> None:
    """A shard that is cut short raises, at the next read, and never kills."""
    with reader(path) as process:
        assert ask(process) == OLD
        # A look at the size is believed for five milliseconds; this is what that costs.
        time.sleep(0.05)
        os.truncate(path, length)
        answer = ask(process)
        assert answer.startswith("ShardFormatError")
        assert f"found {length}; it was changed in place" in answer
        assert ask(process) == answer


def test_replaced_shard_gives_old_bytes_then_new(path: Path) -> None:
    """Who has it open reads the old file to the end; who opens it reads the new one."""
    with reader(path) as process:
        assert ask(process) == OLD
        os.replace(write_tar(path.with_name("b.tar"), sample_members(1000, 1400)), path)
        assert ask(process) == OLD
        assert ask(process, "again") == NEW


def test_deleted_shard_gives_its_old_bytes(path: Path) -> None:
    """A file that was deleted is there for who has it open, and then gone."""
    with reader(path) as process:
        assert ask(process) == OLD
        path.unlink()
        assert ask(process) == OLD
        assert ask(process, "again").startswith("NotFoundError")


def test_overwritten_shard_is_read_anew(path: Path) -> None:
    """A shard that was written again in place, longer, is an error here and the new one next."""
    with reader(path) as process:
        assert ask(process) == OLD
        time.sleep(0.05)
        write_tar(path, [*sample_members(1000, 1400), ("x.txt", bytes(50_000))])
        assert "it was changed in place" in ask(process)
        assert ask(process, "again").startswith("text 1000, ")
