"""Batches of all kinds of collate functions and consumers, each compared with the dataset.

What torch's own function allows in a worker, and in the process that its batches arrive in, holds
for `wids.collate`: types are those of the main process, and all values stay. A full run has 10,000
batches of each kind: `WIDS_NUM_BATCHES=10000 pytest -v -n 0 -m long`, with this file.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import random
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, default_collate, get_worker_info

import wids

NUM_BATCHES: Final = int(os.environ.get("WIDS_NUM_BATCHES", "120"))
NUM_SAMPLES: Final = 64
Collate = Callable[[list[Any]], Any]
METHODS = torch.multiprocessing.get_all_start_methods()
forking = torch.multiprocessing.get_context("fork" if "fork" in METHODS else "spawn")
elsewhere = forking.Queue()


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[wids.ShardListDataset]:
    """Return a dataset with fields of all sizes and types."""
    with wids.ShardWriter(f"{tmp_path}/kinds-%06d.tar", maxcount=20) as writer:
        for number in range(NUM_SAMPLES):
            sample = {
                "__key__": f"{number:06d}",
                ".cls": number,
                ".txt": f"sample {number}",
                ".small.npy": np.full((3, 5), number, np.float32),
                ".middle.npy": np.full(700, number, np.int64),
                ".large.npy": np.full((100, 90, 3), number, np.uint8),
                ".empty.npy": np.zeros((0, 3), np.int16),
            }
            writer.write(sample)
    with wids.ShardListDataset(f"{tmp_path}/kinds.json", transformations="torch") as opened:
        yield opened.map(more)


def more(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample with types that shards do not have."""
    number = sample[".cls"]
    pixels = torch.as_tensor(sample[".large.npy"])
    return {
        **sample,
        ".large.npy": pixels.permute(2, 0, 1),
        "half": torch.full((4,), number, dtype=torch.bfloat16),
        "many": torch.full((5_000,), number, dtype=torch.float64),
        "none": torch.zeros(0, 2),
        "nested": {"pair": (number, [number / 2, torch.tensor(number % 2 == 0)])},
    }


