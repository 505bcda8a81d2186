"""The public types, as a user's type checker sees them. Checked by mypy, never run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import ConcatDataset, DataLoader, DistributedSampler, Sampler

import wids


def dataset() -> None:
    """A dataset goes into a DataLoader, a slice of it is one, an item is anything."""
    data = wids.ShardListDataset(Path("a.json"), transformations=[len], raw="view")
    view: wids.ShardListDataset = data[1:5]
    chosen: wids.ShardListDataset = data[[1, 2]]
    sample: Any = data[0]
    batch: list[Any] = data.__getitems__([1, 2])
    lengths: list[int] = data.lengths
    keys: Sequence[str] = data.keys()[1:]
    joined: wids.ShardListDataset = data.join(view, missing="skip", prefix="b").join({"a": 1})
    joined = joined.join(Path("a.parquet"), on="id", columns=["b"])
    with data as entered:
        same: wids.ShardListDataset = entered
    table: Any = data.table({"label": ".cls"}, errors="null", executor=ThreadPoolExecutor())
    spec: wids.DatasetSpec = wids.save_table(table, data, Path("a.parquet"), {"label": ".cls"})
    saved: Any = wids.load_table(data, ["label"])
    saved = wids.load_table(Path("a.json"), storage_options={"timeout": 9})
    filtered: wids.ShardListDataset = data[np.array([True, False])]
    loader: DataLoader[Any] = DataLoader(data, sampler=wids.ChunkedSampler(view))
    both: ConcatDataset[Any] = data + view
    wids.ShardListDataset("a.json", transformations=["PIL", len], options=None)
    data.check_cache_misses()
    parts: list[wids.ShardListDataset] = data.split([0.9, 0.1], by="shard")
    mapped: wids.ShardListDataset = data.map(len).to_tuple(".jpg;.png", "cls")
    mapped = data.to_tuple(".txt", "cls", missing={".txt": ""})
    mapped = data.to_tuple(".txt", "cls", missing="skip")
    data.on_error = "skip"
    lossy = wids.ShardListDataset("a.json", on_error="next", max_failed=0.01, repeated="last")
    num_failed: int = lossy.num_failed + lossy.num_failed_shards
    place: tuple[str, int, int] = lossy.member(0, ".jpg")
    collated: Any = wids.collate([sample], pad={".wav": 0.0})
    in_tuples: Any = wids.collate([(sample[".wav"], 3)], pad={0: 0.0})
    packed: dict[Any, Any] = wids.collate_packed([sample], ".npy", labels=".mask.npy", pad_to=64)
    packed = wids.collate_packed([([1, 2], 3)], 0, shift_labels=True, pad_token=2)
    with wids.timings(loader) as timings:
        stats: dict[str, float] = data.stats() | timings.as_dict()
    times: wids.StageTimes = timings.times()
    del stats, times
    written: wids.DatasetSpec = wids.rewrite(view, "new-%06d.tar", maxcount=3, map=len, version="1")
    written = wids.rewrite(view, "new-%06d.tar", keep_shards=True)
    del parts, mapped, collated, in_tuples, packed, written, num_failed, place
    del (
        both,
        table,
        spec,
        saved,
        filtered,
        chosen,
        keys,
        joined,
        sample,
        batch,
        lengths,
        same,
        loader,
    )


def shards() -> None:
    """Every form of ``shards`` is accepted."""
    wids.load_spec("a.json")
    wids.load_spec(Path("a.json"), split="train")
    wids.load_spec({"shardlist": ["a.tar"]})
    wids.load_spec(io.BytesIO(b"{}"))
    wids.load_spec([("a.tar", 3), (Path("b.tar"), 4)])
    wids.load_spec(["a.tar", Path("b.tar")])
    wids.load_spec([{"url": "a.tar"}])
    spec: wids.DatasetSpec = wids.load_spec([wids.ShardSpec("a.tar")])
    wids.load_spec([spec, "b.json"])
    count: int | None = spec.shards[0].num_samples
    del count


def samplers() -> None:
    """Samplers are torch's."""
    plain: Sampler[int] = wids.ShardListSampler(range(3), lengths=[1, 2])
    ranked: DistributedSampler[Any] = wids.DistributedChunkedSampler(range(3))
    chunked: wids.ChunkedSampler = wids.DistributedChunkedSampler(range(3), num_samples=(1, 2))
    state: dict[str, Any] = chunked.state_dict(num_consumed=1)
    mixed: Sampler[int] = wids.MixedSampler(range(3), [1], num_samples=9, num_canonical=2)
    named: DistributedSampler[Any] = wids.MixedSampler(range(3), {"a": 0.5, "b": Fraction(1, 3)})
    cost: wids.SamplingCost = wids.sampling_cost(wids.load_spec("a.json"), chunked, num_nodes=2)
    batches = wids.BucketBatchSampler(chunked, [0, 1, 0], lambda b: 8 - b)
    loader: DataLoader[Any] = DataLoader(wids.ShardListDataset("a.json"), batch_sampler=batches)
    repeated: int = wids.BucketBatchSampler(chunked, [0, 1, 0], 8, aligned=True).num_repeated
    packed: Sampler[list[int]] = wids.PackedBatchSampler(
        chunked, [3, 1, 2], 4, max_items=2, budgets={"images": ([0, 1, 0], 1)}, cost="squares"
    )
    fill: float = wids.PackedBatchSampler(chunked, [3, 1, 2], 4, too_long="skip").fill
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    shared: Sampler[int] = wids.DistributedChunkedSampler(range(3), mesh=mesh["dp"])
    shared = wids.MixedSampler(range(3), [1], replication=2)
    changing = wids.MixedSampler(range(3), [(0, [1]), (9, {"": 2})])
    phases: list[tuple[int, dict[str, Fraction]]] = changing.schedule
    order: Sequence[int] = chunked.indices(epoch=3)[5:-1]
    in_batches: Sequence[list[int]] = batches.indices()
    places: list[tuple[int, int]] = chunked.steps_of(2) + batches.steps_of(2, epoch=1)
    del order, in_batches, places, phases
    del packed, fill, plain, ranked, shared, state, mixed, named, cost, loader, repeated


