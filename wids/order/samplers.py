"""Yield shuffled chunks of shuffled indices, on one rank or among many, as torch samplers.

The shuffle is in `wids.order.epoch_order`; passes and states are in `wids.order.passes`.

`DistributedChunkedSampler` looks up the rank. Ranks do not communicate. Only datasets that each
rank had to count are compared, once.
"""

from __future__ import annotations

import gc
import math
import operator
import os
import sys
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import torch  # noqa: F401 - whole, before its parts: threads must not import both at once
import torch.distributed as dist
from torch.utils.data import DistributedSampler, get_worker_info

from wids.errors import MismatchError, warn
from wids.order import epoch_order, fit
from wids.order.arguments import (
    at_least,
    index_range,
    may_differ,
    shard_lengths,
    tell_epoch,
    warn_of_unsorted_view,
    with_epochs,
)
from wids.order.elastic import (
    EpochPlace,
    History,
    digest_of,
    divisors,
    either,
    fingerprint,
    rest_of_epoch,
)
from wids.order.passes import EpochSampler
from wids.order.sequences import EpochOrder, RankSequence
from wids.storage.arrays import IntArray

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


_BLOCK_LENGTH: Final = 1 << 14
"""Number of indices that become Python ints at once; a large chunk would delay its first index."""


class ChunkedSampler(EpochSampler[int]):
    """Yield shuffled chunks of shuffled indices: random enough to train, local enough to read.

    Chunks follow the shards of a dataset that has ``lengths``; otherwise they are plain ranges.
    ``len()`` is the length of a full pass, even after a restore. A pass takes its epoch when
    ``iter()`` is called. ``set_epoch`` fixes the epoch, so call it before each pass; a second full
    pass without such a call repeats the order, and warns. Until ``set_epoch`` is called for the
    first time, each pass that is read to its end advances the epoch by one, and after a pass that
    is left early the next one starts where it started. specs/sampler-order.md specifies the order.
    Samplers are not safe to share between threads.

    Args:
        dataset: The dataset, or anything with ``len()``.
        num_samples: A count (indices 0 to n-1) or a ``(start, stop)`` pair; None for all.
        chunksize: Largest number of samples in a chunk. Larger chunks shuffle more and keep more
            shards open. ``"auto"`` for 2000, or what fits into the dataset's ``cache_size`` and
            ``lru_size``, which must then be the same on all ranks; a state has the chosen number.
        seed: Different seeds give unrelated orders.
        shuffle: False for ascending indices.
        shufflefirst: False to keep the order of the chunks in epoch 0.
        dslength_per_replica: What ``len()`` returns, as in the old library, where programs cut the
            dataset for the ranks themselves; -1 for the true length. `DistributedChunkedSampler`
            makes ranks equal.

    Raises:
        ValueError: ``num_samples`` exceeds the dataset, a number is too small or not an integer, or
            ``dataset.lengths`` do not add up to its length.

    Example:
        >>> import wids
        >>> sampler = wids.ChunkedSampler(range(6), chunksize=3)
        >>> list(sampler), list(sampler)
        ([5, 4, 3, 0, 2, 1], [2, 0, 1, 4, 3, 5])
    """

    _num_peers = 1
    """Number of processes that yield the same samples."""
    _latest_order: tuple[Any, EpochOrder] | None = None
    _stated_length: int | None = None
    _shown: tuple[str, ...] = ("seed", "shuffle")

    def __init__(
        self,
        dataset: Sized,
        *,
        num_samples: int | tuple[int, int] | None = None,
        chunksize: int | Literal["auto"] = 2000,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = True,
        dslength_per_replica: int = -1,
    ) -> None:
        if chunksize != "auto":
            chunksize = at_least(1, chunksize, "chunksize")
        if dslength_per_replica > 0:
            self._stated_length = operator.index(dslength_per_replica)
        self._set_up(dataset, None, num_samples, chunksize, seed, shuffle, shufflefirst)

    def _set_up(
        self,
        dataset: Sized,
        lengths: Sequence[int] | None,
        num_samples: int | tuple[int, int] | None,
        chunksize: int | Literal["auto"] | None,
        seed: int,
        shuffle: bool,
        shufflefirst: bool,
    ) -> None:
        self.dataset = dataset
        self._is_fit_checked = False
        self._lengths = shard_lengths(dataset, lengths)
        if shuffle and lengths is None:  # unshuffled, the order is the view's, as it was chosen
            warn_of_unsorted_view(dataset, len(self._lengths), type(self).__name__)
        self._tell_epoch = partial(tell_epoch, list(with_epochs(dataset)))
        self._range = index_range(num_samples, int(self._lengths.sum()))
        self.seed = at_least(0, seed, "seed")
        self.shuffle = bool(shuffle)
        self.shufflefirst = bool(shufflefirst)
        self.chunksize: int | None = None
        if chunksize == "auto":
            self.chunksize = self._fitting_chunksize(ChunkedSampler._settings_of(self, 1))
        elif chunksize is not None:
            self.chunksize = min(chunksize, 1 << 62)  # numpy's integers end at 1 << 63
        self.dataset_length = len(dataset)
        self._set_up_passes()

    def __repr__(self) -> str:
        """Return the number of samples, the settings, the epoch and the rank."""
        rank, num_replicas = self._replica()
        start, stop = self._range
        shown = [
            f"{self.dataset_length:,} samples",
            f"indices {start:,} to {stop:,}" if stop - start != self.dataset_length else "",
            "" if self.chunksize is None else f"chunksize={self.chunksize}",
            *(f"{name}={getattr(self, name)!r}" for name in self._shown),
            f"epoch {self.epoch}",
            f"rank {rank} of {num_replicas}" if num_replicas > 1 else "",
        ]
        return f"<{type(self).__name__}: {', '.join(filter(None, shown))}>"

    def _fitting_chunksize(self, settings: epoch_order.Order) -> int:
        limits = getattr(self.dataset, "limits", None)
        return fit.fitting_chunksize(settings, limits) if limits else fit.DEFAULT_CHUNKSIZE

    @property
    def settings(self) -> epoch_order.OrderSettings:
        """What the order depends on, besides seed, epoch and rank."""
        return self._settings_of(self._num_runs)

    def _settings_of(self, num_runs: int) -> epoch_order.OrderSettings:
        """Return the settings of an epoch that is cut into so many runs."""
        return epoch_order.OrderSettings(
            self._lengths,
            *self._range,
            self.chunksize,
            self.shuffle,
            self.shufflefirst,
            num_runs,
        )

    @property
    def _num_runs(self) -> int:
        return 1

    def _replica(self) -> tuple[int, int]:
        return 0, 1

    def __len__(self) -> int:
        return super().__len__() if self._stated_length is None else self._stated_length

    def _order_of(self, history: History) -> epoch_order.Runs:
        """Return what this job reads of an epoch after the parts of a history."""
        return rest_of_epoch(self.settings, history) if history else self.settings

    def _num_items(self, place: EpochPlace) -> int:
        return epoch_order.rank_length(self._order_of(place.history), *self._replica())

    def _is_over(self, place: EpochPlace) -> bool:
        # The last run is as long as any.
        return not self._order_of(place.history).run_length(self._num_runs - 1)

    def _most_items(self, num_runs: int) -> int:
        # One round more than the indices, because padding adds at most one index to each run.
        return self._settings_of(num_runs).num_indices + num_runs

    def _blocks(self, start: EpochPlace) -> Iterator[list[int]]:
        self._check_fit(self.dataset)
        rank, num_replicas = self._replica()
        for block in epoch_order.rank_blocks(
            self._order_of(start.history),
            self.seed,
            start.epoch,
            rank,
            num_replicas,
            start.position,
        ):
            for at in range(0, len(block), _BLOCK_LENGTH):
                yield block[at : at + _BLOCK_LENGTH].tolist()

    def run_blocks(
        self, settings: epoch_order.Order, epoch: int
    ) -> Callable[[int], Iterator[IntArray]]:
        """Return what yields the indices of a run of an epoch with these settings."""
        self._check_fit(self.dataset)
        # Of functions and numbers alone: batches go where there is no torch.
        num_runs = settings.num_runs
        return partial(epoch_order.rank_blocks, settings, self.seed, epoch, num_replicas=num_runs)

    def _sequence(self, place: EpochPlace) -> RankSequence:
        self._check_fit(self.dataset)
        rank, _ = self._replica()
        return RankSequence(self._order_at(place), rank, range(self._num_items(place)))

    def _steps_at(self, index: int, place: EpochPlace) -> list[tuple[int, int]]:
        return self._order_at(place).steps(index)

    def _order_at(self, place: EpochPlace) -> EpochOrder:
        """Return the look-up of a part of an epoch; the latest one is kept, with its chunks."""
        _, num_replicas = self._replica()
        key = place.epoch, place.history, num_replicas, self._fingerprint()
        if self._latest_order is None or self._latest_order[0] != key:
            runs = self._order_of(place.history)
            self._latest_order = key, EpochOrder(runs, self.seed, place.epoch, num_replicas)
        return self._latest_order[1]

    def _check_fit(self, dataset: Any, ahead_nbytes: int = 0) -> None:
        """Warn once if the order does not fit the dataset, such as its cache.

        Args:
            dataset: The dataset; one that is not from wids states no limits.
            ahead_nbytes: Bytes of shards that are fetched ahead.
        """
        if not self._is_fit_checked:
            self._is_fit_checked = True
            for remark in self._remarks(dataset, ahead_nbytes):
                warn(f"{type(self).__name__}: {remark}")

    def _remarks(self, dataset: Any, ahead_nbytes: int) -> Iterator[str]:
        """Yield what `_check_fit` warns of."""
        _, num_replicas = self._replica()
        yield from fit.remarks(dataset, self.settings, num_replicas, ahead_nbytes, self._num_peers)

    def _fingerprint(self) -> dict[str, Any]:
        # Hashed once: a loader takes a state at every step, and there may be 100,000 shards.
        if not hasattr(self, "_lengths_digest"):
            self._lengths_digest = digest_of(self._lengths)
        return fingerprint(self.settings, self.seed, self._lengths_digest)


