"""Files of other programs beside shards in a bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from beside_files import shards, write_energon
from conftest import optional
from s3 import Bucket

import wids

pytestmark = pytest.mark.long


def shards_read(bucket: Bucket) -> list[tuple[str, str]]:
    """Return the requests for bytes of shards."""
    return [r for r in bucket.requests if r[0] == "GET" and r[1].partition("?")[0].endswith(".tar")]


def test_the_root_of_energon_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    """The root stands for all its shards, and a split by its name, without bytes of shards."""
    optional("yaml")
    tars = shards(tmp_path / "coco" / "parts", (30, 40))
    write_energon(tmp_path / "coco", tars, train=["parts/00001.tar"], val=["parts/00000.tar"])
    bucket.system.put(str(tmp_path / "coco"), f"{bucket.name}/coco", recursive=True)
    root, options = f"{bucket.url}/coco/", bucket.options
    spec = wids.load_spec(root, split="train", storage_options=options)
    assert [shard.num_samples for shard in spec.shards] == [40]
    with wids.ShardListDataset(root, storage_options=options) as dataset:
        assert len(dataset) == 70
        assert shards_read(bucket) == []
        assert dataset[57][".txt"] == "text 57"
    assert {path.partition("?")[0][-9:] for _, path in shards_read(bucket)} == {"00001.tar"}


def test_counts_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    """A folder and a pattern are counted by ``sizes.json``, without bytes of shards."""
    shards(tmp_path / "d", (30, 40))
    (tmp_path / "d" / "sizes.json").write_text(json.dumps({"00000.tar": 30, "00001.tar": 40}))
    bucket.system.put(str(tmp_path / "d"), f"{bucket.name}/d", recursive=True)
    for name in ("d/", "d/*.tar", "d/{00000..00001}.tar"):
        url = f"{bucket.url}/{name}"
        with wids.ShardListDataset(url, storage_options=bucket.options) as dataset:
            assert dataset.lengths == [30, 40]
    assert shards_read(bucket) == []
