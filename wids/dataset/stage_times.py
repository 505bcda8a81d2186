"""Say where the time of a training loop goes, what bounds it, and which setting to change."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Final

from wids.storage.checksums import fastest_crc32
from wids.storage.stages import COUNTS, SECONDS

READY: Final = 0.1
"""A loop that waits for a smaller part of its time is bound by itself."""
_CHECK_SHARE: Final = 0.1
"""From this share of all stages on, quicker checksums are worth their installation."""

LABELS: Final = {
    "fetch": "network",
    "open": "opening shards",
    "read": "disk",
    "check": "check",
    "decode": "decode",
    "transform": "transform",
    "collate": "collate",
    "between": "between batches",
}
"""What tables call the stages."""

ADVICE: Final = {
    "loop": "batches are ready when the loop wants them; nothing here would make it faster",
    "network": "fetch shards ahead with wids.Prefetcher, let more workers wait at the same time "
    "(num_workers), read only the fields that are needed (fields=), or copy the shards nearer",
    "disk": "move the shards to a faster disk, read only the fields that are needed (fields=), or "
    "read shard by shard (wids.ChunkedSampler), so that the system can read ahead",
    "index": "store indexes beside the shards (`wids create`), so that none is made when a shard "
    "is opened",
    "check": 'install wids[fast], whose checksums are quicker, or compare none: verify="never"',
    "decode": "install wids[turbo], which decodes JPEGs faster, or decode pictures no larger than "
    "needed (Decoder(at_least=…)), leave fields out that are not needed (fields=), or store "
    "smaller ones (wids.rewrite)",
    "transform": "make the transformations faster, or do their first part once and store the "
    "result (wids.rewrite)",
    "collate": "use wids.collate, which shares the memory of large tensors, and make samples "
    "smaller before they are collated",
    "workers": "use more workers (num_workers): there are processors without one",
    "cache": 'make cache_size larger, or chunks smaller (chunksize="auto"): '
    "copies were evicted while the loop ran",
    "chunk": "make chunks smaller (chunksize), or lru_size larger: shards were closed and opened "
    "again while the loop ran",
    "hand-over": "workers wait though the loop does too: send smaller batches (wids.collate shares "
    "the memory of large tensors), or look into the dataset around the wids.ShardListDataset",
}
"""What to change, by what bounds a loop. `wids bench` has the same names and advice."""

_PACKAGES: Final = {"check": "zlib_ng", "decode": "simplejpeg"}
"""What the extras install that some advice begins with."""


def usable_processors() -> int:
    """Return how many processors a rank can use."""
    try:
        num_processors = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        num_processors = os.cpu_count() or 1
    stated = os.environ.get("LOCAL_WORLD_SIZE", "")
    num_ranks = int(stated) if stated.isascii() and stated.isdecimal() else 1
    return max(1, num_processors // max(1, num_ranks))


@dataclass(frozen=True, repr=False)
class StageTimes:
    """Where the time of a training loop went, over all of its workers.

    Attributes:
        seconds: Seconds by stage, as docs/slow.md explains them, summed over the processes that
            read; ``"between"`` is what workers do between two batches.
        counts: The counts of ``dataset.stats()``.
        loop_s: Seconds of the loop.
        wait_s: Seconds that it waited for a batch.
        num_batches: Batches that it received.
        num_workers: Workers of the loader; 0 if the loop itself reads.
        num_processors: Processors that a rank can use.
        num_ranks: Ranks whose numbers are summed here; seconds of the loop are summed too.
    """

    seconds: Mapping[str, float]
    counts: Mapping[str, float]
    loop_s: float
    wait_s: float
    num_batches: int
    num_workers: int = 0
    num_processors: int = field(default_factory=usable_processors)
    num_ranks: int = 1

    @property
    def wait_share(self) -> float:
        """The share of its time that the loop waited for data."""
        return self.wait_s / self.loop_s if self.loop_s > 0 else 0.0

    @property
    def bottleneck(self) -> str:
        """What bounds the loop: a key of `ADVICE`."""
        if self.wait_share < READY:
            return "loop"
        busy = {name: self.seconds[name] for name in SECONDS if name != "between"}
        largest, all_s = max(busy, key=lambda name: busy[name]), sum(busy.values())
        if not all_s or (self.num_workers and self.seconds["between"] > all_s):
            return "hand-over"
        if largest in ("fetch", "open") and self.counts["evictions"]:
            return "cache"
        if largest == "open":
            is_again = 2 * self.counts["reopenings"] > self.counts["openings"]
            return "chunk" if is_again else "index"
        if largest in ("check", "decode", "transform") and self.num_workers < self.num_processors:
            return "workers"
        return LABELS[largest]

    @property
    def advice(self) -> str:
        """Which setting to change."""
        text, check = ADVICE[self.bottleneck], self.stages["check"][1]
        package = _PACKAGES.get(self.bottleneck)
        if package and find_spec(package):
            # What is installed is no advice. That it is missing comes first, and ends with "or".
            text = text.partition(" or ")[2]
        is_slow = self.bottleneck not in ("loop", "check") and check >= _CHECK_SHARE
        if not is_slow or fastest_crc32() is not zlib.crc32:
            return text
        return f"install wids[fast]: checksums are {check:.0%} of all stages; {text}"

    def as_dict(self) -> dict[str, float]:
        """Return all numbers by name, for monitoring.

        Example:
            >>> times = StageTimes(dict.fromkeys(SECONDS, 0.5), dict.fromkeys(COUNTS, 8), 9, 3, 2)
            >>> times.as_dict()["decode_s"], round(times.as_dict()["wait_share"], 2)
            (0.5, 0.33)
        """
        return {
            "loop_s": self.loop_s,
            "wait_s": self.wait_s,
            "wait_share": self.wait_share,
            "batches": self.num_batches,
            **{f"{name}_s": self.seconds[name] for name in SECONDS},
            **self.counts,
        }

    @property
    def stages(self) -> dict[str, tuple[float, float]]:
        """Milliseconds a sample, and the share of all stages, by what tables call a stage."""
        num_samples, all_s = max(1.0, self.counts["samples"]), sum(self.seconds.values())
        return {
            LABELS[name]: (1e3 * seconds / num_samples, seconds / all_s if all_s else 0.0)
            for name, seconds in self.seconds.items()
        }

    def __repr__(self) -> str:
        stages = self.stages.items()
        table = [f"{label:<16}{each:>12.3f}{share:>8.0%}" for label, (each, share) in stages]
        whose = "the loop" if self.num_ranks == 1 else f"the loops of {self.num_ranks} ranks"
        waited = f"{whose} waited {self.wait_share:.0%} of {self.loop_s:.1f} s"
        return "\n".join(
            (
                f"{'stage':<16}{'ms a sample':>12}{'share':>8}",
                *table,
                f"{waited}: {self.num_batches} batches, {self.counts['samples']:.0f} samples",
                f"bottleneck: {self.bottleneck}: {self.advice}",
            )
        )


def added(times: StageTimes, other: StageTimes, sign: int = 1) -> StageTimes:
    """Return the sum of the numbers of two loops; with -1 for ``sign`` their difference."""

    def total(numbers: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
        return {name: number + sign * others[name] for name, number in numbers.items()}

    return replace(
        times,
        seconds=total(times.seconds, other.seconds),
        counts=total(times.counts, other.counts),
        loop_s=times.loop_s + sign * other.loop_s,
        wait_s=times.wait_s + sign * other.wait_s,
        num_batches=times.num_batches + sign * other.num_batches,
    )


def stage_times(
    counted: Mapping[str, float], own_between_s: float = 0.0, **about: Any
) -> StageTimes:
    """Return the `StageTimes` of numbers as `stages.counted` returns them.

    Args:
        counted: The numbers.
        own_between_s: Seconds between batches of the process that runs the loop, which belong to
            the loop.
        about: What else there is to say of the loop.
    """
    seconds = {name: counted[f"{name}_s"] for name in SECONDS}
    seconds["between"] -= own_between_s
    return StageTimes(seconds, {name: counted[name] for name in COUNTS}, **about)
