"""torch samplers over `wids.sampling.order`: rank, epoch and position, and nothing about files.

Each sampler wraps one pure order and adds what a training loop needs: the epoch to use next, the
ranks, and a state to go on from.
"""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Iterator, Mapping, Sequence, Sized
from itertools import chain
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.utils.data import DistributedSampler, Sampler

from wids.errors import StateError
from wids.sampling import order

_PART_LENGTH = 1 << 14
"""Indices that become Python ints at a time, so that the first of a large chunk comes soon."""


class _Pass:
    """One pass over the indices of an epoch; knows its position without counting every index."""

    def __init__(self, epoch: int, start: int) -> None:
        self.epoch = epoch
        self.start = start
        self.is_begun = False
        self._block_stop = start
        self._block: Iterator[int] = iter(())

    def enter(self, block: list[int]) -> Iterator[int]:
        self.is_begun = True
        self._block_stop += len(block)
        self._block = iter(block)
        return self._block

    @property
    def position(self) -> int:
        return self._block_stop - operator.length_hint(self._block)


class ChunkedSampler(Sampler[int]):
    """Shuffled chunks of shuffled indices: random enough to train, local enough to read.

    Chunks follow the shards of the dataset where it has ``lengths``, and are plain ranges
    otherwise. ``len()`` is that of a full pass. A pass takes its epoch when ``iter()`` is called.
    ``set_epoch`` fixes the epoch; until it is called, each pass that was read to its end moves on
    to the next epoch. Not safe to share between threads.

    Args:
        dataset: The dataset, or anything with ``len()``.
        num_samples: A count (indices 0 to n-1) or a ``(start, stop)`` pair; None for all.
        chunksize: Most samples in a chunk. Larger chunks shuffle more and need more open shards.
        seed: Orders of different seeds have nothing in common.
        shuffle: False gives ascending indices.
        shufflefirst: False keeps the order of the chunks in epoch 0.

    Raises:
        ValueError: ``num_samples`` is not in the dataset, or another number is negative.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        num_samples: int | tuple[int, int] | None = None,
        chunksize: int = 2000,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = True,
    ) -> None:
        chunksize = _at_least(1, chunksize, "chunksize")
        self._set_up(dataset, None, num_samples, chunksize, seed, shuffle, shufflefirst)

    def _set_up(
        self,
        dataset: Sized,
        lengths: Sequence[int] | None,
        num_samples: int | tuple[int, int] | None,
        chunksize: int | None,
        seed: int,
        shuffle: bool,
        shufflefirst: bool,
    ) -> None:
        self._lengths = _lengths(dataset, lengths)
        total = int(self._lengths.sum())
        self._range = _range(num_samples, total)
        self.chunksize = chunksize and min(chunksize, 1 << 62)  # more is too large for an array
        self.seed = _at_least(0, seed, "seed")
        self.shuffle = bool(shuffle)
        self.shufflefirst = bool(shufflefirst)
        self.epoch = 0
        self._is_fixed = False
        self._resume_at = 0
        self._pass: _Pass | None = None

    @property
    def settings(self) -> order.Settings:
        """What the order depends on, beside seed, epoch and rank."""
        return order.Settings(
            self._lengths, *self._range, self.chunksize, self.shuffle, self.shufflefirst
        )

    def _replica(self) -> tuple[int, int]:
        """Give rank and number of replicas."""
        return 0, 1

    def __len__(self) -> int:
        return order.rank_length(self.settings, *self._replica())

    def __iter__(self) -> Iterator[int]:
        self._pass = _Pass(self.epoch, self._resume_at)
        return chain.from_iterable(self._blocks(self._pass))

    def _blocks(self, this: _Pass) -> Iterator[Iterator[int]]:
        # Blocks of plain ints, chained in C: tens of nanoseconds for an index.
        rank, num_replicas = self._replica()
        for block in order.rank_blocks(
            self.settings, self.seed, this.epoch, rank, num_replicas, this.start
        ):
            for start in range(0, len(block), _PART_LENGTH):
                yield this.enter(block[start : start + _PART_LENGTH].tolist())
        if self.epoch == this.epoch:
            self._resume_at = 0
            if not self._is_fixed:
                self.epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the passes to come. A restored position stays in its own epoch only."""
        epoch = _at_least(0, epoch, "epoch")
        if epoch != self.epoch:
            self._resume_at = 0
        if self._pass is not None and epoch != self._pass.epoch:
            self._pass = None
        self.epoch = epoch
        self._is_fixed = True

    def state_dict(self, num_consumed: int | None = None) -> dict[str, Any]:
        """Give what `load_state_dict` needs to go on from here; JSON-able.

        It is the same on all ranks that have consumed as many samples; with ``even=False`` ranks
        may end one after the other, and differ there.

        Args:
            num_consumed: Samples of the latest pass that training on this rank has consumed. With
                a plain DataLoader, whose workers run ahead of training, only the caller knows; it
                may count a last, incomplete batch as full. None takes what the sampler handed out.
        """
        rank, num_replicas = self._replica()
        length = order.rank_length(self.settings, rank, num_replicas)
        epoch, start, position = self.epoch, self._resume_at, self._resume_at
        if self._pass is not None:
            epoch, start, position = self._pass.epoch, self._pass.start, self._pass.position
        if num_consumed is not None:
            position = start + _at_least(0, num_consumed, "num_consumed")
        if position >= length:
            epoch, position = epoch + 1, 0
        return {
            "epoch": epoch,
            "is_fixed": self._is_fixed,
            "position": position * num_replicas,
            "num_replicas": num_replicas,
            "fingerprint": self._fingerprint(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next pass is the rest of its epoch.

        Where a pass was created and not begun, which is when torchdata's loader restores, an epoch
        that was set for it goes before that of the state, as it does after a restore.

        Raises:
            StateError: The state is damaged; it is of another dataset or other settings, or of a
                number of ranks that it cannot be carried over from at this position.
        """
        expected = self._fingerprint()
        found = state.get("fingerprint") if isinstance(state, Mapping) else None
        if found != expected:
            found = found if isinstance(found, Mapping) else {}
            differences = [
                f"{name}: {found.get(name)!r} in the state, {value!r} here"
                for name, value in expected.items()
                if found.get(name) != value
            ]
            raise StateError(
                "the state is of another order: "
                + ("; ".join(differences) or "it has more settings than this version knows")
                + "; make the sampler with the settings that the state was saved with"
            )
        settings = self.settings
        _, num_replicas = self._replica()
        num_runs = settings.num_runs
        try:
            position, epoch = (_at_least(0, state.get(k), k) for k in ("position", "epoch"))
            before = _at_least(1, state.get("num_replicas"), "num_replicas")
        except ValueError as error:
            raise StateError(f"the state is damaged: {error}") from error
        if position % before or position > settings.num_indices + num_runs:
            raise StateError(
                f"the state is damaged: expected a multiple of its {before} ranks and at most "
                f"{settings.num_indices + num_runs} as position, found {position}"
            )
        if before != num_replicas and position % num_runs:
            raise StateError(
                f"the state was saved on {before} ranks at position {position}, "
                f"which can be carried over to {num_replicas} ranks only at a multiple of "
                f"num_canonical={num_runs}; save states at such positions"
            )
        waiting, self._pass = self._pass, None
        is_set = self._is_fixed and waiting is not None and not waiting.is_begun
        if is_set and self.epoch != epoch:
            self._resume_at = 0
            return
        self.epoch = epoch
        self._is_fixed = bool(state.get("is_fixed"))
        self._resume_at = position // num_replicas

    def _fingerprint(self) -> dict[str, Any]:
        settings = self.settings
        if not hasattr(self, "_lengths_digest"):
            digest = hashlib.sha256(np.ascontiguousarray(self._lengths, "<i8").tobytes())
            self._lengths_digest = digest.hexdigest()[:16]
        return {
            "lengths": self._lengths_digest,
            "num_shards": len(self._lengths),
            "range": [settings.start, settings.stop],
            "chunksize": settings.chunksize,
            "seed": self.seed,
            "shuffle": settings.shuffle,
            "shufflefirst": settings.shufflefirst,
            "redeal": settings.redeal,
            "ending": settings.ending,
            "num_canonical": settings.num_runs,
        }


class ShardListSampler(ChunkedSampler):
    """One chunk for each shard: shards in shuffled order, indices shuffled inside their shard.

    Everything else is as in `ChunkedSampler`.

    Args:
        dataset: The dataset.
        lengths: Samples in each shard; None for ``dataset.lengths``.
        seed: Orders of different seeds have nothing in common.
        shuffle: False gives ascending indices.
        shufflefirst: False keeps the order of the shards in epoch 0.
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


class DistributedChunkedSampler(ChunkedSampler, DistributedSampler[int]):
    """A `ChunkedSampler` for each rank of a distributed job, all exactly ``len(sampler)`` long.

    Together, and before padding, the ranks yield every index once. Rank and number of replicas
    that are not given are looked up when they are first needed: in the process group, then in
    ``RANK`` and ``WORLD_SIZE``, else there is one process. It is a torch ``DistributedSampler``, so
    that trainers leave it alone.

    Args:
        dataset: The dataset, or anything with ``len()``.
        num_replicas: Number of ranks; None to look it up.
        rank: This process's rank, from 0 on; None to look it up.
        num_samples: As in `ChunkedSampler`, for all ranks together.
        chunksize: Most samples in a chunk.
        seed: Has to be the same on all ranks.
        shuffle: False gives ascending indices in each rank.
        shufflefirst: False keeps the order of the chunks in epoch 0.
        drop_last: True makes ranks equal by leaving out at most one index of each, in place of
            repeating at most one.
        even: False neither repeats nor leaves out, so that lengths differ by one at most: for
            evaluation, where each sample counts once.
        redeal: False gives each rank the same slice of the dataset in every epoch, which is good
            for local caches; True deals the chunks anew in each epoch.
        num_canonical: How many runs the epoch is cut into; None for one for each rank. With a
            fixed number the order can be continued on any number of ranks that divides it.

    Raises:
        ValueError: The numbers do not fit together.
    """

    def __init__(  # DistributedSampler's own would look for a process group at once
        self,
        dataset: Sized,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        num_samples: int | tuple[int, int] | None = None,
        chunksize: int = 2000,
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
        self._num_replicas, self._num_canonical = (
            None if number is None else _at_least(1, number, name)
            for number, name in ((num_replicas, "num_replicas"), (num_canonical, "num_canonical"))
        )
        self._rank = None if rank is None else _at_least(0, rank, "rank")
        if self._num_replicas is not None and self._rank is not None:
            self._replica()

    @property
    def settings(self) -> order.Settings:  # noqa: D102 - the same as above
        num_replicas = self.num_replicas
        num_runs = self._num_canonical or num_replicas
        if num_runs % num_replicas:
            raise ValueError(
                f"num_canonical: expected a multiple of the {num_replicas} ranks, found {num_runs}"
            )
        return order.Settings(
            self._lengths,
            *self._range,
            self.chunksize,
            self.shuffle,
            self.shufflefirst,
            num_runs,
            self.redeal,
            "drop" if self.drop_last else "pad" if self.even else "uneven",
        )

    def _replica(self) -> tuple[int, int]:
        rank, num_replicas = self.rank, self.num_replicas
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank: expected 0 to {num_replicas - 1}, found {rank}")
        return rank, num_replicas

    @property
    def num_replicas(self) -> int:  # type: ignore[override]  # torch has a plain attribute
        """Number of ranks."""
        if self._num_replicas is not None:
            return self._num_replicas
        if dist.is_available() and dist.is_initialized():
            return dist.get_world_size()
        return _from_environment("WORLD_SIZE", 1, 1)

    @property
    def rank(self) -> int:  # type: ignore[override]  # torch has a plain attribute
        """Rank of this process."""
        if self._rank is not None:
            return self._rank
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank()
        return _from_environment("RANK", 0, 0)

    @property
    def num_samples(self) -> int:  # type: ignore[override]  # torch has a plain attribute
        """Indices that this rank yields, as torch's samplers call it."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]  # torch has a plain attribute
        """Indices that all ranks yield together, as torch's samplers call it."""
        settings, num_replicas = self.settings, self.num_replicas
        return sum(order.rank_length(settings, r, num_replicas) for r in range(num_replicas))


def _at_least(least: int, value: Any, name: str) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise ValueError(f"{name}: expected a whole number from {least} on, found {value!r}")
    return number


def _from_environment(name: str, least: int, default: int) -> int:
    text = os.environ.get(name, str(default))
    return _at_least(least, int(text) if text.isdecimal() else text, f"${name}")


def _lengths(dataset: Sized, given: Sequence[int] | None) -> order.IntArray:
    """Give the samples of each shard, as passed, or as the dataset has them."""
    total = len(dataset)
    source = "lengths" if given is not None else "dataset.lengths"
    if given is None:
        given = getattr(dataset, "lengths", [total])
    try:
        found = np.asarray(given)
    except ValueError:  # lists of different lengths
        found = np.empty((0, 0))
    is_counts = found.ndim == 1 and (found.dtype.kind in "iu" or not len(found))
    if not is_counts or (found < 0).any():
        raise ValueError(
            f"{source}: expected the number of samples in each shard, found {given!r:.80}; if they "
            "mean something else, pass range(len(dataset))"
        )
    sum_ = int(found.sum())
    if sum_ > total or (sum_ < total and source == "dataset.lengths"):
        raise ValueError(
            f"{source}: expected numbers that add up to the dataset's {total} samples, found "
            f"{sum_}; if they mean something else, pass range(len(dataset))"
        )
    return found.astype(np.int64)


def _range(num_samples: Any, length: int) -> tuple[int, int]:
    if num_samples is None:
        return 0, length
    pair = num_samples if isinstance(num_samples, tuple | list) else (0, num_samples)
    start, stop = (_at_least(0, value, "num_samples") for value in (*pair, None)[:2])
    if len(pair) != 2 or not start <= stop <= length:
        raise ValueError(
            f"num_samples: expected a count or (start, stop) within the dataset's {length} "
            f"samples, found {num_samples!r}"
        )
    return start, stop