def same(one: Any, other: Any) -> bool:
    """Whether two batches are equal, in values and types."""
    if is_dataclass(one):
        return same(vars(one), vars(other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return same([*one], [*other]) and same([*one.values()], [*other.values()])
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def each_tensor(function: Callable[[torch.Tensor], Any], batch: Any) -> Any:
    """Return a batch with a function of each tensor, as torch's programs write it."""
    return tree_map(lambda value: function(value) if torch.is_tensor(value) else value, batch)


# In the worker: what a collate function does around another one.


class Pair(NamedTuple):
    """A batch of two."""

    small: Any
    rest: Any


@dataclass
class Batch:
    """A batch with a class of its own."""

    content: dict[str, Any]
    extra: tuple[Any, ...]


def plain(collate: Collate, samples: list[Any]) -> Any:
    return collate(samples)


def mapped(collate: Collate, samples: list[Any]) -> Any:
    batch = collate(samples)
    assert type(batch) is dict
    return each_tensor(lambda tensor: tensor.repeat_interleave(2, 0), batch)


def in_tuples(collate: Collate, samples: list[Any]) -> Any:
    batch = (collate(samples), ([collate(samples)[".cls"]], "text"))
    return each_tensor(torch.clone, batch), batch


def in_named_tuples(collate: Collate, samples: list[Any]) -> Any:
    batch = collate(samples)
    return Pair(batch.pop(".small.npy"), batch)


def in_dataclasses(collate: Collate, samples: list[Any]) -> Any:
    batch = collate(samples)
    return Batch(each_tensor(torch.clone, batch), (batch["many"], [batch[".cls"]]))


def in_halves(collate: Collate, samples: list[Any]) -> Any:
    return [collate(samples[:2]), collate(samples[2:])]


def shared(collate: Collate, samples: list[Any]) -> Any:
    return each_tensor(lambda tensor: tensor.share_memory_(), collate(samples))


def sliced(collate: Collate, samples: list[Any]) -> Any:
    return each_tensor(lambda tensor: tensor[1:, ...], collate(samples))


def only(name: str, collate: Collate, samples: list[Any]) -> Any:
    return collate([{name: sample[name]} for sample in samples])


def with_views(collate: Collate, samples: list[Any]) -> Any:
    batch = collate(samples)
    views = [batch["many"][1:], batch["many"].view(torch.int64), batch[".small.npy"][1:]]
    return {"batch": batch, "views": views}


def to_another_queue(collate: Collate, samples: list[Any]) -> Any:
    batch = collate(samples)
    if get_worker_info() is not None:
        elsewhere.put(batch)
    return batch


def copied(collate: Collate, samples: list[Any]) -> Any:
    batch = collate(samples)
    assert same(pickle.loads(pickle.dumps(batch)), batch)  # noqa: S301 - our own
    assert same(copy.deepcopy(batch), batch)
    return saved_again(batch)


class Keeping:
    """Keeps arrays over its latest batches, and compares them."""

    def __init__(self) -> None:
        self.kept: deque[Any] = deque(maxlen=8)

    def __call__(self, collate: Collate, samples: list[Any]) -> Any:
        batch = collate(samples)
        for array, numbers in self.kept:
            assert (array == numbers.reshape(-1, 1, 1, 1)).all()
        self.kept.append((batch[".large.npy"].numpy(), batch[".cls"].numpy().copy()))
        return batch


# In the main process: what a program does with a batch before it is compared.


def saved_again(batch: Any) -> Any:
    file = io.BytesIO()
    torch.save(batch, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def passed_on(batch: Any) -> Any:
    """Return what another queue makes of a batch."""
    elsewhere.put(batch)
    return elsewhere.get(timeout=60)


def received_elsewhere(batch: Any) -> Any:
    """Return a batch as another queue has sent it; those of two workers come in any order."""
    wanted = tuple(batch[".cls"].tolist())
    while wanted not in waiting:
        other = elsewhere.get(timeout=60)
        waiting[tuple(other[".cls"].tolist())] = other
    return waiting.pop(wanted)


waiting: dict[tuple[int, ...], Any] = {}


def cloned_by_a_thread(batch: Any) -> Any:
    """Return a copy, as the thread that pins memory makes it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(each_tensor, torch.clone, batch).result()


def arrays_of_shared(batch: Any) -> Any:
    """Return arrays that were made before their tensors were shared."""
    arrays = {name: value.numpy() for name, value in batch.items() if name.endswith(".npy")}
    for name in arrays:
        batch[name].share_memory_()
    return {**batch, **{name: torch.from_numpy(array) for name, array in arrays.items()}}


def written(batch: Any) -> Any:
    """Write to a batch, as augmentation does."""
    each_tensor(lambda tensor: tensor.copy_(tensor.flip(0)), batch)
    each_tensor(lambda tensor: tensor.copy_(tensor.flip(0)), batch)
    return batch


# What is kept of a batch for long.


def all_of(batch: Any) -> Any:
    return batch


def slices(batch: Any) -> Any:
    return [value[1:3] for value in batch.values() if torch.is_tensor(value)]


def arrays(batch: Any) -> Any:
    return [value.numpy()[::2] for name, value in batch.items() if name.endswith(".npy")]


class Kind(NamedTuple):
    """What is done to a batch: in the worker, in the main process, and what that keeps."""

    collate: Callable[[Collate, list[Any]], Any] = plain
    consume: Callable[[Any], Any] = all_of
    keep: Callable[[Any], Any] = all_of
    options: Any = None


KINDS: Final = {
    "plain": Kind(),
    "spawned": Kind(options={"multiprocessing_context": "spawn"}),
    "persistent": Kind(options={"persistent_workers": True, "prefetch_factor": 5}),
    "mapped": Kind(mapped),
    "tuples": Kind(in_tuples),
    "named tuples": Kind(in_named_tuples),
    "dataclasses": Kind(in_dataclasses),
    "halves": Kind(in_halves),
    "shared": Kind(shared),
    "sliced": Kind(sliced),
    "small": Kind(partial(only, ".cls")),
    "large": Kind(partial(only, ".large.npy")),
    "views": Kind(with_views),
    "another queue": Kind(to_another_queue, received_elsewhere),
    "kept in the worker": Kind(Keeping()),
    "copied": Kind(copied),
    "saved": Kind(consume=saved_again),
    "passed on": Kind(consume=passed_on),
    "cloned by a thread": Kind(consume=cloned_by_a_thread),
    "arrays of shared": Kind(consume=arrays_of_shared, keep=arrays),
    "slices": Kind(keep=slices),
    "arrays": Kind(keep=arrays),
    "written": Kind(consume=written),
}


def compare(dataset: wids.ShardListDataset, kind: Kind, num_batches: int) -> int:
    """Compare batches with samples that are read one by one; return how many were."""
    samples = [dataset[index] for index in range(NUM_SAMPLES)]
    generator = random.Random(num_batches)
    batches = [generator.sample(range(NUM_SAMPLES), 4) for _ in range(num_batches)]
    loader: DataLoader[Any] = DataLoader(
        samples,  # type: ignore[arg-type]  # what is tested starts here
        batch_sampler=batches,
        num_workers=2,
        collate_fn=partial(kind.collate, wids.collate),
        **(kind.options or {}),
    )
    num_compared, kept = 0, []
    for indices, batch in zip(batches, loader, strict=True):
        here = plain if isinstance(kind.collate, Keeping) else kind.collate
        wanted = here(default_collate, [samples[index] for index in indices])
        found = kind.consume(batch)
        del batch
        assert same(found, wanted), (num_compared, indices)
        num_compared += 1
        if generator.random() < 0.3:
            kept.append((kind.keep(found), kind.keep(wanted)))
        if len(kept) > 8:
            assert same(*kept.pop(generator.randrange(8))), num_compared
    assert all(same(*pair) for pair in kept)
    return num_compared


@pytest.mark.usefixtures("forked")  # others get hundreds of tensors, a descriptor each
@pytest.mark.parametrize("name", ["mapped", "tuples", "dataclasses", "arrays of shared"])
def test_a_function_around_collate_works_in_workers(
    dataset: wids.ShardListDataset, name: str
) -> None:
    """It is called with plain dicts and lists, and what it returns arrives."""
    assert compare(dataset, KINDS[name], 12) == 12


@pytest.mark.long
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("name", KINDS)
def test_batches_of_all_kinds_are_those_of_the_dataset(
    dataset: wids.ShardListDataset, name: str
) -> None:
    """No value, type or order of any batch differs, whatever is done to it."""
    assert compare(dataset, KINDS[name], NUM_BATCHES) == NUM_BATCHES
