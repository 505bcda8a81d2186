"""Reading as training would, with several numbers of workers: what is measured, and of what."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from loopback import Server
from served_shards import identity, serve_shards
from slow_cases import CASES, Make, attempts, slow_decoder, small_cache
from torch.utils.data import DataLoader, IterableDataset

import wids
from wids.dataset.benchmark import Benchmark, benchmark

STAGES = ["network", "opening shards", "disk", "check", "decode", "transform", "collate",
          "hand-over"]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*chunk")
@pytest.mark.parametrize(
    "make",
    [
        make if make in (slow_decoder, small_cache) else pytest.param(make, marks=pytest.mark.long)
        for make in CASES
    ],
    ids=lambda make: make.__name__,
)
def test_each_case_is_recognised(
    make: Make, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset that is slow on purpose has the bottleneck that docs/slow.md describes."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(os.cpu_count()))  # a processor for each rank
    for case in attempts(make, tmp_path, server):
        batch_size = case.loader.get("batch_size", 1)
        with case.dataset() as dataset:
            found = benchmark(
                dataset,
                [case.loader.get("num_workers", 0)],
                batch_size=batch_size,
                chunksize=case.chunksize or len(dataset),
                collate_fn=case.loader.get("collate_fn"),
                num_batches=len(dataset) // batch_size,
                seconds=60,
            )
        times = found.verdict
        assert f"bottleneck: {times.bottleneck}: {times.advice}" in str(found)
        if times.bottleneck == case.bottleneck:
            break
    assert times.bottleneck == case.bottleneck, str(found)


def test_runs_continue_the_order(train: Path) -> None:
    """A run reads what the previous one has not, and says so when there is no more such."""
    read: list[int] = []

    def noted(samples: list[Any]) -> Any:
        read.extend(sample["__index__"] for sample in samples)
        return wids.collate(samples)

    with wids.ShardListDataset(train) as dataset:
        found = benchmark(dataset, [0, 0, 0], batch_size=4, collate_fn=noted, num_batches=2)
    assert len(read) == 24
    assert sorted(read[:20]) == list(range(20))
    assert [run.is_cached for run in found.runs] == [False, False, True]
    assert [run.times.num_batches for run in found.runs] == [2, 2, 2]


def test_what_it_says(train: Path) -> None:
    """Every stage has its time and share; rates are of samples, and of bytes of their shards."""
    with wids.ShardListDataset(train) as dataset:
        found = benchmark(dataset, [0, 1], batch_size=5, seconds=60, num_batches=4)
    told = json.loads(json.dumps(found.as_dict()))
    assert set(told) == {"runs", "num_processors", "fastest", "bottleneck", "advice"}
    nbytes = sum(path.stat().st_size for path in train.parent.glob("*.tar")) / 20
    for run, number, num_batches in zip(told["runs"], [0, 1], [4, 3], strict=True):
        assert list(run["stages"]) == STAGES
        assert run["workers"] == number
        assert run["numbers"]["batches"] == num_batches
        assert run["samples_per_s"] == pytest.approx(5 * num_batches / run["numbers"]["loop_s"])
        assert run["nbytes_per_s"] == pytest.approx(run["samples_per_s"] * nbytes)
        assert sum(stage["share"] for stage in run["stages"].values()) == pytest.approx(1)
        assert run["is_collated"]
    text = str(found)
    assert all(word in text for word in [*STAGES, "samples/s", "bytes/s", "0 workers", "1 worker"])


def test_slower_with_more_workers(train: Path) -> None:
    """More workers are no advice if they were slower."""
    with wids.ShardListDataset(train) as dataset:
        (run,) = benchmark(dataset, [0], batch_size=4, num_batches=3).runs
    quick = _changed(run, num_workers=0, num_batches=100, decode_s=1e6)
    slow = _changed(run, num_workers=1, num_batches=1, decode_s=1e6)
    assert Benchmark((quick,)).verdict.bottleneck == "workers"
    assert Benchmark((quick, slow)).verdict.bottleneck == "decode"
    assert Benchmark((quick, slow)).fastest is quick


def test_what_caches_had_is_not_compared(server: Server, tmp_path: Path) -> None:
    """Where shards come from a server, a later run that finds them in the cache has no say."""
    options: dict[str, Any] = {"access": "download", "cache_dir": str(tmp_path / "cache")}
    with wids.ShardListDataset(serve_shards(tmp_path, server)[:1], **options) as dataset:
        found = benchmark(dataset, [0, 0], batch_size=4, num_batches=2)
    assert [run.is_cached for run in found.runs] == [False, True]
    assert found.fastest is found.runs[0]
    assert "caches had what was read before: 0 workers\n" in str(found)


def _changed(run: Any, decode_s: float, **others: Any) -> Any:
    from dataclasses import replace

    seconds = {**run.times.seconds, "decode": decode_s}
    times = replace(run.times, seconds=seconds, loop_s=1, wait_s=1, num_processors=8, **others)
    return replace(run, times=times)


class Numbers(IterableDataset[int]):
    """Seven numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


class Squares:
    """A dataset that torch does not know."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index * index


@pytest.mark.parametrize(
    ("subject", "num_samples"),
    [(Squares(), 8), (Squares, 8), (Numbers(), 7), (partial(Squares), 8)],
)
def test_datasets_of_others(subject: Any, num_samples: int) -> None:
    """A dataset of the program, iterable or not, or what makes one, is read in batches."""
    found = benchmark(subject, [0], batch_size=2, num_batches=4)
    (run,) = found.runs
    assert run.times.num_batches == -(-num_samples // 2)
    assert run.samples_per_s is not None
    assert run.nbytes_per_s is None
    assert "unknown" in str(found)


def test_a_loader_is_read_as_it_is(train: Path) -> None:
    """A loader has its own settings, so others are refused."""
    with wids.ShardListDataset(train) as dataset:
        loader = DataLoader(dataset, batch_size=4, collate_fn=identity)
        (run,) = benchmark(loader).runs
        assert run.times.num_batches == 5
        assert run.times.counts["samples"] == 20
        assert run.nbytes_per_s is not None
        with pytest.raises(ValueError, match="batch_size: expected a dataset, found a DataLoader"):
            benchmark(loader, batch_size=4)


class OwnLoader:
    """A loader of a program, which counts its batches."""

    num_workers = 1
    num_batches = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.num_batches += 1
            yield self.num_batches


def test_the_start_of_workers_is_not_counted() -> None:
    """The time of a run begins with the first batch of workers, which may take seconds to start."""
    loader = OwnLoader()
    (run,) = benchmark(loader, seconds=0).runs
    assert (loader.num_batches, run.times.num_batches) == (2, 1)


@pytest.mark.parametrize("subject", [3, "text", None, lambda: 3, int])
def test_what_is_no_dataset(subject: Any) -> None:
    """Anything else is an error that says what was expected."""
    with pytest.raises(TypeError, match="expected a dataset, a loader, or a callable"):
        benchmark(subject)


def test_no_samples(train: Path) -> None:
    """So is a dataset without samples."""
    with (
        wids.ShardListDataset(train) as dataset,
        pytest.raises(ValueError, match="expected a dataset with samples, found none"),
    ):
        benchmark(dataset[:0])


def test_samples_that_cannot_be_collated(train: Path) -> None:
    """Batches are lists then, and the table says so."""
    with wids.ShardListDataset(train, transformations=[]) as dataset:
        found = benchmark(dataset, [0], batch_size=4, num_batches=2)
    assert [run.is_collated for run in found.runs] == [False]
    assert "batches were lists" in str(found)
