"""States of samplers as cases: a sampler is made from JSON, restored, and read on.

`make.py` records cases, `test_golden_files.py` compares them. It uses public names of wids only, so
that no change inside the library changes what is compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import ConcatDataset, Subset

import wids

NUM_NEXT = 50
NUM_FOLLOWING = 10

Case = dict[str, Any]


class Indices:
    """A dataset that returns indices in place of samples, for streams."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.lengths = dataset.lengths

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return list(indices)


class Concatenated(ConcatDataset[Any]):
    """Reads batches as batches, which spares a warning that torch's own class causes."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def made_dataset(stated: dict[str, Any]) -> Any:
    """Return the dataset of a case: shards of these lengths, which need not exist."""
    if "length" in stated:
        return range(stated["length"])
    shards = [
        wids.ShardSpec(f"/golden/{name or 'train'}-{number}.tar", length, dataset=name)
        for number, (name, length) in enumerate(stated["shards"])
    ]
    dataset: Any = wids.ShardListDataset(shards)
    if "slice" in stated:
        return dataset[slice(*stated["slice"])]
    if "split" in stated:
        return dataset.split(stated["split"], seed=stated["seed"], by=stated["by"])[0]
    if "subset" in stated:
        return Subset(dataset, range(*stated["subset"]))
    if "concatenated" in stated:
        return Concatenated([dataset, dataset[: stated["concatenated"]]])
    return dataset


def made_sampler(case: Case, num_replicas: int, rank: int) -> Any:
    """Return the sampler of a case on a rank."""
    arguments = dict(case["arguments"])
    wrapped = arguments.pop("wrapped", None)
    dataset = made_dataset(case["dataset"])
    if wrapped is None:
        if arguments.pop("has_ranks", False):
            arguments |= {"num_replicas": num_replicas, "rank": rank}
        return getattr(wids, case["sampler"])(dataset, **arguments)
    sampler = made_sampler({**case, **wrapped}, num_replicas, rank)
    if case["sampler"] == "Prefetcher":
        return wids.Prefetcher(sampler, dataset, **arguments)
    if case["sampler"] == "stream":
        return wids.stream(Indices(dataset), sampler, **arguments)
    if case["sampler"] == "PackedBatchSampler":
        return wids.PackedBatchSampler(sampler, **arguments)
    sizes = arguments.pop("batch_sizes", None)
    if sizes is not None:
        arguments["batch_size"] = lambda bucket: sizes[str(bucket)]
    return wids.BucketBatchSampler(sampler, **arguments)


def restored(case: Case, num_replicas: int, rank: int) -> Any:
    """Return the sampler of a case on a rank, restored from the state."""
    sampler = made_sampler(case, num_replicas, rank)
    sampler.load_state_dict(json.loads(json.dumps(case["state"])))
    return sampler


def continued(case: Case, num_replicas: int, rank: int) -> dict[str, Any]:
    """Return what a restored rank yields: what is next, the rest, and the following epoch."""
    sampler = restored(case, num_replicas, rank)
    rest = list(sampler)
    if case["next_epoch"] is not None:
        sampler.set_epoch(case["next_epoch"])
    return {
        "num_replicas": num_replicas,
        "rank": rank,
        "next": rest[: NUM_NEXT if rank == 0 else NUM_FOLLOWING],
        "num_left": len(rest),
        "sha256": hashlib.sha256(json.dumps(rest).encode("ascii")).hexdigest()[:16],
        "following": list(islice(sampler, NUM_FOLLOWING)),
    }


def recorded(
    name: str,
    sampler: str,
    dataset: dict[str, Any],
    arguments: dict[str, Any],
    *,
    num_read: int,
    num_replicas: int = 1,
    others: tuple[int, ...] = (),
    epoch: int | None = None,
) -> Case:
    """Return a case: a state after so many items of rank 0, and what follows on all ranks.

    Args:
        name: Its name.
        sampler: A class or function of wids.
        dataset: As `made_dataset` takes it.
        arguments: As `made_sampler` takes them.
        num_read: Items that each rank has read in the second epoch, or in the one that is set.
        num_replicas: Number of ranks.
        others: Other numbers of ranks on which the state must resume.
        epoch: The epoch to set; None to let epochs follow one another.
    """
    case: Case = {"name": name, "sampler": sampler, "dataset": dataset, "arguments": arguments}
    states = []
    for rank in range(num_replicas):
        made = made_sampler(case, num_replicas, rank)
        if epoch is None:
            for _ in made:
                pass
        else:
            made.set_epoch(epoch)
        reading = iter(made)
        for _ in islice(reading, num_read):
            pass
        states.append(made.state_dict())
    case["state"] = states[0]
    assert all(state == states[0] for state in states), name
    case["next_epoch"] = None if epoch is None else epoch + 1
    case["continued"] = [
        continued(case, count, rank) for count in (num_replicas, *others) for rank in range(count)
    ]
    return case


PLAIN = {"length": 131}
SHARDS = {"shards": [[None, n] for n in (40, 7, 0, 31, 1, 52)]}
NAMED = {"shards": [["a", 40], ["b", 9], ["a", 31], ["c", 23]]}
SMALL = {"chunksize": 11, "seed": 3}
RANKS = {**SMALL, "has_ranks": True}
CHUNKED, DEALT, MIXED = "ChunkedSampler", "DistributedChunkedSampler", "MixedSampler"


def recorded_cases() -> Iterator[Case]:
    """Yield the cases of this version."""
    yield from _cases_of_one_rank()
    yield from _cases_of_ranks()
    yield from _cases_of_wrappers()


def _cases_of_one_rank() -> Iterator[Case]:
    yield recorded("range", CHUNKED, PLAIN, {}, num_read=40)
    yield recorded("chunks", CHUNKED, SHARDS, SMALL, num_read=40)
    yield recorded("ascending", CHUNKED, SHARDS, {"shuffle": False}, num_read=40)
    first = {**SMALL, "shufflefirst": False}
    yield recorded("chunks in order at first", CHUNKED, SHARDS, first, num_read=40, epoch=0)
    yield recorded("an epoch that was set", CHUNKED, SHARDS, SMALL, num_read=40, epoch=7)
    yield recorded("the end of an epoch", CHUNKED, SHARDS, SMALL, num_read=131)
    yield recorded("a range", CHUNKED, SHARDS, {**SMALL, "num_samples": [9, 101]}, num_read=40)
    auto = {"chunksize": "auto", "seed": 1}
    yield recorded("chunks that fit", CHUNKED, SHARDS, auto, num_read=40)
    yield recorded("shards", "ShardListSampler", SHARDS, {"seed": 5}, num_read=40)
    lengths = {"lengths": [100, 31]}
    yield recorded("stated lengths", "ShardListSampler", PLAIN, lengths, num_read=40)
    old = {"shuffle": False}
    yield recorded("the old name", "ShardedSampler", SHARDS, old, num_read=40)


def _cases_of_ranks() -> Iterator[Case]:
    for name, options in (
        ("padded", {}),
        ("dropped", {"drop_last": True}),
        ("uneven", {"even": False}),
        ("in order at first", {"shufflefirst": False}),
        ("ascending", {"shuffle": False}),
        ("fitting", {"chunksize": "auto"}),
    ):
        for redeal in (False, True):
            arguments = {**RANKS, **options, "redeal": redeal}
            title = f"{name}, dealt {'each epoch' if redeal else 'once'}"
            epoch = 0 if "first" in name else None
            more: dict[str, Any] = {"num_replicas": 3, "epoch": epoch}
            yield recorded(f"{title}, 3 ranks", DEALT, SHARDS, arguments, num_read=17, **more)
            runs = {**arguments, "num_canonical": 8}
            more = {"num_replicas": 4, "others": (1, 8), "epoch": epoch}
            yield recorded(f"{title}, 8 runs", DEALT, SHARDS, runs, num_read=6, **more)
    set_once: dict[str, Any] = {"num_read": 17, "num_replicas": 2, "epoch": 5}
    yield recorded("ranks, an epoch that was set", DEALT, SHARDS, RANKS, **set_once)
    yield recorded("ranks of a range", DEALT, PLAIN, RANKS, num_read=17, num_replicas=2)

    weights = {"weights": {"a": 3, "b": 1.5, "c": 0.25}, **RANKS}
    yield recorded("mixed", MIXED, NAMED, weights, num_read=23, num_replicas=2)
    runs = {**weights, "num_canonical": 4, "num_samples": 210}
    yield recorded("mixed, 4 runs", MIXED, NAMED, runs, num_read=22, num_replicas=2, others=(1, 4))
    in_order = {"weights": [1, 2, 3], "shuffle": False, "chunksize": "auto"}
    yield recorded("mixed in order", MIXED, NAMED, in_order, num_read=40)
    yield recorded("mixed without weights", MIXED, SHARDS, SMALL, num_read=40, epoch=2)


def _cases_of_wrappers() -> Iterator[Case]:
    buckets = [n * n % 3 for n in range(131)]
    for aligned in (False, True):
        for drop_last in (False, True):
            inner = {"sampler": DEALT, "arguments": {**RANKS, "even": False, "num_canonical": 4}}
            arguments = {
                "wrapped": inner,
                "buckets": buckets,
                "batch_size": 4,
                "aligned": aligned,
                "drop_last": drop_last,
            }
            title = f"buckets{', aligned' * aligned}{', dropped' * drop_last}"
            more: dict[str, Any] = {"num_replicas": 2, "others": (1, 4)}
            yield recorded(title, "BucketBatchSampler", SHARDS, arguments, num_read=4, **more)
    sizes = {"batch_sizes": {"0": 5, "1": 2}, "buckets": buckets}
    wrapped = {"wrapped": {"sampler": CHUNKED, "arguments": SMALL}, **sizes, "batch_size": None}
    yield recorded("buckets of several sizes", "BucketBatchSampler", SHARDS, wrapped, num_read=9)

    lengths = {"lengths": [n * n % 17 + 1 for n in range(131)], "max_tokens": 40}
    inner = {"sampler": DEALT, "arguments": {**RANKS, "num_canonical": 4}}
    arguments = {"wrapped": inner, **lengths, "window": 3, "cost": "squares"}
    yield recorded(
        "packed", "PackedBatchSampler", SHARDS, arguments, num_read=5, num_replicas=1, others=(2, 4)
    )

    for name, stated in (
        ("a slice", {"slice": [5, 120]}),
        ("a slice of every second", {"slice": [None, None, 2]}),
        ("a split of samples", {"split": [0.75, 0.25], "seed": 2, "by": "sample"}),
        ("a split of shards", {"split": [0.75, 0.25], "seed": 2, "by": "shard"}),
        ("torch's Subset", {"subset": [5, 120]}),
        ("torch's ConcatDataset", {"concatenated": 60}),
    ):
        yield recorded(name, CHUNKED, {**SHARDS, **stated}, SMALL, num_read=30)

    inner = {"sampler": DEALT, "arguments": RANKS}
    yield recorded(
        "prefetched", "Prefetcher", SHARDS, {"wrapped": inner}, num_read=17, num_replicas=2
    )
    arguments = {"wrapped": inner, "batch_size": 3}
    yield recorded("streamed", "stream", SHARDS, arguments, num_read=17, num_replicas=2)
    yield recorded("streamed, set", "stream", SHARDS, arguments, num_read=17, epoch=4)


def made_loader(case: Case) -> Any:
    """Return torchdata's loader of a case: over a stream, or over a dataset and its sampler."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    options = {**case["loader"], "collate_fn": list}
    made = made_sampler(case, 1, 0)
    if case["sampler"] == "stream":
        return StatefulDataLoader(made, **options)
    return StatefulDataLoader(Indices(made_dataset(case["dataset"])), sampler=made, **options)


def continued_batches(case: Case) -> list[Any]:
    """Return what a restored loader yields: the rest of its epoch, and the next one."""
    loader = made_loader(case)
    loader.load_state_dict(json.loads(json.dumps(case["state"])))
    return [list(loader), list(loader)]


def recorded_loaders() -> Iterator[Case]:
    """Yield the cases of loaders: without workers, and with two, which a stream refuses."""
    inner = {"sampler": CHUNKED, "arguments": SMALL}
    for name, arguments in (("stream", {"wrapped": inner, "batch_size": 8}), (CHUNKED, SMALL)):
        for num_workers in (0,) if name == "stream" else (0, 2):
            case: Case = {
                "name": f"{name}, {num_workers} workers",
                "sampler": name,
                "dataset": SHARDS,
                "arguments": arguments,
                "loader": {"batch_size": 8, "num_workers": num_workers},
            }
            loader = made_loader(case)
            reading = iter(loader)
            for _ in islice(reading, 7):
                pass
            case["state"] = loader.state_dict()
            for _ in reading:  # to its end, so that the workers end
                pass
            case["continued"] = continued_batches(case)
            yield case
