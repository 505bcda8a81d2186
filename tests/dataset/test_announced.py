"""A sampler announces its pass: shards are then fetched, once, however samples are read."""

from __future__ import annotations

import multiprocessing
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import write_tar
from events import LONG_S, wait_for
from loopback import Server
from served_shards import identity
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset

import wids
from wids.shards import range_budget

LENGTH, NUM_SHARDS, NBYTES = 40, 4, 2000


@pytest.fixture
def spec(tmp_path: Path, server: Server) -> str:
    """Four shards of 40 samples with a dataset index."""
    paths = []
    for number in range(NUM_SHARDS):
        start = number * LENGTH
        members = [
            (f"{n:05d}.bin", random.Random(n).randbytes(NBYTES))
            for n in range(start, start + LENGTH)
        ]
        paths.append(str(write_tar(tmp_path / f"{number}.tar", members)))
    wids.build_spec(paths, dataset_index=tmp_path / "s.index", digests=True).save(
        tmp_path / "s.json"
    )
    for path in [*paths, "s.index", "s.json"]:
        server.page(f"/{Path(path).name}", (tmp_path / path).read_bytes())
    return server.url + "/s.json"


def tars(server: Server) -> list[Any]:
    return [request for request in server.log if request.path.endswith(".tar")]


SAMPLERS = {
    "chunked": lambda dataset: wids.ChunkedSampler(dataset, chunksize=64),
    "distributed": lambda dataset: wids.DistributedChunkedSampler(
        dataset, num_replicas=1, rank=0, chunksize=64
    ),
    "mixed": lambda dataset: wids.MixedSampler(dataset, weights={"": 1}),
}


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize(
    ("workers", "context"),
    [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.long)],
)
def test_an_epoch_fetches_each_shard_once(
    spec: str, server: Server, kind: str, workers: int, context: str | None
) -> None:
    """Without a prefetcher, with any number of workers, and an index to read by."""
    with wids.ShardListDataset(spec) as dataset:
        loader = DataLoader(
            dataset,
            batch_size=8,
            sampler=SAMPLERS[kind](dataset),
            num_workers=workers,
            collate_fn=identity,
            multiprocessing_context=context,
        )
        seen = Counter(sample["__index__"] for batch in loader for sample in batch)
    assert set(seen) == set(range(LENGTH * NUM_SHARDS))
    assert Counter(r.path for r in tars(server)) == {f"/{n}.tar": 1 for n in range(NUM_SHARDS)}
    assert all(request.range is None for request in tars(server))


def test_batches_of_buckets_fetch_each_shard_once(spec: str, server: Server) -> None:
    """A sampler around another one announces what that one reads."""
    with wids.ShardListDataset(spec) as dataset:
        batches = wids.BucketBatchSampler(
            wids.ChunkedSampler(dataset, chunksize=64), [1] * len(dataset), batch_size=8
        )
        for batch in DataLoader(dataset, batch_sampler=batches, collate_fn=identity):
            assert len(batch) == 8
    assert Counter(r.path for r in tars(server)) == {f"/{n}.tar": 1 for n in range(NUM_SHARDS)}


def test_single_samples_of_an_announced_pass_fetch_too(spec: str, server: Server) -> None:
    """A loop that reads one sample at a time requests no ranges."""
    with wids.ShardListDataset(spec) as dataset:
        for index in wids.ChunkedSampler(dataset, chunksize=64):
            assert dataset[index]["__index__"] == index
    assert Counter(r.path for r in tars(server)) == {f"/{n}.tar": 1 for n in range(NUM_SHARDS)}


def test_nothing_is_announced_before_a_pass(spec: str, server: Server) -> None:
    """A sampler that is made, and never read, leaves random batches as they are."""
    with wids.ShardListDataset(spec) as dataset:
        wids.Prefetcher(wids.ChunkedSampler(dataset), dataset)
        dataset.__getitems__([0, 50, 100])
        assert all(request.range for request in tars(server))
        assert sum(r.num_sent for r in tars(server)) <= 2 * 3 * (NBYTES + 512)


def test_closing_ends_what_was_announced(spec: str, server: Server) -> None:
    """A dataset that is read again after `close` fetches no shard for a random batch."""
    with wids.ShardListDataset(spec) as dataset:
        for index in wids.ChunkedSampler(dataset, chunksize=64):
            dataset[index]
            break
    before = len(tars(server))
    number = next(n for n in range(NUM_SHARDS) if not dataset.reader.is_local(n))
    dataset.__getitems__([number * LENGTH, number * LENGTH + 20])
    dataset.close()
    assert len(tars(server)) > before
    assert all(request.range for request in tars(server)[before:])


def test_a_pass_over_a_small_view_announces_what_it_reads(spec: str) -> None:
    """Shards of which a view has less than a quarter are read by range."""
    with wids.ShardListDataset(spec) as dataset:
        view = dataset[[*range(30), 50, 100]]
        loader = DataLoader(
            view, batch_size=4, sampler=wids.ChunkedSampler(view), collate_fn=identity
        )
        assert sum(map(len, loader)) == 32
        local = [dataset.reader.is_local(number) for number in range(NUM_SHARDS)]
    assert local == [True, False, False, False]


def test_a_pass_over_a_subset_announces_its_dataset(spec: str, server: Server) -> None:
    """Inside torch's wrappers too."""
    with wids.ShardListDataset(spec) as dataset:
        subset: Subset[Any] = Subset(dataset, range(100))
        for _ in DataLoader(
            subset, batch_size=8, sampler=wids.ChunkedSampler(subset), collate_fn=identity
        ):
            pass
    assert all(request.range is None for request in tars(server))


