"""Yield the indices of one rank among many, as a torch ``DistributedSampler``.

It looks up the rank; `wids.order.epoch_order` divides the indices among the ranks, which do not
communicate. Only datasets that each rank had to count are compared, once.
"""

from __future__ import annotations

import os
from collections.abc import Sized
from dataclasses import replace
from typing import Literal

import torch  # noqa: F401 - whole, before its parts: threads must not import both at once
import torch.distributed as dist
from torch.utils.data import DistributedSampler, get_worker_info

from wids.errors import MismatchError
from wids.order import epoch_order
from wids.order.arguments import at_least
from wids.order.chunked import ChunkedSampler
from wids.order.state import divisors, either, lengths_digest
from wids.order.wrapped import may_differ


class DistributedChunkedSampler(ChunkedSampler, DistributedSampler[int]):
    """A `ChunkedSampler` for each rank of a distributed job, all exactly ``len(sampler)`` long.

    Together, before padding, the ranks yield every index once. A rank and number of ranks that are
    not given are looked up at first use: in the process group, then in ``RANK`` and
    ``WORLD_SIZE``; otherwise there is a single process. It is a torch ``DistributedSampler``, so
    trainers do not replace it with their own. specs/sampler-order.md specifies the order.

    Args:
        dataset: The dataset, or anything with ``len()``.
        num_replicas: Number of ranks; None to look it up.
        rank: Rank of this process, from 0; None to look it up.
        num_samples: As in `ChunkedSampler`, for all ranks together.
        chunksize: As in `ChunkedSampler`; with ``"auto"``, all ranks need the same limits.
        seed: Must be the same on all ranks.
        shuffle: False for ascending indices in each rank.
        shufflefirst: False to keep the order of the chunks in epoch 0.
        drop_last: True to make ranks equal by leaving out at most one index per run, instead of
            repeating at most one.
        even: False to neither repeat nor leave out indices, so that lengths of runs differ by at
            most one: for evaluation, where each sample counts once.
        redeal: False to give each rank the same slice of the dataset in every epoch, which suits
            local caches; True to distribute the chunks among the ranks again in each epoch.
        num_canonical: Number of runs that the epoch is cut into; None for one per rank. With a
            fixed number, a step has the same samples on any number of ranks that divides it. A job
            resumes on any number of ranks without it.

    Raises:
        ValueError: The numbers contradict each other.
        MismatchError: In a process group, ranks have counted different samples, since each passes
            over shards that it finds broken (``on_error``). Construct it on all ranks
            then: they compare what they have counted, and wait for each other.

    Example:
        >>> import wids
        >>> ranks = [
        ...     wids.DistributedChunkedSampler(range(7), num_replicas=2, rank=rank)
        ...     for rank in range(2)
        ... ]
        >>> [list(sampler) for sampler in ranks]  # rank 0 repeats its first index
        [[0, 2, 1, 0], [6, 4, 3, 5]]
    """

    _shown: tuple[str, ...] = ("seed", "shuffle", "drop_last", "even", "redeal")

    # It does not call DistributedSampler's, which needs a process group at once.
    def __init__(
        self,
        dataset: Sized,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        num_samples: int | tuple[int, int] | None = None,
        chunksize: int | Literal["auto"] = 2000,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = True,
        drop_last: bool = False,
        even: bool = True,
        redeal: bool = False,
        num_canonical: int | None = None,
    ) -> None:
        super().__init__(
            dataset,
            num_samples=num_samples,
            chunksize=chunksize,
            seed=seed,
            shuffle=shuffle,
            shufflefirst=shufflefirst,
        )
        if drop_last and not even:
            raise ValueError(
                "drop_last=True makes ranks equal and even=False leaves them unequal; choose one"
            )
        self.dataset = dataset  # type: ignore[assignment]  # torch's class has it too
        self.drop_last = bool(drop_last)
        self.even = bool(even)
        self.redeal = bool(redeal)
        self._num_replicas, self.num_canonical = (
            None if number is None else at_least(1, number, name)
            for number, name in ((num_replicas, "num_replicas"), (num_canonical, "num_canonical"))
        )
        self._rank = None if rank is None else at_least(0, rank, "rank")
        if self._num_replicas is not None and self._rank is not None:
            self.replica()  # raises now if they contradict each other
        if may_differ(dataset) and _is_rank_of_group(*self.replica()):
            _compare(type(self).__name__, len(dataset), lengths_digest(self._lengths))

    @property
    def num_runs(self) -> int:  # noqa: D102 - inherited
        num_replicas = self.num_replicas
        num_runs = self.num_canonical or num_replicas
        if num_runs % num_replicas:
            hint = "; without num_canonical, a job resumes on any number of ranks"
            raise ValueError(
                f"num_canonical: expected a multiple of the {num_replicas} ranks, found "
                f"{num_runs}, which {either(divisors(num_runs))} ranks can share"
                f"{hint if self.is_elastic else ''}"
            )
        return num_runs

    def settings_of(self, num_runs: int) -> epoch_order.Settings:  # noqa: D102 - inherited
        return replace(
            super().settings_of(num_runs),
            redeal=self.redeal,
            ending="drop" if self.drop_last else "pad" if self.even else "uneven",
        )

    def replica(self) -> tuple[int, int]:  # noqa: D102 - inherited
        rank, num_replicas = self.rank, self.num_replicas
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank: expected 0 to {num_replicas - 1}, found {rank}")
        return rank, num_replicas

    @property
    def num_replicas(self) -> int:  # type: ignore[override]  # torch has a plain attribute
        """Number of ranks."""
        return _of_process(self._num_replicas, "get_world_size", "WORLD_SIZE", 1)

    @property
    def rank(self) -> int:  # type: ignore[override]  # torch has a plain attribute
        """Rank of this process."""
        return _of_process(self._rank, "get_rank", "RANK", 0)

    @property
    def num_samples(self) -> int:  # type: ignore[override]  # torch has a plain attribute
        """Number of indices that this rank yields, under torch's name for it."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]  # torch has a plain attribute
        """Number of indices that all ranks yield together, under torch's name for it."""
        settings, num_replicas = self.settings, self.num_replicas
        return sum(epoch_order.rank_length(settings, r, num_replicas) for r in range(num_replicas))


