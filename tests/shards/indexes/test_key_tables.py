"""The tables of keys of a dataset index are the same, however much of them is in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import raises, write_tar

from wids.publish.problems import Problem, repeated_keys
from wids.shards.indexes import dataset_index, key_tables
from wids.shards.indexes.dataset_index import LocalDatasetIndex, load_dataset_index
from wids.shards.indexes.dataset_index_writer import join_dataset_indexes, write_dataset_index
from wids.shards.indexes.key_tables import Entries, KeyTable, Run, merged
from wids.shards.specs.model import ShardSpec
from wids.shards.tars.index import ShardIndex, index_tar
from wids.storage.arrays import WordArray


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs of 64 entries, merged a few at a time."""
    monkeypatch.setattr(key_tables, "_RUN_LENGTH", 64)
    monkeypatch.setattr(key_tables, "_MERGED_LENGTH", 12)
    monkeypatch.setattr(key_tables, "_MIN_CHUNK", 3)
    monkeypatch.setattr(dataset_index, "_PART_LENGTH", 50)


def hashes_of(kind: str, length: int) -> WordArray:
    random, ascending = np.random.default_rng(0), np.arange(length, dtype=np.uint64)
    return {
        "spread": random.integers(0, 1 << 64, length, np.uint64),
        "few": random.integers(0, 9, length).astype(np.uint64),
        "equal": np.full(length, (1 << 64) - 1, np.uint64),
        "ascending": ascending,
        "descending": ascending[::-1],
    }[kind]


def joined(parts: Iterator[Entries]) -> tuple[list[int], list[int]]:
    found = list(parts)
    hashes = np.concatenate([part.hashes for part in found])
    positions = np.concatenate([part.positions for part in found])
    return hashes.tolist(), positions.tolist()


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 1000])
@pytest.mark.parametrize("kind", ["spread", "few", "equal", "ascending", "descending"])
def test_sorted_runs_are_the_sorted_whole(kind: str, length: int, tmp_path: Path) -> None:
    """Hashes come ascending, and equal ones in the order of their samples."""
    hashes = hashes_of(kind, length)

    with KeyTable(str(tmp_path)) as table:
        for start in range(0, length, 17):
            table.add(hashes[start : start + 17])
        found = joined(table.entries())

    order = np.argsort(hashes, kind="stable")
    assert found == (hashes[order].tolist(), order.tolist())
    assert table.total == length


@pytest.mark.usefixtures("little_memory")
def test_runs_of_any_lengths_are_merged() -> None:
    """Empty runs, and parts that end inside equal hashes, lose nothing; a limit leaves out some."""

    def run(first: int, hashes: list[int], limit: int = 99) -> Run:
        return Run(np.array(hashes, np.uint64), np.arange(len(hashes)), limit, first)

    released: list[int] = []
    runs = [run(0, []), run(0, [1, 5, 5, 5, 9]), run(5, [5] * 9, 3), run(8, [0, 9])]
    found = joined(merged(runs, [lambda: released.append(1)]))

    assert found == ([0, 1, 5, 5, 5, 5, 5, 5, 9, 9], [8, 0, 1, 2, 3, 5, 6, 7, 4, 9])
    assert len(released) > 1


@pytest.mark.usefixtures("little_memory")
def test_runs_that_do_not_ascend_are_an_error() -> None:
    """A dataset index may claim any order, with checksums that are right; joining it ends."""
    hashes = np.arange(40, dtype=np.uint64)[::-1]
    with raises(ValueError, "in ascending order"):
        joined(merged([Run(hashes, np.arange(40), 40, 0)]))


def indexes(folder: Path, repeated: int) -> list[ShardIndex]:
    """Return the indexes of five shards; the last two have some keys of the first."""
    found = []
    for number, length in enumerate([100, 0, 1, 90, 120]):
        keys = [f"{number}/{n:04d}" for n in range(length)]
        if number >= 3:
            keys[:repeated] = [f"0/{n:04d}" for n in range(repeated)]
        path = folder / f"{number}.tar"
        write_tar(path, [(f"{key}.txt", b"text") for key in keys])
        found.append(index_tar(path.read_bytes(), checksums=True))
    return found


def indexed(folder: Path, name: str, shards: list[ShardIndex], first: int = 0) -> LocalDatasetIndex:
    with open(folder / name, "w+b") as file:
        write_dataset_index(
            file, [(f"{n}.tar", 1 << 20, s) for n, s in enumerate(shards, start=first)]
        )
    found = load_dataset_index(str(folder / name))
    assert found is not None
    return found


def texts_of(problems: list[Problem]) -> str:
    """Return the texts of problems."""
    return "\n".join(problem.text for problem in problems)


@pytest.mark.parametrize("repeated", [0, 7])
def test_dataset_index_is_the_same_with_little_memory(
    repeated: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A dataset index, and one that is joined of parts, has the same bytes and problems."""
    shards = indexes(tmp_path, repeated)
    specs = [ShardSpec(f"/{number}.tar", len(shard)) for number, shard in enumerate(shards)]
    problem = texts_of(repeated_keys(indexed(tmp_path, "whole", shards), specs))

    request.getfixturevalue("little_memory")
    small = indexed(tmp_path, "small", shards)
    parts = [indexed(tmp_path, "a", shards), indexed(tmp_path, "b", shards[3:], 3)]
    with open(tmp_path / "joined", "w+b") as file:
        join_dataset_indexes(file, [(parts[0], 3), (parts[1], 2)])

    whole = (tmp_path / "whole").read_bytes()
    assert (tmp_path / "small").read_bytes() == whole
    assert (tmp_path / "joined").read_bytes() == whole
    assert texts_of(repeated_keys(small, specs)) == problem
    expected = f"{repeated} keys occur" if repeated else ""
    assert problem.startswith(expected)
    assert '"0/0000" in 0.tar and 3.tar' in problem or not repeated


@pytest.mark.usefixtures("little_memory")
def test_temporary_file_is_on_the_disk_of_the_dataset_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's folder of temporary files, often in memory, is not used, and nothing is left."""
    shards = indexes(tmp_path, 0)
    before = set(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")

    indexed(tmp_path, "dataset index", shards)

    assert set(tmp_path.iterdir()) - before == {tmp_path / "dataset index"}
