"""``wids bench``: specs with options, programs' own datasets, and its output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import run
from conftest import write_shards
from loopback import Server

QUICK = ("--workers", "0", "--batches", "2", "--batch-size", "2")


@pytest.mark.parametrize("access", ["range", "download", "auto"])
def test_a_remote_dataset(access: str, server: Server, tmp_path: Path) -> None:
    """It is read as training would, and the network takes a part of the time."""
    spec = write_shards(tmp_path, [4, 4])
    for path in (spec, *tmp_path.glob("*.tar")):
        server.page(f"/{path.name}", path.read_bytes())
    if access == "range":
        run("create", str(tmp_path), "-o", str(tmp_path / "train.json"), "-j", "1")
        for path in (spec, *tmp_path.glob("train.*")):
            server.page(f"/{path.name}", path.read_bytes())
    status, out, err = run(
        "bench", f"{server.url}/train.json", *QUICK, "--access", access, "--json"
    )
    assert (status, err) == (0, "")
    (found,) = json.loads(out)["runs"]
    assert found["stages"]["network"]["share"] > 0
    assert found["numbers"]["samples"] == 4
    assert found["numbers"]["requests"] > 0


def test_filters_and_joins(train: Path) -> None:
    """Conditions, fields and joins are those of other commands and of the library."""
    options = ["--where", ".cls >= 8", "--fields", "cls", "--transformations", "numpy"]
    status, out, _ = run("bench", train, *QUICK, *options, "--join", train, "--chunksize", "100")
    assert status == 0
    assert "bottleneck: " in out
    status, _, err = run("bench", train, *QUICK, "--where", ".cls > 90")
    assert (status, "expected a dataset with samples, found none" in err) == (1, True)


def test_a_table(train: Path) -> None:
    """There is a column for each number of workers, and the advice at the end."""
    status, out, err = run("bench", train, "--workers", "0,0", "--seconds", "0.01")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["ms", "a", "sample", *["0", "workers"] * 2]
    assert [line.split("  ")[0] for line in lines[1:12]] == [
        *("network", "opening shards", "disk", "check", "decode", "transform", "collate"),
        *("hand-over", "samples/s", "bytes/s", "bottleneck"),
    ]
    assert lines[-1].startswith("bottleneck: ")


PROGRAM = """
import wids
from torch.utils.data import DataLoader

def dataset():
    return wids.ShardListDataset("train.json")

def loader():
    return DataLoader(dataset(), batch_size=5, collate_fn=wids.collate)

squares = [n * n for n in range(8)]
number = 3
"""


def test_a_dataset_of_a_program(
    train: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A module of the current folder names a dataset, a loader or what makes one."""
    name = f"own_program_{request.node.nodeid.__hash__() % 10**9}"
    (train.parent / f"{name}.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend("")
    for what, num_batches in (("dataset", 2), ("squares", 2), ("loader", 2)):
        options = QUICK if what != "loader" else QUICK[2:4]
        status, out, err = run("bench", f"{name}:{what}", *options, "--json", cwd=train.parent)
        assert (status, err) == (0, "")
        assert json.loads(out)["runs"][0]["numbers"]["batches"] == num_batches
    errors = {
        f"{name}:number": "expected a dataset, a loader, or a callable that returns one, found int",
        f"{name}:nothing": f"spec: expected MODULE:DATASET, found '{name}:nothing': module",
        "no_such_module:a": "No module named 'no_such_module'",
    }
    for text, message in errors.items():
        status, out, err = run("bench", text, cwd=train.parent)
        assert (status, out, message in err) == (1, "", True), err
    status, _, err = run("bench", f"{name}:dataset", "--access", "range", cwd=train.parent)
    assert (status, "--access: expected a spec, found " in err) == (1, True)
    status, _, err = run("bench", f"{name}:loader", "--workers", "1", cwd=train.parent)
    assert (status, "num_workers: expected a dataset, found a DataLoader" in err) == (1, True)