def test_a_joined_pass_announces_both_sides(spec: str, server: Server, tmp_path: Path) -> None:
    """Each shard of both sides is fetched once."""
    names = [f"{n:05d}" for n in range(LENGTH * NUM_SHARDS)]
    path = write_tar(tmp_path / "o.tar", [(f"{name}.txt", b"x") for name in names])
    wids.build_spec([str(path)], dataset_index=tmp_path / "o.index").save(tmp_path / "o.json")
    for name in ("o.tar", "o.index", "o.json"):
        server.page(f"/{name}", (tmp_path / name).read_bytes())
    with (
        wids.ShardListDataset(spec) as left,
        wids.ShardListDataset(server.url + "/o.json") as right,
    ):
        joined = left.join(right)
        server.log.clear()
        for indices in BatchSampler(wids.ChunkedSampler(joined, chunksize=64), 8, drop_last=False):
            assert {sample[".txt"] for sample in joined.__getitems__(indices)} == {"x"}
    expected = {f"/{n}.tar": 1 for n in range(NUM_SHARDS)} | {"/o.tar": 1}
    assert Counter(r.path for r in tars(server)) == expected


@pytest.mark.usefixtures("forked")  # which start in milliseconds
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_read_ranges_while_shards_are_fetched_ahead(
    spec: str, server: Server, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch waits for no shard; an epoch transfers a tenth more at most."""
    monkeypatch.setattr(range_budget, "_SMALL_NBYTES", 0)  # these shards count as large ones
    dataset_nbytes = sum(len(p.body) for path, p in server.pages.items() if path.endswith(".tar"))
    is_sent, answer = threading.Event(), server._answer

    def answer_late(handler: Any, request: Any) -> None:
        """Answer a request for a whole shard when the first batch is there, or much later."""
        if request.path.endswith(".tar") and request.range is None:
            is_sent.wait(LONG_S)
        answer(handler, request)

    monkeypatch.setattr(server, "_answer", answer_late)
    with wids.ShardListDataset(spec) as dataset:
        loader = DataLoader(
            dataset,
            batch_size=4,
            sampler=wids.Prefetcher(wids.ChunkedSampler(dataset, chunksize=160), dataset),
            num_workers=workers,
            prefetch_factor=1 if workers else None,  # more could take the bytes of the first one
            collate_fn=identity,
        )
        batches = iter(loader)
        seen = [sample["__index__"] for sample in next(batches)]
        assert any(request.range for request in tars(server))
        assert not any(map(dataset.reader.is_local, range(NUM_SHARDS)))
        is_sent.set()
        seen += [sample["__index__"] for batch in batches for sample in batch]
    assert sorted(seen) == list(range(LENGTH * NUM_SHARDS))
    whole = Counter(r.path for r in tars(server) if r.range is None)
    assert whole == {f"/{n}.tar": 1 for n in range(NUM_SHARDS)}
    assert sum(r.num_sent for r in tars(server)) <= 1.1 * dataset_nbytes


def test_any_sampler_is_announced_by_a_prefetcher(spec: str, server: Server) -> None:
    """Around a sampler that announces nothing, the shards that are fetched ahead are not read."""
    with wids.ShardListDataset(spec) as dataset:
        sampler = wids.Prefetcher(RandomSampler(dataset), dataset)
        batches = iter(DataLoader(dataset, batch_size=8, sampler=sampler, collate_fn=identity))
        num_samples = len(next(batches))
        wait_for(lambda: sum(r.range is None for r in tars(server)) == NUM_SHARDS)
        assert num_samples + sum(map(len, batches)) == LENGTH * NUM_SHARDS
    whole = Counter(r.path for r in tars(server) if r.range is None)
    assert whole == {f"/{n}.tar": 1 for n in range(NUM_SHARDS)}
    assert sum(r.num_sent for r in tars(server) if r.range) <= 2 * 8 * (NBYTES + 512)


def read_share(spec: str, rank: int, counts: Any) -> None:
    """Read the share of one rank, with workers, and report how many samples it has."""
    with wids.ShardListDataset(spec) as dataset:
        sampler = wids.DistributedChunkedSampler(dataset, num_replicas=2, rank=rank, chunksize=16)
        loader = DataLoader(
            dataset,
            batch_size=4,
            sampler=wids.Prefetcher(sampler, dataset),
            num_workers=2,
            collate_fn=identity,
        )
        counts.put(sum(map(len, loader)))


@pytest.mark.long
def test_ranks_with_one_cache_transfer_a_tenth_more_at_most(spec: str, server: Server) -> None:
    """Ranks that share nothing but the cache fetch each shard once between them."""
    dataset_nbytes = sum(len(p.body) for path, p in server.pages.items() if path.endswith(".tar"))
    context = multiprocessing.get_context("fork")
    counts = context.Queue()
    ranks = [context.Process(target=read_share, args=(spec, rank, counts)) for rank in range(2)]
    for process in ranks:
        process.start()
    assert sum(counts.get(timeout=60) for _ in ranks) == LENGTH * NUM_SHARDS
    for process in ranks:
        process.join()
    counts.close()
    counts.join_thread()
    whole = Counter(r.path for r in tars(server) if r.range is None)
    assert whole == {f"/{n}.tar": 1 for n in range(NUM_SHARDS)}
    assert sum(request.num_sent for request in tars(server)) <= 1.1 * dataset_nbytes
