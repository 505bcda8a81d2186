"""Joins of a million keys, and joined batches, keep to their limits."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import sample_members, write_tar
from join_shards import shuffled

import wids
from wids.shards.indexes.dataset_index_writer import write_dataset_index
from wids.shards.tars.headers import TarMembers
from wids.shards.tars.index import build_index
from wids.tables.join_keys import DatasetKeys, match_keys
from wids.tables.join_sides import KeyedSamples


def fastest(work: Callable[[], Any], rounds: int) -> float:
    """Return the least seconds of processor time of several rounds."""
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def write_indexed(folder: Path, name: str, keys: list[str], length: int) -> Path:
    """Write a dataset index of tars that are only as long as they should be; return their spec."""
    shards, entries = [], []
    for start in range(0, len(keys), length):
        names = [f"{key}.txt".encode() for key in keys[start : start + length]]
        offsets = np.arange(1, len(names) + 1) * 512
        members = TarMembers(names, offsets, np.zeros(len(names), np.int64), offsets - 512)
        index = replace(build_index(members), head_crcs=np.zeros(len(names), np.uint32))
        path = folder / f"{name}-{start:07d}.tar"
        with path.open("wb") as file:
            file.truncate(512 * (len(names) + 2))
        shards.append((path.name, path.stat().st_size, index))
        entries.append({"url": path.name, "nsamples": len(names)})
    with (folder / f"{name}.index").open("w+b") as file:
        write_dataset_index(file, shards)
    spec = folder / f"{name}.json"
    spec.write_text(json.dumps({"shardlist": entries, "index": f"{name}.index"}))
    return spec


@pytest.mark.alone
def test_a_million_keys(tmp_path: Path) -> None:
    """Two seconds, and 40 bytes for each."""
    keys = [f"sample{number:08d}" for number in range(1_000_000)]
    specs = [
        write_indexed(tmp_path, "a", keys, 1000),
        write_indexed(tmp_path, "b", shuffled(keys), 1250),
    ]
    with wids.ShardListDataset(specs[0]) as a, wids.ShardListDataset(specs[1]) as b:
        assert fastest(lambda: a.join(b), 3) < 2
        sides = [DatasetKeys(KeyedSamples(dataset), range(1_000_000), "") for dataset in (a, b)]
        tracemalloc.start()
        found = match_keys(*sides)
        peak_nbytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_nbytes < 40e6
        assert found.start == 0
        chosen = [3, 999_999, 123_456]
        assert [b.keys()[found.one(index)] for index in chosen] == [keys[i] for i in chosen]


@pytest.mark.alone
def test_joined_batches(tmp_path: Path) -> None:
    """At most 2.2 times the batches of one dataset, for pictures with a label."""
    from io import BytesIO

    from PIL import Image

    picture = BytesIO()
    Image.effect_noise((64, 64), 50).convert("RGB").save(picture, "JPEG")
    for name in ("a", "b"):
        members = [
            (f"{key[:-4]}.jpg", picture.getvalue()) if key.endswith(".txt") else (key, data)
            for key, data in sample_members(0, 2000)
        ]
        write_tar(tmp_path / f"{name}.tar", members)
    with (
        wids.ShardListDataset(tmp_path / "a.tar") as a,
        wids.ShardListDataset(tmp_path / "b.tar") as b,
    ):
        joined = a.join(b, prefix="b")
        batches = np.array(list(wids.ChunkedSampler(a)))[: 64 * 30].reshape(30, 64)
        found: dict[str, float] = dict.fromkeys("abj", 0)
        for batch in batches:
            for name, dataset in (("a", a), ("b", b), ("j", joined)):
                found[name] += fastest(lambda: dataset.__getitems__(batch), 5)  # noqa: B023 - now
        assert found["j"] < 2.2 * (found["a"] + found["b"]) / 2


@pytest.mark.alone
def test_rows_of_a_table_in_many_chunks(tmp_path: Path) -> None:
    """A batch takes at most twice the time that it takes with the table in one chunk."""
    pa = pytest.importorskip("pyarrow")
    keys = [f"sample{number:08d}" for number in range(100_000)]
    spec = write_indexed(tmp_path, "a", keys, 1000)
    table = pa.table({"__key__": keys, "score": range(100_000), "caption": keys})
    chunks = pa.concat_tables([table.slice(start, 1000) for start in range(0, 100_000, 1000)])
    rows = np.random.default_rng(0).integers(0, 100_000, (50, 64))
    with wids.ShardListDataset(spec, fields=[]) as dataset:
        seconds = []
        for other in (table, chunks):
            side = dataset.join(other)._access.joint.other  # the tars have no bytes
            seconds.append(fastest(lambda: [side.read(few, None) for few in rows], 5))  # noqa: B023 - now
    assert seconds[1] < 2 * seconds[0]
