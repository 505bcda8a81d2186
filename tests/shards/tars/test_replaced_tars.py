"""Local tars that are replaced by others of equal length and equal time of modification."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from conftest import raises, sample_members, write_tar

from wids import ShardFormatError, ShardListDataset

Replace: TypeAlias = Callable[[Path], None]

TIME = (1_600_000_000, 1_600_000_000)  # as rsync -t and docker's layers set it


def write_old(path: Path) -> None:
    """Write samples s00000 to s00006, and set the time back."""
    write_tar(path, sample_members(0, 7))
    os.utime(path, TIME)


def write_new(path: Path) -> None:
    """Write samples in the opposite order: the same length and members at the same positions."""
    members = sample_members(0, 7)
    pairs = [members[at : at + 2] for at in range(0, 14, 2)]
    write_tar(path, [member for pair in reversed(pairs) for member in pair])
    os.utime(path, TIME)


def replace_in_place(path: Path) -> None:
    write_new(path)


def replace_by_rename(path: Path) -> None:
    write_new(path.with_name("new"))
    path.with_name("new").rename(path)


REPLACEMENTS = [replace_in_place, replace_by_rename]


def keys_and_texts(dataset: ShardListDataset) -> list[tuple[str, str]]:
    return [(sample["__key__"], sample[".txt"]) for sample in dataset]


EXPECTED = [(f"s{number:05d}", f"text {number}") for number in range(6, -1, -1)]


@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_replaced_tar_is_scanned_again(tmp_path: Path, own_cache: Path, replace: Replace) -> None:
    """Equal length and equal time are not enough: keys belong to their own texts (INDEX-1)."""
    path = tmp_path / "a.tar"
    write_old(path)
    with ShardListDataset(path) as dataset:
        assert keys_and_texts(dataset) == EXPECTED[::-1]
    status = path.stat()
    assert list((own_cache / "indexes").iterdir()), "the index was stored"

    replace(path)

    assert path.stat()[6:9:2] == status[6:9:2], "equal length and time of modification"
    with ShardListDataset(path) as dataset:
        assert keys_and_texts(dataset) == EXPECTED


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_replaced_tar_is_scanned_again_when_it_is_opened_again(
    tmp_path: Path, replace: Replace
) -> None:
    """A dataset that had the shard open, or was pickled, reads the new tar by its own index."""
    path = tmp_path / "a.tar"
    write_old(path)
    with ShardListDataset(path) as dataset:
        assert keys_and_texts(dataset) == EXPECTED[::-1]
        pickled = pickle.dumps(dataset)
        replace(path)
        dataset.close()
        assert keys_and_texts(dataset) == EXPECTED
        assert dataset.find_key("s00006") == 0
    with pickle.loads(pickled) as dataset:  # noqa: S301 - its own
        assert keys_and_texts(dataset) == EXPECTED


@pytest.mark.long
@pytest.mark.usefixtures("own_cache")
def test_other_processes_scan_a_replaced_tar_again(tmp_path: Path) -> None:
    """The index that another process stored is not used for the new tar."""
    path = tmp_path / "a.tar"
    write_old(path)
    with ShardListDataset(path) as dataset:
        assert keys_and_texts(dataset) == EXPECTED[::-1]
    replace_in_place(path)
    code = (
        "import sys, wids; dataset = wids.ShardListDataset(sys.argv[1]); "
        "print([(sample['__key__'], sample['.txt']) for sample in dataset])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True
    )
    assert found.stdout.strip() == str(EXPECTED)


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_tar_that_is_overwritten_while_it_is_open(is_stored: bool, tmp_path: Path) -> None:
    """Without a published index too, members of another tar are an error (INDEX-2)."""
    path = write_tar(tmp_path / "a.tar", [("a.cls", b"12"), ("a.txt", b"x"), ("b.cls", b"3")])
    other = write_tar(tmp_path / "b.tar", [("a.cls", b"1"), ("a.txt", b"xx"), ("b.cls", b"45")])
    if is_stored:
        os.utime(path, (1, 1))
        ShardListDataset(path).close()
    with ShardListDataset(path) as dataset:
        assert dataset[1][".cls"] == 3
        with open(path, "r+b") as file:
            file.write(other.read_bytes())
        for read in (lambda: dataset[0], lambda: dataset.__getitems__([0])):
            with raises(ShardFormatError, "a.tar", "the header"):
                read()
