"""wids: indexed random access to datasets stored as tar shards, and exact distributed epochs.

The names in ``__all__`` and ``_ALSO`` are the promise; everything else may change. Each is imported
when it is first used, so that ``import wids`` is instant and only the samplers import torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from wids import migration

if TYPE_CHECKING:
    from wids.bucketing.bucket_sampler import BucketBatchSampler
    from wids.checking.problems import Problem as Problem
    from wids.columns.table_file import load_table, save_table
    from wids.dataset import ShardListDataset
    from wids.describing.appending import append_shards
    from wids.describing.build import build_spec
    from wids.describing.verify import verify_spec
    from wids.engines.ray_executor import RayExecutor
    from wids.errors import (
        DecodeError,
        FetchError,
        JoinError,
        MismatchError,
        NotFoundError,
        PackError,
        SampleError,
        ShardFormatError,
        SpecError,
        StateError,
        TableError,
        TransformError,
        UploadError,
        WidsError,
    )
    from wids.errors import LostTaskError as LostTaskError
    from wids.errors import RewriteError as RewriteError
    from wids.fields.decode import Decoder
    from wids.mixing.mixed import MixedSampler
    from wids.packing.folder import pack_folder
    from wids.packing.report import PackReport as PackReport
    from wids.peeking import Peek, peek
    from wids.prefetching.prefetch import Prefetcher
    from wids.rewriting.rewrite import rewrite
    from wids.sampling.chunked import ChunkedSampler, ShardedSampler, ShardListSampler
    from wids.sampling.cost import SamplingCost as SamplingCost
    from wids.sampling.cost import sampling_cost
    from wids.sampling.distributed import DistributedChunkedSampler
    from wids.specs.loader import load_spec
    from wids.specs.model import DatasetSpec, ShardSpec
    from wids.streaming import stream
    from wids.tars.shard import Shard
    from wids.views.collating import collate
    from wids.writing.shard_writer import ShardWriter
    from wids.writing.tar_writer import TarWriter

__all__ = [
    "BucketBatchSampler",
    "ChunkedSampler",
    "DatasetSpec",
    "DecodeError",
    "Decoder",
    "DistributedChunkedSampler",
    "FetchError",
    "JoinError",
    "MismatchError",
    "MixedSampler",
    "NotFoundError",
    "PackError",
    "Peek",
    "Prefetcher",
    "RayExecutor",
    "SampleError",
    "Shard",
    "ShardFormatError",
    "ShardListDataset",
    "ShardListSampler",
    "ShardSpec",
    "ShardWriter",
    "ShardedSampler",
    "SpecError",
    "StateError",
    "TableError",
    "TarWriter",
    "TransformError",
    "UploadError",
    "WidsError",
    "append_shards",
    "build_spec",
    "collate",
    "load_spec",
    "load_table",
    "pack_folder",
    "peek",
    "rewrite",
    "sampling_cost",
    "save_table",
    "stream",
    "verify_spec",
]

_ALSO = ("LostTaskError", "PackReport", "Problem", "RewriteError", "SamplingCost")
"""Names that work as those of ``__all__`` do, but that nobody types often: what functions return,
what executors raise, and a former name."""

_MODULES = {
    "columns.table_file": ("load_table", "save_table"),
    "dataset": ("ShardListDataset",),
    "engines.ray_executor": ("RayExecutor",),
    "fields.decode": ("Decoder",),
    "packing.folder": ("pack_folder",),
    "packing.report": ("PackReport",),
    "peeking": ("Peek", "peek"),
    "prefetching.prefetch": ("Prefetcher",),
    "bucketing.bucket_sampler": ("BucketBatchSampler",),
    "rewriting.rewrite": ("rewrite",),
    "sampling.chunked": ("ChunkedSampler", "ShardListSampler", "ShardedSampler"),
    "sampling.cost": ("SamplingCost", "sampling_cost"),
    "sampling.distributed": ("DistributedChunkedSampler",),
    "mixing.mixed": ("MixedSampler",),
    "specs.loader": ("load_spec",),
    "specs.model": ("DatasetSpec", "ShardSpec"),
    "streaming": ("stream",),
    "tars.shard": ("Shard",),
    "views.collating": ("collate",),
    "describing.appending": ("append_shards",),
    "describing.build": ("build_spec",),
    "checking.problems": ("Problem",),
    "writing.shard_writer": ("ShardWriter",),
    "writing.tar_writer": ("TarWriter",),
    "describing.verify": ("verify_spec",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

# Last in the list, so it is asked only about modules that do not exist.
sys.meta_path.append(migration.GoneModules())


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("wids")
    if name not in __all__ and name not in _ALSO:
        raise AttributeError(migration.explain(name) or f"module 'wids' has no attribute {name!r}")
    value = getattr(import_module(f"wids.{_MODULE_OF.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
