"""A process holds many datasets of many shards."""

from __future__ import annotations

import json
import os
import tracemalloc
from contextlib import ExitStack
from pathlib import Path

import pytest

import wids

NUM_SHARDS, NUM_DATASETS = 10_000, 4


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The specs of some datasets."""
    tmp_path = tmp_path_factory.mktemp("many")
    entries = [{"url": f"train-{n:06d}.tar", "nsamples": 9} for n in range(NUM_SHARDS)]
    paths = [tmp_path / f"{number}.json" for number in range(NUM_DATASETS)]
    text = json.dumps({"shardlist": entries})
    for path in paths:
        path.write_text(text)
    return paths


def num_descriptors() -> int:
    """Return the number of open files of this process."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_a_dataset_is_small(specs: list[Path]) -> None:
    """Several datasets take less than a megabyte and 10 descriptors each."""
    before = num_descriptors()
    tracemalloc.start()
    try:
        with ExitStack() as stack:
            for path in specs:
                dataset = wids.ShardListDataset(path, cache_dir=path.parent)
                assert len(stack.enter_context(dataset)) == 9 * NUM_SHARDS
            assert num_descriptors() - before <= 10 * NUM_DATASETS
            assert tracemalloc.get_traced_memory()[0] < 1e6 * NUM_DATASETS
    finally:
        tracemalloc.stop()


def test_a_mix_makes_no_shard(specs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A mix of datasets is opened without an object for any shard, also by its weights."""
    made: list[int] = []
    monkeypatch.setattr("wids.shards.specs.shard_columns.ShardSpec", made.append)
    monkeypatch.setattr("wids.shards.specs.entries.ShardSpec", made.append)
    parts = [{"source_url": path.name, "name": path.stem, "weight": 2} for path in specs]
    mix = specs[0].parent / "mix.json"
    mix.write_text(json.dumps({"datasets": parts}))
    for shards in (mix, specs):
        with wids.ShardListDataset(shards, cache_dir=mix.parent) as dataset:
            names = [path.stem for path in specs] if shards == mix else [""]
            assert dataset.weights == dict.fromkeys(names, 2 if shards == mix else 1)
            assert len(dataset) == 9 * NUM_SHARDS * NUM_DATASETS
    assert made == []
