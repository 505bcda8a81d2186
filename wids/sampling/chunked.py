"""A dataset on one rank → shuffled chunks of shuffled indices, as torch samplers.

They wrap the pure functions of `wids.sampling.order` and add what a training loop needs: the next
epoch, and a state to resume from. Nothing here knows about files or other ranks.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence, Sized
from itertools import chain
from typing import Any, Final

from torch.utils.data import Sampler

from wids.sampling import order
from wids.sampling.arguments import at_least, index_range, shard_lengths
from wids.sampling.state import State, checked_state, fingerprint, lengths_digest

_PART_LENGTH: Final = 1 << 14
"""Number of indices that become Python ints at once; a large chunk would delay its first index."""


class _Pass:
    """One pass over the indices of an epoch, which knows its position without counting indices."""

    def __init__(self, epoch: int, start: int) -> None:
        self.epoch = epoch
        self.start = start
        self.has_begun = False
        self._block_stop = start
        self._block: Iterator[int] = iter(())

    def enter(self, block: list[int]) -> Iterator[int]:
        self.has_begun = True
        self._block_stop += len(block)
        self._block = iter(block)
        return self._block

    @property
    def position(self) -> int:
        # The iterator of a list knows how much is left, so no index costs a line of Python.
        return self._block_stop - operator.length_hint(self._block)


class ChunkedSampler(Sampler[int]):
    """Yield shuffled chunks of shuffled indices: random enough to train, local enough to read.

    Chunks follow the shards of a dataset that has ``lengths``; otherwise they are plain ranges.
    ``len()`` is the length of a full pass, also after a restore. A pass takes its epoch when
    ``iter()`` is called. ``set_epoch`` fixes the epoch, so call it before each pass; a second full
    pass without such a call repeats the order, and warns. Until ``set_epoch`` is called for the
    first time, each pass that is read to its end advances the epoch by one. specs/sampler-order.md
    specifies the order. Samplers are not safe to share between threads.

    Args:
        dataset: The dataset, or anything with ``len()``.
        num_samples: A count (indices 0 to n-1) or a ``(start, stop)`` pair; None for all.
        chunksize: Largest number of samples in a chunk. Larger chunks shuffle more and keep more
            shards open.
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

    _stated_length: int | None = None

    def __init__(
        self,
        dataset: Sized,
        *,
        num_samples: int | tuple[int, int] | None = None,
        chunksize: int = 2000,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = True,
        dslength_per_replica: int = -1,
    ) -> None:
        chunksize = at_least(1, chunksize, "chunksize")
        if dslength_per_replica > 0:
            self._stated_length = operator.index(dslength_per_replica)
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
        self._lengths = shard_lengths(dataset, lengths)
        self._range = index_range(num_samples, int(self._lengths.sum()))
        self.chunksize = chunksize and min(chunksize, 1 << 62)  # numpy's integers end at 1 << 63
        self.seed = at_least(0, seed, "seed")
        self.shuffle = bool(shuffle)
        self.shufflefirst = bool(shufflefirst)
        self.epoch = 0
        self._is_fixed = False
        self._num_full_passes = 0
        self._has_warned = False
        self._resume_at = 0
        self._pass: _Pass | None = None

    @property
    def settings(self) -> order.Settings:
        """What the order depends on, besides seed, epoch and rank."""
        return order.Settings(
            self._lengths, *self._range, self.chunksize, self.shuffle, self.shufflefirst
        )

    def _replica(self) -> tuple[int, int]:
        """Return the rank and the number of ranks."""
        return 0, 1

    def __len__(self) -> int:
        if self._stated_length is not None:
            return self._stated_length
        return order.rank_length(self.settings, *self._replica())

    def __iter__(self) -> Iterator[int]:
        # ORDER-8: the epoch is that of this call, even if the first index is read later.
        self._pass = _Pass(self.epoch, self._resume_at)
        return chain.from_iterable(self._blocks(self._pass))

    def _blocks(self, this: _Pass) -> Iterator[Iterator[int]]:
        # Blocks of plain ints, chained in C: an index takes tens of nanoseconds.
        rank, num_replicas = self._replica()
        for block in order.rank_blocks(
            self.settings, self.seed, this.epoch, rank, num_replicas, this.start
        ):
            for start in range(0, len(block), _PART_LENGTH):
                yield this.enter(block[start : start + _PART_LENGTH].tolist())
        # An old iterator may end after `set_epoch` or a restore, which it must not undo.
        if self.epoch == this.epoch:
            self._resume_at = 0
            if not self._is_fixed:
                self.epoch += 1
            elif this.start == 0:
                self._note_full_pass()

    def _note_full_pass(self) -> None:
        """Warn at the end of a second full pass over an epoch that was set once (ORDER-14)."""
        # At its end, since to look at a few samples of a finished epoch is no mistake.
        self._num_full_passes += 1
        if self._num_full_passes == 2 and self.shuffle and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{type(self).__name__}: a second full pass in the order of epoch {self.epoch}, "
                "which set_epoch fixed; call sampler.set_epoch(epoch) before each pass, or never, "
                "for another order in each epoch",
                stacklevel=2,
            )

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the next passes. A restored position counts only in its own epoch.

        Call it before each pass: a second full pass after one call warns, once for each sampler,
        unless ``shuffle=False``.
        """
        epoch = at_least(0, epoch, "epoch")
        # Trainers call it after a restore too, with the restored epoch, whose position stays
        # (ORDER-11).
        if epoch != self.epoch:
            self._resume_at = 0
        if self._pass is not None and epoch != self._pass.epoch:
            self._pass = None
        self.epoch = epoch
        self._is_fixed = True
        self._num_full_passes = 0

    def state_dict(self, num_consumed: int | None = None) -> dict[str, Any]:
        """Return what `load_state_dict` needs to resume from the current position; JSON-able.

        The state is the same on all ranks that have consumed equally many samples. With
        ``even=False`` some ranks end one sample earlier, and their states differ at the end.

        Args:
            num_consumed: Number of samples in the latest pass that training on this rank has
                consumed. A plain DataLoader has workers that run ahead of training, so only the
                caller knows; an incomplete last batch may count as full. None counts what the
                sampler has yielded.
        """
        rank, num_replicas = self._replica()
        length = order.rank_length(self.settings, rank, num_replicas)
        epoch, start, position = self.epoch, self._resume_at, self._resume_at
        if self._pass is not None:
            epoch, start, position = self._pass.epoch, self._pass.start, self._pass.position
        if num_consumed is not None:
            position = start + at_least(0, num_consumed, "num_consumed")
        if position >= length:  # a complete pass: the state is the start of the next epoch
            epoch, position = epoch + 1, 0
        # The position of all ranks together, so that every rank returns the same state.
        state = State(
            epoch, self._is_fixed, position * num_replicas, num_replicas, self._fingerprint()
        )
        return dict(vars(state))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state: the next pass is the rest of its epoch.

        If ``set_epoch`` and then ``iter()`` were called, and no index was read yet, the epoch that
        was set wins over the state's: torchdata's loader restores at this point. The effect is that
        of ``set_epoch`` after a restore.

        Raises:
            StateError: The state is damaged, belongs to another dataset or other settings, or was
                saved on another number of ranks and cannot be restored at this position.
        """
        _, num_replicas = self._replica()
        restored = checked_state(state, self._fingerprint(), self.settings, num_replicas)
        # A pass that is still being read belongs to the time before the restore.
        waiting, self._pass = self._pass, None
        is_set = self._is_fixed and waiting is not None and not waiting.has_begun
        if is_set and self.epoch != restored.epoch:
            self._resume_at = 0
            return
        self.epoch = restored.epoch
        self._is_fixed = restored.is_fixed
        self._num_full_passes = 0
        # Exact: `checked_state` accepts no position that these ranks cannot share (ORDER-10).
        self._resume_at = restored.position // num_replicas

    def _fingerprint(self) -> dict[str, Any]:
        # Hashed once: a loader takes a state at every step, and there may be 100,000 shards.
        if not hasattr(self, "_lengths_digest"):
            self._lengths_digest = lengths_digest(self._lengths)
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
