"""The table of shards beside a document is compared completely."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import write_shards

import wids
from wids.cli.main import main
from wids.publish.problems import table_problems
from wids.shards.specs.shard_table import State, open_table, write_table
from wids.storage.fetch import Fetcher


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec of three shards with a table beside it."""
    monkeypatch.setattr("wids.shards.specs.saved_document.LARGE_NBYTES", 0)
    write_shards(tmp_path, [8, 5, 7])
    path = tmp_path / "train.json"
    tars = sorted(map(str, tmp_path.glob("*.tar")))
    wids.build_spec(tars, name="train").save(path)
    return path


def test_a_sound_table_is_no_problem(train: Path) -> None:
    """A saved spec and its table fit, and a spec without one has none to be wrong."""
    assert train.with_suffix(".shards").exists()
    assert wids.verify_spec(train) == []
    train.with_suffix(".shards").unlink()
    assert wids.verify_spec(train) == []


def test_every_difference_is_a_problem(train: Path) -> None:
    """A damaged table, and one of another version, are problems."""
    path = train.with_suffix(".shards")
    data = path.read_bytes()
    for at in (0, 20, len(data) - 2):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        (problem,) = wids.verify_spec(train)
        assert (problem.shard, "save the spec again" in problem.text) == (str(path), True)
    path.write_bytes(data)
    train.write_text(train.read_text() + "\n")
    (problem,) = table_problems(Fetcher(), str(train))
    assert "expected the table of the shards of train.json" in problem.text


def test_the_command_compares_the_table(train: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`wids verify` prints that a table is damaged, and exits with status 1."""
    path = train.with_suffix(".shards")
    data = path.read_bytes()
    path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    assert main(["verify", str(train), "-j", "1"]) == 1
    assert capsys.readouterr().out.startswith(f"{path}: ")


def test_other_shards_are_a_problem(train: Path) -> None:
    """A table that states the digest of its document, and other shards, is one."""
    path = train.with_suffix(".shards")
    table = open_table(str(path))
    assert table is not None
    entries = [table.entry(number) | {"nsamples": 1} for number in range(len(table))]
    document, sha256 = table.facts["document"], table.header.document_sha256
    with path.open("wb") as file:
        write_table(file, entries, document, sha256, State(os.path.getsize(train), ""))
    (problem,) = table_problems(Fetcher(), str(train))
    assert "as it is now, found another one" in problem.text
