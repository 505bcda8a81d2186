"""wids: indexed random access to datasets stored as tar shards, and exact distributed epochs.

Only the names in ``__all__`` and ``_ALSO`` are stable; everything else may change. Each is imported
when it is first used, so that ``import wids`` is instant and only the samplers import torch.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from wids import migration

if TYPE_CHECKING:
    from wids.dataset.collating import collate
    from wids.dataset.huggingface import SamplerTrainer as SamplerTrainer
    from wids.dataset.lightning import SamplerCallback as SamplerCallback
    from wids.dataset.packed_rows import collate_packed
    from wids.dataset.peeking import Peek, peek
    from wids.dataset.prefetch import Prefetcher
    from wids.dataset.shard_list import ShardListDataset
    from wids.dataset.streaming import stream
    from wids.dataset.timing import StageTimes as StageTimes
    from wids.dataset.timing import timings
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
    from wids.order.bucket_sampler import BucketBatchSampler
    from wids.order.mixed_sampler import MixedSampler
    from wids.order.packed_sampler import PackedBatchSampler
    from wids.order.samplers import (
        ChunkedSampler,
        DistributedChunkedSampler,
        ShardedSampler,
        ShardListSampler,
    )
    from wids.order.sampling_cost import SamplingCost as SamplingCost
    from wids.order.sampling_cost import sampling_cost
    from wids.publish.appending import append_shards
    from wids.publish.new_spec import build_spec
    from wids.publish.packing.pack_plan import PackReport as PackReport
    from wids.publish.packing.packed_folder import pack_folder
    from wids.publish.problems import Problem as Problem
    from wids.publish.rewriting.rewrite import rewrite
    from wids.publish.shard_writer import ShardWriter
    from wids.publish.spec_diff import SpecDiff as SpecDiff
    from wids.publish.spec_diff import diff_specs
    from wids.publish.tar_writer import TarWriter
    from wids.publish.verification import verify_spec
    from wids.shards.fields.audio import Audio
    from wids.shards.fields.decode import Decoder
    from wids.shards.fields.video import Clips, VideoReader
    from wids.shards.specs.loader import load_spec
    from wids.shards.specs.model import DatasetSpec, ShardSpec
    from wids.shards.tars.shard import Shard
    from wids.tables.table_file import load_table, save_table

__all__ = [
    "Audio",
    "BucketBatchSampler",
    "ChunkedSampler",
    "Clips",
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
    "PackedBatchSampler",
    "Peek",
    "Prefetcher",
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
    "VideoReader",
    "WidsError",
    "append_shards",
    "build_spec",
    "collate",
    "collate_packed",
    "diff_specs",
    "load_spec",
    "load_table",
    "pack_folder",
    "peek",
    "rewrite",
    "sampling_cost",
    "save_table",
    "stream",
    "timings",
    "verify_spec",
]

_ALSO = (
    "LostTaskError",
    "PackReport",
    "Problem",
    "RewriteError",
    "SamplerCallback",
    "SamplerTrainer",
    "SamplingCost",
    "SpecDiff",
    "StageTimes",
)
"""Names that work as those of ``__all__`` do, but are rarely typed: what functions return, what
executors raise, a former name, and what imports a trainer."""

_MODULES = {
    "tables.table_file": ("load_table", "save_table"),
    "dataset.shard_list": ("ShardListDataset",),
    "shards.fields.audio": ("Audio",),
    "shards.fields.decode": ("Decoder",),
    "shards.fields.video": ("Clips", "VideoReader"),
    "publish.packing.packed_folder": ("pack_folder",),
    "publish.packing.pack_plan": ("PackReport",),
    "dataset.peeking": ("Peek", "peek"),
    "dataset.huggingface": ("SamplerTrainer",),
    "dataset.lightning": ("SamplerCallback",),
    "dataset.prefetch": ("Prefetcher",),
    "order.bucket_sampler": ("BucketBatchSampler",),
    "publish.rewriting.rewrite": ("rewrite",),
    "order.samplers": (
        "ChunkedSampler",
        "DistributedChunkedSampler",
        "ShardListSampler",
        "ShardedSampler",
    ),
    "order.sampling_cost": ("SamplingCost", "sampling_cost"),
    "order.mixed_sampler": ("MixedSampler",),
    "order.packed_sampler": ("PackedBatchSampler",),
    "shards.specs.loader": ("load_spec",),
    "shards.specs.model": ("DatasetSpec", "ShardSpec"),
    "dataset.timing": ("StageTimes", "timings"),
    "dataset.streaming": ("stream",),
    "shards.tars.shard": ("Shard",),
    "dataset.collating": ("collate",),
    "dataset.packed_rows": ("collate_packed",),
    "publish.appending": ("append_shards",),
    "publish.new_spec": ("build_spec",),
    "publish.problems": ("Problem",),
    "publish.shard_writer": ("ShardWriter",),
    "publish.spec_diff": ("SpecDiff", "diff_specs"),
    "publish.tar_writer": ("TarWriter",),
    "publish.verification": ("verify_spec",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

# Last in the list, so it is asked only about modules that do not exist.
sys.meta_path.append(migration.GoneModules())

# Here, so that every process of a program prints its log, the workers of a DataLoader too.
if os.environ.get("WIDS_LOG"):
    import_module("wids.cli.log_output").print_as_asked()


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
