"""States in distributed checkpoints, of which only the keys of a fresh sampler's state are read."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Callable
from functools import partial
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from conftest import need, optional
from ranks import Lengths

import wids

pytestmark = [
    # torch warns that there is no process group, which is what the test asks for.
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("ignore:.*TypedStorage is deprecated"),
]

DATA = Lengths(300, 200, 500)


@pytest.fixture(autouse=True)
def new_torch() -> None:
    """Skip where torch has another form of these calls."""
    need({"no_dist", "checkpoint_id"} <= signature(dcp.save).parameters.keys(), "torch 2.9")


TOKENS = [n % 40 + n // 20 for n in range(1000)]

Made = Callable[[int, int], Any]


def dealt(rank: int, num_replicas: int) -> wids.DistributedChunkedSampler:
    return wids.DistributedChunkedSampler(DATA, rank=rank, num_replicas=num_replicas, chunksize=100)


def buckets(rank: int, num_replicas: int) -> wids.BucketBatchSampler:
    numbers = [n // 300 for n in range(1000)]
    return wids.BucketBatchSampler(dealt(rank, num_replicas), numbers, lambda b: 2 + b)


def packed(rank: int, num_replicas: int) -> wids.PackedBatchSampler:
    return wids.PackedBatchSampler(dealt(rank, num_replicas), TOKENS, 400, window=8)


class AsBytes:
    """A loader's form of a state in torchtitan: bytes, by the number of the rank."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __iter__(self) -> Any:
        return iter(self.inside)

    def state_dict(self) -> dict[str, Any]:
        return {"dp_rank_0": pickle.dumps(self.inside.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inside.load_state_dict(pickle.load(io.BytesIO(state["dp_rank_0"])))  # noqa: S301 - made above


def as_bytes(rank: int, num_replicas: int) -> AsBytes:
    return AsBytes(packed(rank, num_replicas))


@pytest.mark.parametrize("made", [dealt, buckets, packed, as_bytes])
def test_a_checkpoint_keeps_the_history_of_an_epoch(made: Made, tmp_path: Path) -> None:
    """Four, three and five ranks read each sample once; fewer batches than ranks repeat (ORDER-52).

    The state of the second checkpoint has a history, which that of a fresh sampler has not.
    """
    seen: Counter[int] = Counter()
    batches: list[Any] = []
    for at, (num_replicas, steps) in enumerate(((4, 9), (3, 12), (5, None))):
        for rank in range(num_replicas):
            sampler = made(rank, num_replicas)
            if at:
                dcp.load({"sampler": sampler}, checkpoint_id=tmp_path / str(at), no_dist=True)
            batches += islice(sampler, steps)
        dcp.save({"sampler": sampler}, checkpoint_id=tmp_path / str(at + 1), no_dist=True)
    for batch in batches:
        seen.update(batch if isinstance(batch, list) else [batch])
    assert set(seen) == set(range(1000))
    assert len(batches) - len({str(batch) for batch in batches}) < 5


def test_a_schedule_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    """A state of other weights has the same keys (ORDER-30)."""
    shards = [wids.ShardSpec(f"/{name}.tar", 60, dataset=name) for name in "ab"]
    dataset = wids.ShardListDataset(shards)
    first = wids.MixedSampler(dataset, {"a": 1, "b": 1}, num_replicas=1, rank=0)
    list(islice(first, 40))
    dcp.save({"sampler": first}, checkpoint_id=tmp_path / "1", no_dist=True)
    schedule = [(0, {"a": 1, "b": 1}), (40, {"a": 0, "b": 1})]
    second = wids.MixedSampler(dataset, schedule, num_replicas=1, rank=0)
    dcp.load({"sampler": second}, checkpoint_id=tmp_path / "1", no_dist=True)
    assert all(index >= 60 for index in islice(second, 30))


def loader_of_torchdata() -> Any:
    return optional("torchdata.stateful_dataloader").StatefulDataLoader


def loader_of_torchtitan() -> Any:
    """Return its loader, told that it is alone: it refuses the states of other numbers of ranks."""
    made = optional("torchtitan.components.dataloader").ParallelAwareDataloader
    return partial(made, dp_rank=0, dp_world_size=1)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("library", [loader_of_torchdata, loader_of_torchtitan])
def test_a_loader_of_others_in_a_checkpoint(
    library: Callable[[], Any], num_workers: int, tmp_path: Path
) -> None:
    """It is passed directly, and resumes on other ranks, several times (ORDER-52)."""
    make = library()

    def loader(rank: int, num_replicas: int) -> Any:
        return make(
            list(range(1000)),
            batch_size=4,
            sampler=dealt(rank, num_replicas),
            num_workers=num_workers,
            collate_fn=list,
        )

    seen: Counter[int] = Counter()
    for at, (num_replicas, steps) in enumerate(((4, 5), (3, 10), (5, None))):
        for rank in range(num_replicas):
            made = loader(rank, num_replicas)
            if at:
                dcp.load({"loader": made}, checkpoint_id=tmp_path / str(at), no_dist=True)
            for batch in islice(made, steps):
                seen.update(batch)
        dcp.save({"loader": made}, checkpoint_id=tmp_path / str(at + 1), no_dist=True)
    assert set(seen) == set(range(1000))
    assert seen.total() - 1000 < 5
