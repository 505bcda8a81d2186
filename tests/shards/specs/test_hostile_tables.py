"""Tables of shards that lie, and documents that have none: what is read instead?"""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from loopback import Server

import wids
from wids.shards.specs.shard_table import State, write_table

NUM_SHARDS = 20_000


def document(prefix: str, num_shards: int = NUM_SHARDS) -> bytes:
    """Return a document of more than a megabyte."""
    digest = "0" * 64
    entries = [
        {"url": f"{prefix}-{n:06d}.tar", "nsamples": 10, "sha256": digest}
        for n in range(num_shards)
    ]
    return json.dumps({"shardlist": entries}).encode()


def test_a_table_counts_for_the_document_beside_it_alone(server: Server, tmp_path: Path) -> None:
    """A server that claims the digest of another document replaces no shards (SHARDS-3)."""
    good, evil = document("good"), document("evil", NUM_SHARDS + 1)
    url = server.page("/good/a.json", good)
    assert wids.load_spec(url).shards[7].url.endswith("/good/good-000007.tar")
    table = io.BytesIO()
    page = server.page("/evil/b.json", evil)
    stated = {"url": "stolen.tar", "nsamples": 10}
    tag = server.pages["/evil/b.json"].tag
    state = State(len(evil), tag)
    write_table(table, [stated] * NUM_SHARDS, {}, hashlib.sha256(good).digest(), state)
    server.page("/evil/b.shards", table.getvalue())
    wids.load_spec(page)
    assert wids.load_spec(url).shards[7].url.endswith("/good/good-000007.tar")
    (tmp_path / "copy.json").write_bytes(good)
    assert wids.load_spec(tmp_path / "copy.json").shards[7].url == str(tmp_path / "good-000007.tar")


@pytest.mark.parametrize(
    "form",
    [
        lambda names: {"files": [{"url": name, "nsamples": 10} for name in names]},
        lambda names: dict.fromkeys(names, 10),
        lambda names: {"shard_counts": dict.fromkeys(names, 10)},
        lambda names: {name: {"num_samples": 10} for name in names},
    ],
)
def test_large_documents_of_other_forms(form: Any, tmp_path: Path) -> None:
    """A long document without a shardlist is read as a short one of its form is (SPEC-1)."""
    names = [f"train-with-a-long-name-{n:06d}.tar" for n in range(8_000)]
    path = tmp_path / "large.json"
    path.write_text(json.dumps(form(names)))
    os.utime(path, (1e9, 1e9))
    for _ in range(2):
        assert len(wids.load_spec(path).shards) == 8_000


def test_a_document_is_saved_if_its_table_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The table only saves work: what is wrong with it is a warning (SHARDS-3)."""

    def fail(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr("wids.shards.specs.shard_table.publish_table", fail)
    spec = wids.load_spec(json.loads(document("a")), base=tmp_path)
    spec.save(tmp_path / "a.json")
    assert len(wids.load_spec(tmp_path / "a.json").shards) == NUM_SHARDS
    assert "its table of shards is not published: no space" in caplog.text


def test_a_table_that_is_replaced_changes_no_open_dataset(tmp_path: Path) -> None:
    """What lies beside a local document may be written over while a dataset is open (SHARDS-3)."""
    for name in ("one", "two"):
        wids.load_spec(json.loads(document(name)), base=tmp_path).save(tmp_path / f"{name}.json")
        os.utime(tmp_path / f"{name}.json", (1e9, 1e9))
    with wids.ShardListDataset(tmp_path / "one.json") as dataset:
        for ending in ("json", "shards"):
            data = (tmp_path / f"two.{ending}").read_bytes()
            (tmp_path / f"one.{ending}").write_bytes(data)  # in place
        assert dataset.spec.shards[9].url == str(tmp_path / "one-000009.tar")
        assert dataset.locate(25) == (2, 5)
