"""The benchmarks work, at toy size; how fast they are is for ``table.py`` to say."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import columns
import joins
import keys
import pack_files
import pytest
import remote
import samplers
import writers
from conftest import miss, need
from pictures import LOADERS, batches, write_dataset, write_photographs
from table import ROWS, main


@pytest.mark.long
def test_every_row_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows are compared with the old release (``WIDS_OLD_PYTHON``), another mode, or a limit."""
    old_python = os.environ.get("WIDS_OLD_PYTHON")
    if not old_python:
        miss("set WIDS_OLD_PYTHON to the interpreter of an environment with wids==0.1.11")

    results = main(["--toy", "--rounds", "1", "--old", old_python])

    assert [result.row for result in results] == ROWS
    for result in results:
        assert {"new", *result.row.references, *result.row.peers} == set(result.seconds)
    printed = capsys.readouterr().out
    assert all(result.line() in printed for result in results)


@pytest.mark.long
def test_remote_rows_can_be_measured() -> None:
    """Cold epochs with and without fetching ahead, and of the old release; a sample by range."""
    old_python = os.environ.get("WIDS_OLD_PYTHON")
    if not old_python:
        miss("set WIDS_OLD_PYTHON to the interpreter of an environment with wids==0.1.11")

    ratios = remote.main(["--toy", "--rounds", "1", "--old", old_python])

    assert list(ratios) == ["new, with Prefetcher", "new, without", "old", "by range"]
    assert all(len(values) == 1 for values in ratios.values())
    assert min(ratios["new, with Prefetcher"]) >= 0.9  # the server keeps to its rate


@pytest.mark.long
def test_sampler_rows_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Every sampler has its line; a resumed one need not come by all indices before."""
    old_python = os.environ.get("WIDS_OLD_PYTHON")
    if not old_python:
        miss("set WIDS_OLD_PYTHON to the interpreter of an environment with wids==0.1.11")

    rows = samplers.main(["--toy", "--rounds", "1", "--old", old_python])

    assert tuple(rows) == samplers.CELLS
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + len(rows)
    assert rows["new"][0].resume_s < rows["old"][0].resume_s
    assert rows["new"][0].peak_nbytes < rows["torch"][0].peak_nbytes + 5e6


@pytest.mark.long
def test_writer_rows_can_be_measured() -> None:
    """Shards are written no slower than by webdataset, with few samples too."""
    need(importlib.util.find_spec("webdataset"), "pip install webdataset")

    ratios = writers.main(["--toy", "--rounds", "1"])

    assert list(ratios) == list(writers.ROWS)


@pytest.mark.long
def test_key_rows_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Each way to look up a key has its line."""
    assert list(keys.main(["--toy", "--rounds", "1"])) == list(keys.ROWS)
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(keys.ROWS)


@pytest.mark.long
def test_column_rows_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables are read faster than pandas reads extracted files, and payload takes no memory."""
    rows = columns.main(["--toy", "--rounds", "1"])

    assert [len(row.seconds) for row in rows] == [1, 1, 1]
    printed = capsys.readouterr().out
    assert all(row.line() in printed for row in rows)
    assert rows[2].nbytes[0] < 20e6


@pytest.mark.long
def test_packing_can_be_measured() -> None:
    """A folder is packed by three programs in turn."""
    need(importlib.util.find_spec("webdataset"), "pip install webdataset")
    need(shutil.which("tar"), "GNU tar")

    assert list(pack_files.main(["--toy", "--rounds", "1"])) == ["tar", "webdataset"]


@pytest.mark.long
def test_join_rows_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Joins and joined batches stand beside pandas over the same files."""
    need(importlib.util.find_spec("pandas"), "pip install pandas")

    measured = joins.main(["--toy", "--rounds", "1"])

    assert tuple(measured) == (*joins.JOIN_ROWS, *joins.READ_ROWS)
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(measured)


@pytest.mark.long
def test_all_loaders_of_pictures_read_the_same(tmp_path: Path) -> None:
    """The row of pictures compares equal work: the same pixels and classes, in any order."""
    need(importlib.util.find_spec("webdataset"), "pip install webdataset")
    spec = write_dataset(tmp_path, write_photographs(tmp_path, 40, 60, 90, 3), 4, 30)

    def read(library: str) -> list[tuple[int, ...]]:
        pairs = [
            (int(picture.sum()), int(label), *picture.shape)
            for pictures, labels in batches(LOADERS[library](spec, 2))
            for picture, label in zip(pictures, labels, strict=True)
        ]
        return sorted(pairs)

    assert read("new") == read("webdataset") == read("files")
    assert len(read("new")) == 120