class ShardListSampler(ChunkedSampler):
    """Yield shard after shard in shuffled order, with the indices inside each shard shuffled.

    Each shard is one chunk. Otherwise it behaves like `ChunkedSampler`.

    Args:
        dataset: The dataset.
        lengths: Number of samples in each shard; None for ``dataset.lengths``.
        seed: Different seeds give unrelated orders.
        shuffle: False for ascending indices.
        shufflefirst: False to keep the order of the shards in epoch 0.

    Raises:
        ValueError: ``lengths`` are not counts of the dataset's samples, or ``seed`` is negative.
        TypeError: A Series of lengths may be in another order.

    Example:
        >>> import wids
        >>> list(wids.ShardListSampler(range(6), lengths=[2, 4]))
        [5, 4, 3, 2, 0, 1]
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        lengths: Sequence[int] | None = None,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = True,
    ) -> None:
        self._set_up(dataset, lengths, None, None, seed, shuffle, shufflefirst)


ShardedSampler = ShardListSampler


_SHARED: Final = frozenset(("tp", "cp", "pp"))
"""Dimensions of a mesh whose ranks need the same samples, by the names that torchtitan uses."""


class DistributedChunkedSampler(ChunkedSampler, DistributedSampler[int]):
    """A `ChunkedSampler` for each rank of a distributed job, all exactly ``len(sampler)`` long.

    Together, before padding, the ranks yield every index once. A rank and number of ranks that are
    not given are looked up at first use: in the process group, then in ``RANK`` and
    ``WORLD_SIZE``; otherwise there is a single process. It is a torch ``DistributedSampler``, so
    trainers do not replace it with their own. specs/sampler-order.md specifies the order.

    Processes that hold parts of one model (tensor, pipeline or context parallelism) need the same
    samples, and share a rank: pass ``mesh``, or ``replication``, or for a process group
    ``rank=get_rank(group), num_replicas=get_world_size(group)``. docs/trainers.md has the names of
    Megatron and torchtitan.

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
        mesh: The data-parallel dimension of a ``torch.distributed`` ``DeviceMesh``, such as
            ``mesh["dp"]``: processes with the same coordinate in it yield the same samples. In
            place of ``rank`` and ``num_replicas``. A name with ``tp``, ``cp`` or ``pp`` is an
            error, since ranks of that dimension need the same samples.
        replication: Number of neighbouring processes that yield the same samples: ``0`` to
            ``replication - 1``, and so on. In place of ``rank`` and ``num_replicas``; 1 states that
            no processes share.

    Raises:
        ValueError: The numbers contradict each other, ``mesh`` has several dimensions, another one,
            or not this process, or ``replication`` does not divide the number of processes.
        TypeError: ``mesh`` is not a ``DeviceMesh``.
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
        mesh: DeviceMesh | None = None,
        replication: int | None = None,
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
        self.drop_last = bool(drop_last)
        self.even = bool(even)
        self.redeal = bool(redeal)
        self._num_replicas, self.num_canonical = (
            None if number is None else at_least(1, number, name)
            for number, name in ((num_replicas, "num_replicas"), (num_canonical, "num_canonical"))
        )
        self._rank = None if rank is None else at_least(0, rank, "rank")
        arguments = {
            "num_replicas": num_replicas,
            "rank": rank,
            "mesh": mesh,
            "replication": replication,
        }
        names = [name for name, value in arguments.items() if value is not None]
        if ("mesh" in names or "replication" in names) and len(names) > 1:
            raise ValueError(
                f"{type(self).__name__}: expected either mesh, or replication, or rank and "
                f"num_replicas, found {' and '.join(names)}; choose one"
            )
        self._is_told = bool(names)
        self._replication = 1 if replication is None else at_least(1, replication, "replication")
        self._num_peers = self._replication
        if mesh is not None:
            # As numbers: a mesh has process groups, which are not of the workers of a loader.
            self._rank, self._num_replicas = _rank_in(mesh)
            self._num_peers = max(1, dist.get_world_size() // self._num_replicas)
        if self._num_replicas is not None and self._rank is not None:
            self._replica()  # raises now if they contradict each other
        if may_differ(dataset) and self._is_of_job(mesh):
            digest = digest_of(self._lengths)
            _compare(type(self).__name__, len(dataset), digest, _whole(mesh))

    def _is_of_job(self, mesh: Any) -> bool:
        """Whether it was made for the rank of this process in the process group."""
        if not _has_group() or get_worker_info() is not None or dist.get_world_size() < 2:
            return False
        is_alone = self._replica() == (dist.get_rank(), dist.get_world_size())
        return is_alone or mesh is not None or self._num_peers > 1

    def _remarks(self, dataset: Any, ahead_nbytes: int) -> Iterator[str]:
        if not self._is_told and (what := _model_parallelism()):
            yield (
                f"{what}, so that some ranks need the same samples, but each rank yields its own; "
                'pass mesh=mesh["dp"] (of dimensions that share no samples), replication=n for n '
                "neighbouring ranks that share, rank= and num_replicas= of a process group, or "
                "replication=1 if each rank needs its own"
            )
        yield from super()._remarks(dataset, ahead_nbytes)

    @property
    def _num_runs(self) -> int:
        num_replicas = self.num_replicas
        num_runs = self.num_canonical or num_replicas
        if num_runs % num_replicas:
            hint = "; without num_canonical, a job resumes on any number of ranks"
            raise ValueError(
                f"num_canonical: expected a multiple of the {num_replicas} ranks, found "
                f"{num_runs}, which {either(divisors(num_runs))} ranks can share"
                f"{hint if self._is_elastic else ''}"
            )
        return num_runs

    def _settings_of(self, num_runs: int) -> epoch_order.OrderSettings:
        return replace(
            super()._settings_of(num_runs),
            redeal=self.redeal,
            ending="drop" if self.drop_last else "pad" if self.even else "uneven",
        )

    def _replica(self) -> tuple[int, int]:
        rank, num_replicas = self.rank, self.num_replicas
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank: expected 0 to {num_replicas - 1}, found {rank}")
        return rank, num_replicas

    @property
    def num_replicas(self) -> int:  # type: ignore[override]  # torch has a plain attribute
        """Number of ranks; processes that share their samples are one rank."""
        number = _of_process(self._num_replicas, "get_world_size", "WORLD_SIZE", 1)
        if number % self._replication:
            raise ValueError(
                f"replication: expected a divisor of the {number} processes of the job, "
                f"{either(divisors(number))}, found {self._replication}"
            )
        return number // self._replication

    @property
    def rank(self) -> int:  # type: ignore[override]  # torch has a plain attribute
        """Rank of this process, which it may share with others."""
        return _of_process(self._rank, "get_rank", "RANK", 0) // self._replication

    @property
    def num_samples(self) -> int:  # type: ignore[override]  # torch has a plain attribute
        """Number of indices that this rank yields, under torch's name for it."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]  # torch has a plain attribute
        """Number of indices that all ranks yield together, under torch's name for it."""
        settings, num_replicas = self.settings, self.num_replicas
        return sum(epoch_order.rank_length(settings, r, num_replicas) for r in range(num_replicas))


def _rank_in(mesh: Any) -> tuple[int, int]:
    """Return the rank of this process in a mesh of one dimension, and its number of ranks."""
    if not hasattr(mesh, "get_coordinate"):
        raise TypeError(
            'mesh: expected a DeviceMesh, such as mesh["dp"], found '
            f"{type(mesh).__name__}; for a process group pass rank=get_rank(group), "
            "num_replicas=get_world_size(group)"
        )
    if mesh.ndim != 1:
        raise ValueError(
            f"mesh: expected one dimension, found {mesh.ndim} {tuple(mesh.mesh_dim_names or ())}; "
            'pass the one whose ranks have samples of their own, such as mesh["dp"], or several as '
            'one, such as mesh["dp_replicate", "dp_shard"]._flatten()'
        )
    (name,) = mesh.mesh_dim_names or ("",)
    if not _SHARED.isdisjoint(name.split("_")):  # "dp_cp", as torchtitan flattens, has cp in it
        raise ValueError(
            f'mesh: expected a dimension whose ranks have samples of their own, found "{name}", '
            'whose ranks need the same ones; pass mesh["dp"], or if the name means something else, '
            "rank=mesh.get_local_rank() and num_replicas=mesh.size()"
        )
    coordinate = mesh.get_coordinate() if _has_group() else None
    if coordinate is None:
        raise ValueError(
            "mesh: expected a mesh that has this process, of a process group that is initialised, "
            f"found {mesh!r:.200}; make the sampler between init_process_group and "
            "destroy_process_group, on the ranks of the mesh"
        )
    return int(coordinate[0]), mesh.size()


def _model_parallelism() -> str | None:
    """Return what shows that ranks of this job hold parts of one model; None if nothing does."""
    if not _has_group() or dist.get_world_size() < 2:
        return None
    state: Any = sys.modules.get("megatron.core.parallel_state")
    if state is not None and state.model_parallel_is_initialized():
        names = "tensor_model", "pipeline_model", "context"
        sizes = {name: getattr(state, f"get_{name}_parallel_world_size")() for name in names}
        if math.prod(sizes.values()) > 1:
            found = ", ".join(f"{name}={size}" for name, size in sizes.items() if size > 1)
            return f"Megatron's parallel_state has parallel groups ({found})"
    meshes: Any = sys.modules.get("torch.distributed.device_mesh")
    # torch has no list of meshes that is public (decision 0044).
    for mesh in gc.get_referrers(meshes.DeviceMesh) if hasattr(meshes, "DeviceMesh") else ():
        if type(mesh) is meshes.DeviceMesh:
            dims = mesh.mesh_dim_names or ()
            if shared := [n for at, n in enumerate(dims) if n in _SHARED and mesh.size(at) > 1]:
                return f"a DeviceMesh has the dimensions {', '.join(dims)} ({', '.join(shared)})"
    return None


def _whole(mesh: Any) -> Any:
    """Return the mesh of which a mesh may be a part; None if it has all processes of the job."""
    # Torch has no public name for it (decision 0044).
    whole = mesh if mesh is None else getattr(mesh, "_get_root_mesh", lambda: mesh)()
    return None if whole is None or whole.mesh.numel() == dist.get_world_size() else whole


def _compare(name: str, length: int, digest: str, mesh: Any) -> None:
    """Raise on all ranks, or on those of a mesh, unless they have the same samples."""
    own = None
    if mesh is not None:  # the other processes make no sampler, and would be waited for
        groups = [mesh.get_group(dim) for dim in range(mesh.ndim)]
    else:
        # By gloo, since objects need a GPU of this rank otherwise, which may not be chosen yet.
        own = None if "gloo" in dist.get_backend() else dist.new_group(backend="gloo")
        groups = [own]
    counts = [(dist.get_rank(), length, digest)]
    for group in groups:  # along one dimension after the other
        parts: list[list[tuple[int, int, str]]] = [[]] * dist.get_world_size(group)
        dist.all_gather_object(parts, counts, group=group)
        counts = sorted(each for part in parts for each in part)
    if own is not None:
        dist.destroy_process_group(own)
    rank, first, digest = counts[0]
    for other, second, each in counts:
        if (second, each) != (first, digest):
            raise MismatchError(
                f"{name}: expected the same samples on all ranks, found {first} on rank {rank} and "
                f"{second}{' others' if first == second else ''} on rank {other}; their datasets "
                "pass over different shards, whose counts are not stated: state them with "
                "`wids create`, or make the same shards readable on all ranks"
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