def remote() -> None:
    """What remote shards take, and a sampler around a sampler."""
    data = wids.ShardListDataset(
        "https://h/a.json",
        cache_size="200GB",
        localname=lambda url: Path("/data") / url[-5:],
        access="range",
        storage_options={"headers": {"a": "b"}},
        handlers={"mine": lambda url: io.BytesIO(url.encode())},
    )
    ahead: Sampler[int] = wids.Prefetcher(wids.ChunkedSampler(data), data, ahead_nbytes="1GB")
    state: dict[str, Any] = wids.Prefetcher(wids.ChunkedSampler(data), data).state_dict()
    del ahead, state


def other() -> None:
    """Shards, writers and errors."""
    with wids.Shard("a.tar") as shard, wids.TarWriter(Path("b.tar")) as writer:
        writer.write(shard[0])
    wids.TarWriter("s3://bucket/b.tar", storage_options={"key": "a"})
    wids.load_spec("a.json").save("s3://bucket/a.json", storage_options={"key": "a"})
    refused: OSError = wids.UploadError("x")
    more: wids.DatasetSpec = wids.append_shards("a.json", ["c.tar"], on_problem=print)
    wids.ShardWriter("s3://bucket/a-%d.tar", if_exists="append", storage_options={"key": "a"})
    error: ValueError = wids.SpecError("x")
    lost: RuntimeError = wids.LostTaskError("x")
    unpacked: ValueError = wids.RewriteError("x")
    missing: FileNotFoundError = wids.NotFoundError("x")
    del error, lost, unpacked, missing, refused, more


def preparing() -> None:
    """Writers take samples of anything; what describes and checks takes any executor."""
    with wids.ShardWriter(
        "a-%06d.tar", 1000, encoder={"flac": bytes}, if_exists="resume"
    ) as writer:
        nbytes: int = writer.write({"__key__": "a", "txt": "x"})
        shards: list[wids.ShardSpec] = writer.shards
    with ThreadPoolExecutor() as executor:
        spec: wids.DatasetSpec = wids.build_spec(
            shards, executor=executor, dataset_index=Path("a.index")
        )
        spec = wids.build_spec(shards, digests=True, on_cost=print)
        problems: list[wids.Problem] = wids.verify_spec(spec, decode=True, executor=executor)
        difference: wids.SpecDiff = wids.diff_specs(spec, Path("b.json"), storage_options={})
        keys: list[str] = difference.removed
        report: wids.PackReport = wids.pack_folder(
            Path("photos"), "train", maxsize="500MB", seed=None, classes=False, executor=executor
        )
    counts: Mapping[str, int] = report.fields
    decoder = wids.Decoder("torchrgb8", decoders={"flac": len, "json": None}, allow_pickle=True)
    data = wids.ShardListDataset(spec, transformations=[decoder])
    shown: list[int] = data[1:3].show(6, seed=1, where=bool).indices
    del counts, keys, nbytes, problems, shown


def peek(shards: list[str]) -> tuple[Any, int, str, list[int]]:
    """Look at shards without an index."""
    samples: wids.Peek = wids.peek(shards, 1, storage_options={"headers": {"A": "b"}}).shard(0)
    return samples[0], samples.read_on(10), samples.url, samples.show(3).indices
