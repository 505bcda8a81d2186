"""``wids diff``: what differs between two datasets, by their dataset indexes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import run
from conftest import write_tar

import wids


def publish(folder: Path, name: str, keys: dict[str, str]) -> Path:
    tar = write_tar(folder / f"{name}.tar", [(f"{k}.txt", v.encode()) for k, v in keys.items()])
    wids.build_spec([tar], dataset_index=folder / f"{name}.index").save(folder / f"{name}.json")
    tar.unlink()  # nothing reads it
    return folder / f"{name}.json"


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """Two datasets without their shards; one key has a control character, another is no UTF-8."""
    old = publish(tmp_path, "old", {"a": "1", "b": "2", "c": "3", "d\x1b[2J": "4"})
    return old, publish(tmp_path, "new", {"c": "x", "a": "1", "e\udcff": "5"})


def test_each_difference_is_a_line(both: tuple[Path, Path]) -> None:
    """Status 1 if there are any, and nothing on standard output if not."""
    old, new = both
    lines = ["- b", "- d\\x1b[2J", "~ c", "+ e\\udcff"]
    counts = f"{old}, {new}: 2 removed, 1 changed, 1 added, 1 the same\n"
    assert run("diff", old, new) == (1, "\n".join([*lines, ""]), counts)
    assert run("diff", old, old)[:2] == (0, "")


def test_json(both: tuple[Path, Path]) -> None:
    """One object, also where nothing differs; keys are those of the dataset."""
    status, out, _ = run("diff", "--json", *both)
    found = {"removed": ["b", "d\x1b[2J"], "changed": ["c"], "added": ["e\udcff"], "num_same": 1}
    assert (status, json.loads(out)) == (1, found)
    status, out, _ = run("diff", both[0], both[0], "--json")
    assert (status, json.loads(out)["num_same"]) == (0, 4)


def test_what_cannot_be_compared(both: tuple[Path, Path], tmp_path: Path) -> None:
    """A dataset without a dataset index is an error that says what to do, not a difference."""
    tar = write_tar(tmp_path / "bare.tar", [("a.txt", b"1")])
    status, out, err = run("diff", both[0], tar)
    assert (status, out) == (1, "")
    assert f"{tar}: expected a dataset index" in err
    assert "wids create" in err
