"""Check whether an order fits what a machine can hold, and find the chunks that do.

A chunk is read in random order, so all shards that it touches are needed at the same time: its
*working set*. If the cache holds fewer, each of them is downloaded repeatedly. Everything is
computed from lengths and limits: no file is opened. ORDER-27 in specs/sampler-order.md specifies
it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from wids.order.epoch_order import Order, OrderSettings, run_edges
from wids.shards.capacity import CACHE_SHARE, Capacity
from wids.storage.arrays import FloatArray, IntArray
from wids.storage.sizes import count_text, nbytes_text

DEFAULT_CHUNKSIZE: Final = 2000
_UNEVEN: Final = 0.5
"""Largest difference between a source's shares on two ranks that is not reported."""


@dataclass(frozen=True)
class WorkingSet:
    """The shards that one run reads at the same time, at most.

    Attributes:
        num_shards: Their number.
        nbytes: Their bytes; NaN where these are not known.
    """

    num_shards: int
    nbytes: float


def remarks(
    dataset: Any, order: Order, num_replicas: int, ahead_nbytes: int = 0, num_peers: int = 1
) -> Iterator[str]:
    """Yield what users of an order over a dataset should know, for warnings.

    Args:
        dataset: The dataset; ``limits``, ``sources`` and ``spec`` are used if it has them.
        order: The order.
        num_replicas: Number of ranks.
        ahead_nbytes: Bytes of shards that are fetched ahead.
        num_peers: Number of neighbouring processes that read the same.
    """
    limits = getattr(dataset, "limits", None)
    if isinstance(limits, Capacity):
        # As set by torchrun; all processes of a machine share its cache.
        text = os.environ.get("LOCAL_WORLD_SIZE", "")
        num_processes = -(-max(1, int(text)) // num_peers) if text.isdecimal() else 1
        machine = Machine(
            order.num_runs // num_replicas,
            min(num_processes, num_replicas),
            _share(order, limits, num_processes / num_replicas),
            ahead_nbytes,
        )
        if remark := misfit(order, limits, machine):
            yield remark
    if isinstance(order, OrderSettings):
        sources = getattr(dataset, "sources", {}) if order.shuffle and num_replicas > 1 else {}
        if remark := uneven_source(order, num_replicas, sources):
            yield remark
        if getattr(getattr(dataset, "spec", None), "weights", None):
            yield (
                "the weights in the spec are not used, as an epoch has every sample once; "
                "MixedSampler uses them"
            )


def _share(order: Order, limits: Capacity, share: float) -> float:
    """Return the share of the dataset that a machine with a share of the ranks reads."""
    if not isinstance(order, OrderSettings):
        return min(1, share)
    covered = order.num_indices / max(1, int(limits.lengths.sum()))
    return covered if order.redeal else covered * min(1, share)


def working_set(
    order: Order, chunksize: int | None, lengths: IntArray, nbytes: FloatArray
) -> WorkingSet:
    """Return the working set of a run: the shards of a chunk, or of a chunk of each source.

    In ascending order, without ``shuffle``, it is one shard at a time.

    Args:
        order: The order.
        chunksize: Largest number of samples in a chunk.
        lengths: Number of samples in each shard of the dataset.
        nbytes: Bytes of each shard.
    """
    num_shards, total_nbytes = 0, 0.0
    size = chunksize if order.shuffle else None
    for shards, starts, stops in order.chunk_shards(size, lengths):
        if len(starts):
            filled = np.append(0, np.cumsum(lengths[shards] > 0))
            sums = np.append(0, np.cumsum(nbytes[shards]))
            num_shards += int((filled[stops] - filled[starts]).max())
            total_nbytes += float((sums[stops] - sums[starts]).max())
    return WorkingSet(num_shards, total_nbytes)


def fitting_chunksize(order: Order, limits: Capacity, num_working_sets: int = 1) -> int:
    """Return the largest chunksize, up to the default one, with which an order fits.

    A pure function, so that all ranks choose alike if their limits are alike. A quarter of the
    cache is for the working set: the rest is for shards that are fetched ahead or were just read.
    Where the cache does not hold the whole dataset, no shard is cut, even if it is longer than the
    default: each chunk of it would download it again.

    Args:
        order: The order, with any chunks.
        limits: What the machine can hold.
        num_working_sets: Number of runs on this machine that are read at the same time.
    """
    share, least = math.inf, 1
    # `not <=` holds for NaN too: shards of unknown length may exceed any cache.
    if limits.cache_nbytes is not None and not limits.nbytes.sum() <= limits.cache_nbytes:
        share = limits.cache_nbytes * CACHE_SHARE / num_working_sets
        least = int(limits.lengths.max(initial=1))
    most = max(DEFAULT_CHUNKSIZE, least)
    while least < most:
        middle = (least + most + 1) // 2
        found = working_set(order, middle, limits.lengths, limits.nbytes)
        if found.num_shards > limits.num_open or found.nbytes > share:
            most = middle - 1
        else:
            least = middle
    return least


@dataclass(frozen=True)
class Machine:
    """What a process shares its cache with, and how much of the dataset they read together.

    Attributes:
        num_runs: Number of runs of each process.
        num_processes: Number of processes on this machine.
        share: The share of the dataset that they read, from 0 to 1.
        ahead_nbytes: Bytes of shards that are fetched ahead.
    """

    num_runs: int = 1
    num_processes: int = 1
    share: float = 1
    ahead_nbytes: int = 0

    @property
    def num_working_sets(self) -> int:
        """Number of runs that are read at the same time."""
        return self.num_runs * self.num_processes


def misfit(order: Order, limits: Capacity, machine: Machine) -> str | None:
    """Return what does not fit, with the settings that do; None if all fits.

    Args:
        order: The order.
        limits: What the machine can hold.
        machine: What else reads there.
    """
    chunksize = order.chunksize
    peak = working_set(order, chunksize, limits.lengths, limits.nbytes)
    cache_nbytes, needed_nbytes = limits.cache_nbytes, float(limits.nbytes.sum()) * machine.share
    chunks = "shards" if chunksize is None else f"chunks of {chunksize} samples"
    if cache_nbytes is not None and needed_nbytes > cache_nbytes:
        nbytes, longest = (
            peak.nbytes * machine.num_working_sets,
            int(limits.lengths.max(initial=0)),
        )
        # Measured: from half of the cache on, shards are evicted before they are read completely.
        if nbytes + machine.ahead_nbytes > cache_nbytes / 2:
            shards = count_text(peak.num_shards * machine.num_working_sets, "shard")
            what = f"{chunks} have up to {shards} ({nbytes_text(nbytes)}) in the working set"
            if machine.ahead_nbytes:
                what += f", {nbytes_text(machine.ahead_nbytes)} are fetched ahead"
            return what + _cure(order, limits, machine)
        if order.shuffle and chunksize is not None and chunksize < longest:
            what = f"{chunks} cut shards of up to {longest}, each part of which is read separately"
            return what + _cure(order, limits, machine)
    num_shards = peak.num_shards * machine.num_runs
    if num_shards > limits.num_open:
        return (
            f"{chunks} are read from up to {count_text(num_shards, 'shard')} at a time, but "
            f"{limits.num_open} stay open (lru_size), so that shards are opened again and again; "
            f"set chunksize={fitting_chunksize(order, limits, machine.num_runs)}, or "
            f"lru_size={num_shards}"
        )
    return None


def _cure(order: Order, limits: Capacity, machine: Machine) -> str:
    """Explain a misfit, with the settings with which each shard is downloaded once."""
    chunksize = order.chunksize
    fitting = (
        None if chunksize is None else fitting_chunksize(order, limits, machine.num_working_sets)
    )
    needed_nbytes = (
        working_set(order, fitting, limits.lengths, limits.nbytes).nbytes * machine.num_working_sets
    )
    cache_nbytes = limits.cache_nbytes or 0
    settings = [] if fitting == chunksize else [f"chunksize={fitting}"]
    if needed_nbytes > cache_nbytes * CACHE_SHARE:
        settings.append(f"cache_size={math.ceil(needed_nbytes / CACHE_SHARE)}")
    # With space for shards that are being fetched when all others are cached.
    everything = math.ceil(limits.nbytes.sum() * machine.share + 3 * limits.nbytes.max(initial=0))
    cures = [" and ".join(settings)] * bool(settings)
    cures.append(f"cache_size={everything}, for all that is read")
    return (
        f", but the cache holds {nbytes_text(cache_nbytes)} (cache_size), so that shards are "
        f"downloaded again and again; set {', or '.join(cures)}"
    )


def uneven_source(
    settings: OrderSettings, num_replicas: int, sources: Mapping[str, IntArray]
) -> str | None:
    """Return a remark on a source that the ranks share unevenly, or None.

    Args:
        settings: An order whose runs are slices of the dataset.
        num_replicas: Number of ranks.
        sources: Start and stop of the ranges of indices of each named dataset.
    """
    n = settings.num_indices
    if settings.redeal or len(sources) < 2 or n < num_replicas:
        return None
    edges = settings.start + run_edges(n, num_replicas)
    for name, ranges in sources.items():
        starts, stops = np.asarray(ranges, np.int64).reshape(-1, 2).T
        # Samples of the source that precede each edge.
        before = np.append(0, np.cumsum(stops - starts))
        number = np.searchsorted(starts, edges, side="right")
        counts = before[number] - np.maximum(0, np.append(0, stops)[number] - edges)
        shares = np.diff(counts) / np.diff(edges)
        if np.ptp(shares) > _UNEVEN:
            each = ", ".join(f"{share:.0%}" for share in shares[:8])
            more = ", …" * (num_replicas > 8)
            return (
                f"the slices of the ranks follow the datasets: [{each}{more}] of their samples are "
                f"from {name!r}; use MixedSampler, which has every dataset in the same proportion "
                "on all ranks, or redeal=True"
            )
    return None