def _is_rank_of_group(rank: int, num_replicas: int) -> bool:
    """Whether a rank is that of this process in the process group."""
    if not _has_group() or get_worker_info() is not None:
        return False
    return (rank, num_replicas) == (dist.get_rank(), dist.get_world_size()) and num_replicas > 1


def _compare(name: str, length: int, digest: str) -> None:
    """Raise on all ranks unless all have the same samples (ORDER-65)."""
    # By gloo, since objects need a GPU of this rank otherwise, which may not be chosen yet.
    group = None if "gloo" in dist.get_backend() else dist.new_group(backend="gloo")
    found: list[tuple[int, str]] = [(0, "")] * dist.get_world_size()
    dist.all_gather_object(found, (length, digest), group=group)
    if group is not None:
        dist.destroy_process_group(group)
    others = [rank for rank, each in enumerate(found) if each != found[0]]
    if others:
        (first, _), (second, _) = found[0], found[others[0]]
        raise MismatchError(
            f"{name}: expected the same samples on all ranks, found {first} on rank 0 and "
            f"{second}{' others' if first == second else ''} on rank {others[0]}; their datasets "
            "pass over different shards, whose counts are not stated: state them with `wids "
            "create`, or make the same shards readable on all ranks"
        )


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _of_process(chosen: int | None, ask: str, name: str, least: int) -> int:
    """Return a number that the caller chose, or else that of the process group or environment."""
    if chosen is not None:
        return chosen
    if _has_group():
        return int(getattr(dist, ask)())  # which torch has not, where it has no groups
    text = os.environ.get(name, str(least))
    return at_least(least, int(text) if text.isdecimal() else text, f"${name}")
