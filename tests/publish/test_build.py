"""Shards → spec and dataset index."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from conftest import raises, sample_members, write_shards, write_tar
from loopback import Server

from wids import (
    NotFoundError,
    ShardFormatError,
    ShardListDataset,
    build_spec,
    load_spec,
)


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    write_shards(tmp_path, [8, 5, 7])
    return sorted(tmp_path.glob("*.tar"))


def test_shards_are_counted_measured_hashed_and_indexed(shards: list[Path], tmp_path: Path) -> None:
    """The spec describes the files as they are; a dataset index built from it is the same."""
    spec = build_spec(shards, name="train", dataset_index=tmp_path / "train.index")

    for shard_spec, path, count in zip(spec.shards, shards, (8, 5, 7), strict=True):
        data = path.read_bytes()
        assert (shard_spec.url, shard_spec.num_samples) == (str(path), count)
        digest = hashlib.sha256(data).hexdigest()
        assert (shard_spec.nbytes, shard_spec.sha256) == (len(data), digest)
    assert (spec.name, spec.index) == ("train", str(tmp_path / "train.index"))
    build_spec(spec, dataset_index=tmp_path / "other.index")
    assert (tmp_path / "other.index").read_bytes() == (tmp_path / "train.index").read_bytes()
    spec.save(tmp_path / "train.json")
    with ShardListDataset(tmp_path / "train.json") as dataset:
        assert dataset[19][".txt"] == "text 19"
        assert dataset.get_by_key("s00011")["__index__"] == 11


def test_documents_keep_their_other_keys(train: Path) -> None:
    """Counts and digests are computed; names and other keys stay."""
    document = json.loads(train.read_text())
    document["info"] = "a description"
    document["shardlist"][1] |= {"nsamples": 99, "md5sum": "0" * 32, "tag": "x"}
    train.write_text(json.dumps(document))

    spec = build_spec(train)

    assert [shard.num_samples for shard in spec.shards] == [8, 5, 7]
    assert (spec.name, spec.extras["info"]) == ("train", "a description")
    assert (spec.shards[1].extras, spec.shards[1].md5sum) == ({"tag": "x"}, None)


@pytest.mark.parametrize("kind", ["threads", "fork", "spawn"])
def test_every_kind_of_executor_works(kind: str, shards: list[Path], tmp_path: Path) -> None:
    """The result is the same, in the order of the shards."""
    executor: Any
    if kind == "threads":
        executor = ThreadPoolExecutor(3)
    else:
        executor = ProcessPoolExecutor(2, mp_context=get_context(kind))
    with executor:
        spec = build_spec(shards, dataset_index=tmp_path / "a.index", executor=executor)

    assert spec.shards == build_spec(shards, dataset_index=tmp_path / "b.index").shards
    assert (tmp_path / "a.index").read_bytes() == (tmp_path / "b.index").read_bytes()


def test_remote_shards_are_described(server: Server, shards: list[Path], tmp_path: Path) -> None:
    """Each is downloaded once."""
    pages = [server.page(f"/{path.name}", path.read_bytes()) + "?token=x" for path in shards]

    spec = build_spec(pages, dataset_index=tmp_path / "a.index")

    local = build_spec(shards, dataset_index=tmp_path / "b.index")
    assert [(s.num_samples, s.sha256) for s in spec.shards] == [
        (s.num_samples, s.sha256) for s in local.shards
    ]
    assert (tmp_path / "a.index").read_bytes() == (tmp_path / "b.index").read_bytes()
    assert len(server.log) == 3


def test_file_names_that_are_not_utf8(tmp_path: Path) -> None:
    """A shard with any bytes in its file name can be described and read."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.tar")
    write_tar(Path(path), sample_members(0, 3))
    build_spec([{"url": path}]).save(tmp_path / "a.json")
    with ShardListDataset(tmp_path / "a.json") as dataset:
        assert dataset[2][".txt"] == "text 2"


def test_errors_name_the_shard(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of local and remote shards name the shard, without secrets."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with raises(NotFoundError, "missing.tar"):
        build_spec([tmp_path / "missing.tar"])
    url = server.page("/bad.tar", b"<html>" * 200) + "?token=secret"
    with pytest.raises(ShardFormatError) as caught:
        build_spec([url])
    assert str(caught.value).startswith(f"{server.url}/bad.tar")
    assert "secret" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_keys_split_at_the_last_dot(tmp_path: Path) -> None:
    """Spec and dataset index state the rule."""
    path = write_tar(tmp_path / "a.tar", [("x.1.txt", b"a"), ("x.2.txt", b"b")])

    spec = build_spec([path], key_split="last", dataset_index=tmp_path / "a.index")
    spec.save(tmp_path / "a.json")

    assert spec.shards[0].num_samples == 2
    with ShardListDataset(tmp_path / "a.json") as dataset:
        assert [sample["__key__"] for sample in dataset] == ["x.1", "x.2"]
    assert load_spec(tmp_path / "a.json").shards[0].key_split == "last"
