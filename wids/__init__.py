"""wids: indexed random access to datasets stored as tar shards, and exact distributed epochs.

The names in ``__all__`` are the promise; everything else may change. Each is loaded when it is
first used, so that ``import wids`` is instant and only the samplers import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wids.build import build_pack, build_spec
    from wids.cost import SamplingCost, sampling_cost
    from wids.dataset import ShardListDataset
    from wids.decode import Decoder
    from wids.errors import (
        DecodeError,
        FetchError,
        MismatchError,
        NotFoundError,
        SampleError,
        ShardFormatError,
        SpecError,
        StateError,
        TransformError,
        WidsError,
    )
    from wids.prefetch import Prefetcher
    from wids.samplers import (
        ChunkedSampler,
        DistributedChunkedSampler,
        ShardedSampler,
        ShardListSampler,
    )
    from wids.shard import Shard
    from wids.spec import DatasetSpec, ShardSpec, load_spec
    from wids.verify import Problem, verify_spec
    from wids.writer import ShardWriter, TarWriter

__all__ = [
    "ChunkedSampler",
    "DatasetSpec",
    "DecodeError",
    "Decoder",
    "DistributedChunkedSampler",
    "FetchError",
    "MismatchError",
    "NotFoundError",
    "Prefetcher",
    "Problem",
    "SampleError",
    "SamplingCost",
    "Shard",
    "ShardFormatError",
    "ShardListDataset",
    "ShardListSampler",
    "ShardSpec",
    "ShardWriter",
    "ShardedSampler",
    "SpecError",
    "StateError",
    "TarWriter",
    "TransformError",
    "WidsError",
    "build_pack",
    "build_spec",
    "load_spec",
    "sampling_cost",
    "verify_spec",
]

_ROOMS = {
    "build": ("build_pack", "build_spec"),
    "cost": ("SamplingCost", "sampling_cost"),
    "dataset": ("ShardListDataset",),
    "decode": ("Decoder",),
    "prefetch": ("Prefetcher",),
    "samplers": (
        "ChunkedSampler",
        "DistributedChunkedSampler",
        "ShardListSampler",
        "ShardedSampler",
    ),
    "shard": ("Shard",),
    "spec": ("DatasetSpec", "ShardSpec", "load_spec"),
    "verify": ("Problem", "verify_spec"),
    "writer": ("ShardWriter", "TarWriter"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("wids")
    if name not in __all__:
        raise AttributeError(f"module 'wids' has no attribute {name!r}")
    value = getattr(import_module(f"wids.{_ROOM_OF.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
