"""Make the orders of epochs a torch sampler, with passes and a state to resume from.

`set_epoch`, `state_dict`, `indices` and `steps_of` of all samplers are here. A subclass computes
the order: it yields the items of an epoch, indices or batches of them, from a position on.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import torch  # noqa: F401 - whole, before its parts: threads must not import both at once
from torch.utils.data import Sampler

from wids.errors import missing_attribute, warn
from wids.order.arguments import at_least, spec_digests
from wids.order.callers import loader_with_workers, second_sharder
from wids.order.elastic import EpochPlace, State, check_state, other_runs, resumed

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

_GONE: Final = {
    "ranges": "list(sampler), which is the order (see docs/migration.md)",
    "rng": "seed and epoch, on which alone the order depends (see docs/migration.md)",
}
"""What replaces attributes of the old library."""


class Epochs:
    """The epoch of a sampler. A sampler around another one shares the other's.

    Trainers call ``set_epoch`` of either, and it must apply to both.

    Attributes:
        number: The epoch of the next pass.
        is_fixed: Whether ``set_epoch`` was called, so that the epoch does not advance by itself.
        num_set: How often it was called.
        num_full_passes: Full passes since it was called (ORDER-14).
    """

    def __init__(self) -> None:
        self.number = 0
        self.is_fixed = False
        self.num_set = 0
        self.num_full_passes = 0
        self._latest = -1
        self._latest_since = 0

    def set(self, number: int) -> None:
        """Fix the epoch."""
        self.num_set += 1
        if number != self._latest:
            self._latest, self._latest_since = number, self.num_set
        self.restore(number, is_fixed=True)

    def restore(
        self,
        number: int,
        *,
        is_fixed: bool,
        place: EpochPlace | None = None,  # noqa: ARG002 - for epochs that are shared with workers
    ) -> None:
        """Restore the epoch of a state. Each sampler has its own position."""
        self.number, self.is_fixed, self.num_full_passes = number, is_fixed, 0

    def is_kept(self, number: int, since: int) -> bool:
        """Return whether no other epoch was set since ``num_set`` had this value (ORDER-11)."""
        same = self._latest == number and self._latest_since <= since + 1
        return self.num_set == since or same


class _Pass(Generic[T]):
    """One pass over the items of an epoch, which knows its position without counting items."""

    def __init__(self, start: EpochPlace, num_set: int) -> None:
        self.start = start
        self.loader = loader_with_workers()
        self.epoch = start.epoch
        self.num_set = num_set
        self.has_begun = False
        self.has_ended = False
        self._num_entered = 0
        self._block: Iterator[T] = iter(())

    def enter(self, block: list[T]) -> Iterator[T]:
        self.has_begun = True
        self._num_entered += len(block)
        self._block = iter(block)
        return self._block

    def begins_like(self, other: _Pass[T]) -> bool:
        """Return whether both began at the same place, after as many calls of ``set_epoch``."""
        return (self.start, self.num_set) == (other.start, other.num_set)

    def is_waiting(self, epoch: int) -> bool:
        """Return whether it is of this epoch, and nothing was read from it yet."""
        return self.epoch == epoch and not self.has_begun and not self.has_ended

    def is_ahead(self) -> bool:
        """Return whether workers have been sent batches that their loader has not returned."""
        if self.loader is None or not self.has_begun:
            return False
        if (loader := self.loader()) is None:
            # The loop was left before the end, or it is over.
            return not self.has_ended
        # Not `_tasks_outstanding`: a batch that arrives before its turn is none of these.
        is_ahead: bool = loader._send_idx > loader._rcvd_idx
        return is_ahead

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "loader": None}  # in another process nobody reads yet

    @property
    def num_read(self) -> int:
        # The iterator of a list knows how much is left, so no item costs a line of Python.
        return self._num_entered - operator.length_hint(self._block)


class EpochSampler(Sampler[T]):
    """Passes over the epochs of an order, with a state.

    A subclass defines the methods below that raise NotImplementedError. Its order is a pure
    function of these, the epoch and its history. Names with an underscore are for samplers, and for
    what wraps one; programs need none of them.
    """

    shuffle: bool
    dataset: Any
    dataset_length: int
    num_canonical: int | None = None
    """Number of runs that the caller has fixed for any number of ranks; None for one per rank."""
    _is_elastic: bool = True
    """Whether an epoch may continue on any number of ranks, cut into other runs."""
    yields_indices = True
    """Whether an item is an index; otherwise it is a batch."""
    _num_noticed: int = 1000
    """Items after which a pass that ends early is more than a look at the data."""
    _tell_epoch: Callable[[int, int], Any] | None = None
    """Called with the epoch when a pass begins: the dataset's ``set_epoch``, for augmentations."""

    def _set_up_passes(self, epochs: Epochs | None = None) -> None:
        """Begin with new epochs, or with those of the sampler inside this one."""
        self._epochs = epochs or Epochs()
        self._warned: set[str] = set()
        self._num_left_passes = 0
        # Where the next pass starts, and how often an epoch had been set.
        self._resume = (EpochPlace(0), 0)
        self._pass: _Pass[T] | None = None

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, _GONE)

    # What a subclass defines.

    def _blocks(self, start: EpochPlace) -> Iterator[list[T]]:
        """Yield the items of this rank from a place in an epoch on, many at a time."""
        raise NotImplementedError

    def _num_items(self, place: EpochPlace) -> int:
        """Return the number of items of this rank in the part of an epoch that a place is in."""
        raise NotImplementedError

    def _num_left(self, place: EpochPlace) -> int:
        """Return the number of items of this rank from a place in an epoch on."""
        return self._num_items(place) - place.position

    def _is_at_end(self, place: EpochPlace) -> bool:
        """Return whether this rank has no item from a place in an epoch on."""
        return self._num_left(place) <= 0

    def _is_over(self, place: EpochPlace) -> bool:
        """Return whether no rank has an item in the part of an epoch that a place is in."""
        return not self._num_items(place)

    def _most_items(self, num_runs: int) -> int:
        """Return a number that the items of all ranks do not exceed in an epoch of so many runs."""
        raise NotImplementedError

    def _replica(self) -> tuple[int, int]:
        """Return the rank and the number of ranks."""
        raise NotImplementedError

    @property
    def _num_runs(self) -> int:
        """Number of runs that an epoch is cut into (ORDER-1)."""
        raise NotImplementedError

    def _fingerprint(self) -> dict[str, Any]:
        """Return what the order depends on besides epoch, position and ranks; JSON-able."""
        raise NotImplementedError

    def _expected_by(self, state: State, *, whole: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """Return the fingerprint that a state needs, which for mixes depends on what was read.

        Args:
            state: The state.
            whole: Whether an epoch counts as read as soon as something of it was.
        """
        return self._fingerprint()

    def _sequence(self, place: EpochPlace) -> Sequence[T]:
        """Return the items of this rank in the part of an epoch that a place is in."""
        raise NotImplementedError

    def _steps_at(self, index: int, place: EpochPlace) -> list[tuple[int, int]]:
        """Return the ranks and positions at which an index comes in such a part, ascending."""
        raise NotImplementedError

    @property
    def _inside(self) -> Any:
        """The sampler of which this one makes batches; None if there is none."""
        return vars(self).get("sampler")

    @cached_property
    def _spec(self) -> dict[str, str]:
        """Digests of the dataset, for states."""
        # Once: a loader takes a state at every step.
        return spec_digests(self.dataset) if self._inside is None else self._inside._spec

    def _of_rank(self, rank: int, num_replicas: int, num_runs: int) -> Self:
        """Return this sampler as a rank of any job has it, whose epochs are cut into some runs.

        Raises:
            ValueError: It is for one process, and there are several ranks.
        """
        other = copy(self)
        if self._inside is None:
            places = {"_rank": rank, "_num_replicas": num_replicas, "_replication": 1}
            vars(other).update(places, _is_fit_checked=True)  # of another machine
        else:
            vars(other)["sampler"] = self._inside._of_rank(rank, num_replicas, num_runs)
        other.num_canonical = num_runs
        if other._replica() != (rank, num_replicas):
            raise ValueError(
                f"expected a sampler for {num_replicas} ranks, found {type(self).__name__}, which "
                "is for one process; make a DistributedChunkedSampler with the same arguments"
            )
        return other

    # Passes.

    @property
    def epoch(self) -> int:
        """The epoch of the next pass."""
        return self._epochs.number

    @epoch.setter
    def epoch(self, number: int) -> None:
        self._epochs.number = number

    def __len__(self) -> int:
        place = self._place_of(self.epoch)
        return place.num_earlier + self._num_items(place)

    def __iter__(self) -> Iterator[T]:
        # ORDER-8: the epoch is that of this call, even if the first item is read later.
        start = self._place_of(self.epoch)
        latest, this = self._pass, _Pass[T](start, self._epochs.num_set)
        self._pass = this
        self._note_left_pass(latest, this)
        self._note_second_dealing()
        if self._tell_epoch is not None:
            self._tell_epoch(self.epoch, self._replica()[1])
        return chain.from_iterable(self._entered(self._pass))

    def ahead(self) -> Iterator[T]:
        """Return the items of a pass that would begin now, without beginning one."""
        return chain.from_iterable(self._blocks(self._place_of(self.epoch)))

    def _entered(self, this: _Pass[T]) -> Iterator[Iterator[T]]:
        # Blocks, chained in C: an item takes tens of nanoseconds.
        for block in self._blocks(this.start):
            yield this.enter(block)
        this.has_ended = True
        # An old iterator may end after `set_epoch` or a restore, which it must not undo.
        if self.epoch == this.epoch:
            self._rewind()
            if not self._epochs.is_fixed:
                self._epochs.number += 1
            elif this.start == EpochPlace(this.epoch):
                self._note_full_pass()

    def _note_full_pass(self) -> None:
        """Warn at the end of a second full pass over an epoch that was set once (ORDER-14)."""
        # At its end, since looking at a few samples of a finished epoch is not a mistake.
        self._epochs.num_full_passes += 1
        # Unshuffled passes are repeated on purpose: evaluation does so.
        if self.shuffle and self._epochs.num_full_passes == 2:
            self._warn(
                f"a second full pass in the order of epoch {self.epoch}, which set_epoch fixed; "
                "call sampler.set_epoch(epoch) before each pass, or never, for another order in "
                "each epoch",
                once="repeated",
            )

    def _note_left_pass(self, latest: _Pass[T] | None, this: _Pass[T]) -> None:
        """Warn when a third pass begins where two that were left early began."""
        if latest is None or not latest.begins_like(this):
            self._num_left_passes = 0
            return
        # A look at the first samples neither counts nor hides what other passes did.
        if latest.has_ended or latest.num_read < self._num_noticed:
            return
        self._num_left_passes += 1
        if self.shuffle and self._num_left_passes == 2:
            self._warn(
                f"two passes of epoch {this.epoch} ended early, the latest after "
                f"{latest.num_read} of {self._num_left(this.start)}, and a third begins at "
                "the same place, so that the rest is never read; call "
                "sampler.set_epoch(epoch) before each pass for another order, or "
                "sampler.load_state_dict(sampler.state_dict(num_consumed)) to continue",
                once="left",
            )

    def _note_second_dealing(self) -> None:
        """Warn if a caller shards the items of a pass among ranks, and something is lost."""
        _, num_replicas = self._replica()
        sharder = second_sharder(self) if num_replicas > 1 or self.shuffle else None
        if sharder is None:
            return
        if num_replicas > 1:
            self._warn(
                f"each of {num_replicas} ranks has its share already, and {sharder} shards it "
                "again, so that most of the dataset is never read; pass it unwrapped: leave the "
                "loader out of accelerator.prepare(), and use wids.SamplerTrainer instead of "
                "transformers' Trainer",
                once="sharded",
            )
        elif "(accelerate)" not in sharder:  # it deals the batches of one order: each is read once
            self._warn(
                f"{sharder} lists the whole epoch on each rank, so that batches no longer follow "
                "shards, and a state counts all of it as read; use DistributedChunkedSampler, "
                "which trainers leave as it is",
                once="sharded",
            )

    def _warn(self, text: str, once: str = "") -> None:
        """Warn the caller of the caller; of a kind that is named, only once."""
        if not once or once not in self._warned:
            self._warned.add(once)
            warn(f"{type(self).__name__}: {text}")

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the next passes. A restored position counts only in its own epoch.

        Call it before each pass: a second full pass after one call warns, once for each sampler,
        unless ``shuffle=False``.
        """
        self._epochs.set(at_least(0, epoch, "epoch"))

    # The order, as a whole.

    def indices(self, epoch: int | None = None) -> Sequence[T]:
        """Return what this rank yields in an epoch, as a sequence of which nothing is listed.

        ``sampler.indices()[k]`` computes one chunk, whatever ``k`` is. The sequence needs no torch,
        does not change with the sampler, is safe to share between threads, and is pickled in a few
        kB, so that other loaders can read in this order. It has the whole epoch, also after a
        restore: what is left starts at ``state["position"] // state["num_replicas"]``. After a
        restore on another number of ranks, it has what they share out (ORDER-50).

        Batches of buckets are found by a walk: one after another they take as long as a pass, and
        a jump back takes about a second for ten million samples.

        Args:
            epoch: The epoch; None for that of the next pass.

        Raises:
            ValueError: ``epoch`` is not an integer of at least 0.
        """
        return self._sequence(self._asked(epoch))

    def steps_of(self, index: int, epoch: int | None = None) -> list[tuple[int, int]]:
        """Return where a sample comes in an epoch: each rank, and the position in its `indices`.

        A sample that is repeated comes several times, and one that is left out nowhere. It takes
        milliseconds. For batches the position is that of the batch, and it takes a walk over the
        epoch, about three seconds for ten million samples.

        Args:
            index: The sample.
            epoch: The epoch; None for that of the next pass.

        Raises:
            ValueError: The dataset has no such sample, or ``epoch`` is not an integer of at least
                0.
        """
        number = at_least(0, index, "index")
        if number >= self.dataset_length:
            raise ValueError(
                f"index: expected less than the {self.dataset_length} samples of the dataset, "
                f"found {number}; dataset.find_key(key) returns the index of a key"
            )
        return self._steps_at(number, self._asked(epoch))

    def _asked(self, epoch: int | None) -> EpochPlace:
        return self._place_of(self.epoch if epoch is None else at_least(0, epoch, "epoch"))

    # The state.

    def _place_of(self, epoch: int) -> EpochPlace:
        """Return where a pass of an epoch starts: at its beginning, or at a restored place."""
        # Trainers set the epoch after a restore too, to the restored one, whose position stays
        # (ORDER-11).
        place, num_set = self._resume
        is_kept = epoch == place.epoch and self._epochs.is_kept(epoch, num_set)
        return place if is_kept else EpochPlace(epoch)

    def _rewind(self) -> None:
        """Make the next pass start at the beginning of an epoch."""
        self._resume = (EpochPlace(self.epoch), self._epochs.num_set)

    def _latest_pass(self) -> _Pass[T] | None:
        this = self._pass
        return this if this and self._epochs.is_kept(this.epoch, this.num_set) else None

    def state_dict(self, num_consumed: int | None = None) -> dict[str, Any]:
        """Return what `load_state_dict` needs to resume from the current position; JSON-able.

        The state is the same on all ranks that have consumed equally much. With ``even=False`` some
        ranks end one sample earlier, and their states differ at the end.

        Args:
            num_consumed: Number of samples (of batches, for a sampler of batches) in the latest
                pass that training on this rank has consumed. A plain DataLoader has workers that
                run ahead of training, so only the caller knows; an incomplete last batch may count
                as full. None counts what the sampler has yielded, and warns once if workers have
                run ahead. Before a pass begins, it counts from where that one will start: to load
                such a state skips as much.

        Raises:
            ValueError: ``num_consumed`` exceeds what the sampler has handed out in the pass, such
                as a number of samples on all ranks.
        """
        latest_pass = self._latest_pass()
        if latest_pass is None:
            start = self._place_of(self.epoch)
            if num_consumed is not None:
                start += self._checked_consumed(num_consumed, start)
            return self._state_at(start)
        if num_consumed is None:
            self._note_ahead(latest_pass)
            return self._state_at(latest_pass.start + latest_pass.num_read)
        number = self._checked_consumed(num_consumed, latest_pass.start)
        # At the end of a pass, the last batch may count as full.
        if number > latest_pass.num_read < self._num_left(latest_pass.start):
            raise ValueError(
                f"num_consumed: expected at most the {latest_pass.num_read} {self._items} that "
                f"this sampler has handed out in its latest pass, found {number}; pass what "
                f"training on this rank has used since the pass began, {self._counted}, not what "
                "all ranks or earlier passes have"
                f"{'' if self.yields_indices else ', and no number of samples'}"
            )
        return self._state_at(latest_pass.start + number)

    def _checked_consumed(self, num_consumed: Any, start: EpochPlace) -> int:
        """Return the number of items that training has consumed of a pass, as an int.

        Args:
            num_consumed: The number that a program has counted.
            start: Where the pass began.

        Raises:
            ValueError: It is not a number, or fewer are left from there.
        """
        number = at_least(0, num_consumed, "num_consumed")
        if not number or not (self.yields_indices or self._is_at_end(start + (number - 1))):
            return number
        left = max(self._num_left(start), 0)
        # The last batch may count as full, and the size of batches is not known.
        most = 2 * left - 1 if self.yields_indices else left
        if number > max(most, 0):
            raise ValueError(
                f"num_consumed: expected at most the {left} {self._items} that the latest pass has "
                f"on this rank, found {number}; pass what training has used since this pass began: "
                f"{self._counted}, where num_batches is 0 at the start of each pass"
            )
        return number

    @property
    def _items(self) -> str:
        return "samples" if self.yields_indices else "batches"

    @property
    def _counted(self) -> str:
        """What a program passes as ``num_consumed``."""
        return "num_batches * batch_size" if self.yields_indices else "num_batches"

    def _note_ahead(self, latest: _Pass[T]) -> None:
        """Warn if a state counts what workers were sent, and training has not used."""
        if latest.is_ahead():
            self._warn(
                "the workers of a DataLoader run ahead of training, and state_dict() counts what "
                f"they were sent, so that a resumed job would leave it out; pass "
                f"state_dict(num_consumed={self._counted}), or use torchdata's "
                "StatefulDataLoader and its state_dict()",
                once="ahead",
            )

    def _state_at(self, place: EpochPlace) -> dict[str, Any]:
        """Return the state of a pass at a place."""
        _, num_replicas = self._replica()
        # A complete pass: the state is the start of the next epoch.
        if self._is_at_end(place):
            place = EpochPlace(place.epoch + 1)
        # The position of all ranks together, so that every rank returns the same state.
        position = place.position * num_replicas
        facts = place.history, self._fingerprint(), self._spec
        state = State(place.epoch, self._epochs.is_fixed, position, num_replicas, *facts).json
        return {**state, **self._located(place, state)}

    def _located(self, place: EpochPlace, state: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Return what a state has besides, by which its place is found faster; JSON-able."""
        return {}

    def _locate(self, state: Mapping[str, Any], place: EpochPlace) -> None:
        """Take over what `located` returned."""

    def _note_other_dataset(self, saved: Mapping[str, str]) -> None:
        """Warn if the spec states other facts of the shards than that of the state (ORDER-79)."""
        own = self._spec
        shared = (own.keys() & saved.keys()) - {"name"}
        if saved.get("num_shards") != own.get("num_shards"):  # a mix may have gained a dataset
            return
        if other := sorted(fact for fact in shared if saved[fact] != own[fact]):
            names = [f" {spec['name']!r}" if "name" in spec else "" for spec in (saved, own)]
            self._warn(
                f"expected the dataset of the state{names[0]}, found{names[1]} another: shards of "
                f"the same lengths, whose {' and '.join(other)} in the spec differ. The position "
                "stays, and has other samples; if that is not meant, open the dataset that the "
                "state was saved with",
                once="dataset",
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state: the next pass is the rest of its epoch.

        If ``set_epoch`` and then ``iter()`` were called, and nothing was read yet, the epoch that
        was set wins over the state's: torchdata's loader restores at this point. The effect is that
        of ``set_epoch`` after a restore.

        On another number of ranks, what is left of the epoch is cut into as many runs as there are
        ranks now (ORDER-50).

        Raises:
            StateError: The state is damaged, or belongs to another dataset or other settings; or
                the sampler mixes datasets or aligns buckets, and its runs are not those of the
                state.
        """
        _, num_replicas = self._replica()
        saved = State.from_json(state)
        is_cut = self.num_canonical is not None
        check_state(saved, self._expected_by(saved), self._most_items, is_cut=is_cut)
        self._note_other_dataset(saved.spec)
        place = resumed(saved.epoch, saved.parts, num_replicas, self._num_runs)
        self._locate(state, place)
        if place.history:
            if not self._is_elastic:
                raise other_runs(type(self).__name__, saved, num_replicas, self.num_canonical)
            if self._is_over(place):  # fewer items than ranks were left, and are left out
                place = EpochPlace(place.epoch + 1)
        # A pass that is still being read belongs to the time before the restore.
        waiting, self._pass = self._pass, None
        is_set = self._epochs.is_fixed and waiting is not None and waiting.is_waiting(self.epoch)
        if is_set and self.epoch != place.epoch:
            self._rewind()
            return
        self._epochs.restore(place.epoch, is_fixed=saved.is_fixed, place=place)
        self._resume = (place, self._epochs.num_set)
