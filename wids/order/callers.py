"""Inspect the call stack of a sampler for what the calling loader does with its indices.

A trainer can wrap a sampler so that its indices are sharded among the ranks again, and a loader's
workers run ahead of training. The sampler receives no sign of it: only its callers differ. Their
frames are inspected when a pass begins. No trainer is imported (decision 0044). An object in a
frame may be half built, so it is known by its class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final
from weakref import ref

from torch.utils.data import DistributedSampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

_OF_ACCELERATE: Final = ("BatchSamplerShard", "IterableDatasetShard", "DataLoaderDispatcher")


def second_sharder(sampler: Any) -> str | None:
    """Return the name of a caller that shards what a sampler yields among ranks; None if none does.

    Args:
        sampler: The sampler.
    """
    for caller in _callers():
        kind = type(caller)
        package = str(kind.__module__).partition(".")[0]
        # Those of Lightning, ignite and catalyst are torch samplers around the user's.
        is_around = issubclass(kind, DistributedSampler) and package != "wids"
        if package == "accelerate" and kind.__name__ in _OF_ACCELERATE:
            return f"{kind.__name__} (accelerate)"
        if is_around and caller is not sampler and vars(caller).get("num_replicas", 1) != 1:
            return f"{kind.__name__} ({package})"
    return None


def loader_with_workers() -> ref[Any] | None:
    """Return the iterator of the calling DataLoader whose workers run ahead of training."""
    # torchdata's is another class: it counts what it has returned itself.
    found = (each for each in _callers() if issubclass(type(each), _MultiProcessingDataLoaderIter))
    loader = next(found, None)
    return None if loader is None else ref(loader)


def _callers() -> Iterator[Any]:
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - documented, unlike any other way
    while frame is not None:
        yield frame.f_locals.get("self")
        frame = frame.f_back
