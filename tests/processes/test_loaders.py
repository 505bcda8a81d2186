"""torch DataLoaders over real shards, with real worker processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import write_shards, write_tar
from torch.utils.data import BatchSampler, DataLoader

from wids import ChunkedSampler, DecodeError, ShardListDataset


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write_shards(tmp_path, [30, 11, 40, 19])


@pytest.mark.parametrize("start_method", [None, "fork", "spawn", "forkserver"])
def test_workers_read_every_sample(spec: Path, start_method: str | None) -> None:
    """A used dataset goes into workers of every kind, and default collation takes its samples."""
    with ShardListDataset(spec) as dataset:
        dataset[3]
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=7,
            sampler=ChunkedSampler(dataset, chunksize=20),
            num_workers=2 if start_method else 0,
            multiprocessing_context=start_method,
        )
        seen = []
        for batch in loader:
            assert batch[".txt"] == [f"text {index}" for index in batch["__index__"].tolist()]
            seen += batch["__index__"].tolist()

    assert sorted(seen) == list(range(100))
    assert seen == list(ChunkedSampler(dataset, chunksize=20))


def test_batches_open_shards_once(spec: Path) -> None:
    """The loader fetches whole batches, and with default chunks shards are opened once each."""
    with ShardListDataset(spec, lru_size=1) as dataset:
        batches = BatchSampler(ChunkedSampler(dataset, chunksize=10), 10, drop_last=False)
        for _ in DataLoader(dataset, batch_sampler=batches):  # type: ignore[var-annotated]
            pass

        assert dataset.get_stats()[1] <= 14, "ten chunks, a few batches across two of them"


def test_error_keeps_its_type_on_the_way_home(tmp_path: Path) -> None:
    """A worker's error is the library's, with shard, key, field and index in its text."""
    path = write_tar(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"cat")])
    with ShardListDataset(path) as dataset:
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=2, num_workers=1)

        with pytest.raises(DecodeError, match=r'a\.tar: sample "b" \(index 1\): field "\.cls"'):
            list(loader)
