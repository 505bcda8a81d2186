"""Pack the samples of a sampler into batches within a budget of tokens, as a torch batch sampler.

A batch may have a second budget, and a limit of samples. `wids.order.packed_rounds` makes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from wids.errors import StateError
from wids.order.arguments import at_least
from wids.order.bucket_sampler import RoundsSampler
from wids.order.elastic import EpochPart, EpochPlace, canonical, check_keys, digest_of
from wids.order.epoch_order import Order, OrderSettings
from wids.order.packed_rounds import Budgets, PackedRounds, TokenSums
from wids.order.rounds import integers
from wids.order.samplers import ChunkedSampler
from wids.storage.arrays import check_labels

_TOO_LONG: Final = ("error", "skip", "alone")
_COSTS: Final = ("sum", "squares")


class PackedBatchSampler(RoundsSampler):
    """Yield batches of samples whose lengths add up to a budget of tokens at most.

    Pass it to a DataLoader as ``batch_sampler=``. The order of the sampler that it wraps is cut
    into windows of neighbouring samples, which are packed best-fit decreasing, and the batches of a
    window are shuffled. Slices of ranks have equally many tokens, so a rank mostly reads the shards
    of its slice. Every sample comes once; batches that a rank has beyond others' go to those, and
    fewer batches than there are ranks repeat. Each rank computes them by itself: it packs its own
    samples, half a second for a million; ``len()``, `num_repeated`, `num_left_out` and the end of
    an epoch need those of all ranks, once an epoch. It warns once where an epoch has more than 1.25
    times the batches that its tokens need. specs/sampler-order.md specifies the batches
    (ORDER-70 to ORDER-77, ORDER-81).

    Epochs, ``set_epoch``, ``state_dict`` and ``load_state_dict`` are those of `BucketBatchSampler`.
    A state has the current window, so that its rank resumes at once; another rank, or another
    number of ranks, counts the batches before, unless ``len()`` was called before the state was
    saved.

    Args:
        sampler: Any sampler of this package, for example a `DistributedChunkedSampler`. What its
            ``even`` and ``drop_last`` would repeat or leave out is neither.
        lengths: The number of tokens in each sample of the dataset: array, list, Arrow array, or
            Series, for example a column of ``dataset.table``. An array that can be written is
            copied.
        max_tokens: Largest sum of lengths in a batch.
        max_items: Largest number of samples in a batch; None for any.
        budgets: One more budget, by name: what each sample needs of it, and what a batch has, for
            example ``{"images": (num_images, 32)}``.
        window: Number of batches that are packed, sorted and shuffled together.
        too_long: What becomes of a sample that exceeds a budget by itself: ``"error"``; ``"skip"``
            to leave it out; ``"alone"`` to have it alone in a batch that exceeds the budget.
        drop_last: How ranks are made equal at the end of an epoch: False repeats fewer batches than
            there are ranks, True leaves them out.
        cost: What makes a step take long: the ``"sum"`` of the lengths in a batch, the sum of their
            ``"squares"``, or of a cost for each sample, as an array. In each step, the batches of
            all ranks then have about the same, while each has batches of its own. None to shuffle
            the batches of each rank by itself.

    Attributes:
        sampler: The sampler inside.
        max_tokens: As passed.
        drop_last: As passed.

    Raises:
        TypeError: ``sampler`` is not one of wids' samplers, or a Series may be in another order.
        ValueError: An array has not one number of at least 0 for each sample, a sample exceeds a
            budget, or an argument is not one of those above.

    Example:
        >>> import wids
        >>> lengths = [5, 2, 7, 3, 6, 1, 4, 8]
        >>> sampler = wids.ChunkedSampler(range(8))
        >>> batches = wids.PackedBatchSampler(sampler, lengths, 9)
        >>> list(batches)
        [[7, 5], [2, 1], [0, 6], [4, 3]]
        >>> len(batches), batches.fill
        (4, 1.0)
    """

    _most_counted = 100_000

    def __init__(
        self,
        sampler: ChunkedSampler,
        lengths: Any,
        max_tokens: int,
        *,
        max_items: int | None = None,
        budgets: Mapping[str, tuple[Any, int]] | None = None,
        window: int = 512,
        too_long: Literal["error", "skip", "alone"] = "error",
        drop_last: bool = False,
        cost: Literal["sum", "squares"] | Sequence[float] | npt.NDArray[Any] | None = None,
    ) -> None:
        super().__init__(sampler, drop_last)
        if too_long not in _TOO_LONG:
            raise ValueError(f"too_long: expected one of {_TOO_LONG}, found {too_long!r}")
        other_budgets = dict(budgets or {})
        if len(other_budgets) > 1:
            raise ValueError(
                f"budgets: expected at most one besides max_tokens, found {sorted(other_budgets)}"
            )
        self.max_tokens = _limit(max_tokens, "max_tokens")
        needs = [self._needs(lengths, self.max_tokens, "lengths", "max_tokens", too_long)]
        limits = [self.max_tokens]
        self._named = list(other_budgets)
        for name, pair in other_budgets.items():
            what = f"budgets[{name!r}]"
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ValueError(
                    f"{what}: expected a pair, what each sample needs and what a batch has, such "
                    f"as (num_images, 32), found {pair!r:.80}"
                )
            limits.append(_limit(pair[1], what))
            needs.append(self._needs(pair[0], limits[-1], what, "its limit", too_long))
        self._too_long = too_long
        self._budgets = Budgets(
            tuple(needs),
            tuple(limits),
            None if max_items is None else _limit(max_items, "max_items"),
            too_long == "skip",
            at_least(1, window, "window"),
            self._checked_cost(cost),
        )
        self._token_sums = TokenSums.of(self._budgets, *sampler._range)
        self._digests: dict[str, Any] = {}
        self._restored: tuple[tuple[int, int], list[list[int]]] | None = None

    def _needs(
        self, stated: Any, limit: int, name: str, limit_name: str, too_long: str
    ) -> npt.NDArray[Any]:
        """Return what each sample needs of a budget."""
        values = integers(stated, self.dataset_length, name, "")
        if values.dtype == bool:
            raise ValueError(
                f"{name}: expected numbers, found booleans; if True stands for 1, convert them "
                "with astype(int)"
            )
        if len(values) and values.min() < 0:
            at = int(np.argmin(values))
            raise ValueError(
                f"{name}: expected at least 0, and less than 2**63, found {values[at]} of sample "
                f"{at}"
            )
        if too_long == "error" and len(values) and values.max() > limit:
            at = int(np.argmax(values > limit))
            raise ValueError(
                f"{name}: expected at most {limit_name}, {limit}, found {values[at]} of sample "
                f'{at}; pass too_long="skip" to leave such samples out, or too_long="alone" to '
                "have each alone in a batch that exceeds the budget"
            )
        # A change in place would make other batches than those of earlier states. An array that
        # cannot be written, such as a mapped file or a column of Arrow, is not copied.
        kind = np.min_scalar_type(values.max(initial=0))
        return values.astype(kind) if values.flags.writeable else values

    def _checked_cost(self, cost: Any) -> npt.NDArray[Any] | str | None:
        if cost is None or (isinstance(cost, str) and cost in _COSTS):
            return cost
        values = np.array(cost)  # a copy, as of lengths
        if values.shape != (self.dataset_length,) or values.dtype.kind not in "iuf":
            raise ValueError(
                f"cost: expected one of {_COSTS}, or a number for each of the dataset's "
                f"{self.dataset_length} samples, found "
                f"{cost if isinstance(cost, str) else f'{values.dtype} of shape {values.shape}'!r}"
            )
        check_labels(cost, "cost")
        return values

    @property
    def fill(self) -> float:
        """Share of the budget of tokens that batches use, in what was packed so far of the epoch.

        Between 0 and 1. After ``len()``, it is that of the whole epoch.
        """
        return self._packed(self._place_of(self.epoch)).fill

    def _fingerprint(self) -> dict[str, Any]:
        if not self._digests:  # a second for a hundred million samples
            lengths, *others = map(digest_of, self._budgets.needs)
            pairs = zip(others, self._budgets.limits[1:], strict=True)
            cost = self._budgets.cost
            self._digests = {
                "tokens": lengths,
                "max_tokens": self.max_tokens,
                "max_items": self._budgets.max_items,
                "budgets": {
                    name: list(pair) for name, pair in zip(self._named, pairs, strict=True)
                },
                "window": self._budgets.window,
                "too_long": self._too_long,
                "packing": 2,  # the rule by which runs are cut and batches dealt out
                "cost": cost if cost is None or isinstance(cost, str) else digest_of(cost),
            }
        return {**self.sampler._fingerprint(), **self._digests, "drop_last": self.drop_last}

    def _settings_of(self, num_runs: int) -> Order:
        settings = super()._settings_of(num_runs)
        if not isinstance(settings, OrderSettings):
            return settings  # of a mix
        is_cut = num_runs > 1 and not settings.redeal
        edges = self._token_sums.edges(num_runs) if is_cut else None
        return replace(settings, ending="uneven", edges=edges)

    def _whole(self, epoch: int, num_runs: int) -> PackedRounds:
        settings = self._settings_of(num_runs)
        is_mix = not isinstance(settings, OrderSettings)
        rounds = PackedRounds(
            self.sampler.run_blocks(settings, epoch),
            num_runs,
            self._budgets,
            drop_last=self.drop_last,
            least=0 if is_mix else -(-self._token_sums.total // self.max_tokens),
            seed=self.sampler.seed if self.shuffle else None,
            epoch=epoch,
        )
        if self._restored is not None and self._restored[0] == (epoch, num_runs):
            rounds.restore(self._restored[1])
        return rounds

    def _packed(self, place: EpochPlace) -> PackedRounds:
        """Return the packed batches of an epoch, with the runs with which it began."""
        rounds: Any = self._rounds(place)
        packed: PackedRounds = getattr(rounds, "whole", rounds)
        return packed

    def _blocks(self, start: EpochPlace) -> Iterator[list[list[int]]]:
        yield from super()._blocks(start)
        self._note_emptiness(start)

    def _num_items(self, place: EpochPlace) -> int:
        number = super()._num_items(place)
        self._note_emptiness(place)
        return number

    def _note_emptiness(self, place: EpochPlace) -> None:
        """Warn once if batches are far from full, when those of an epoch are counted."""
        if remark := self._packed(place).remark:
            self._warn(remark, once="empty")

    def _located(self, place: EpochPlace, state: Mapping[str, Any]) -> dict[str, Any]:
        _, num_replicas = self._replica()
        now = EpochPart(num_replicas, self._num_runs, place.position)
        first, *_ = *place.history, now
        windows: list[list[int]] = []
        if first.steps:  # else what belongs there is known anyway
            round_ = first.steps // (first.num_runs // first.num_replicas)
            windows = self._packed(place).located(round_)
        # In one text: the values of a distributed checkpoint may come from different ranks.
        return {"windows": _windows_text(state, windows)}

    def _locate(self, state: Mapping[str, Any], place: EpochPlace) -> None:
        check_keys(state, ["windows"])
        try:
            windows = json.loads(state["windows"])["runs"]
        except (TypeError, ValueError, KeyError):
            windows = None
        if state["windows"] != _windows_text(state, windows):
            raise StateError(
                "the state is damaged: windows: expected the text that was saved in it, with the "
                f"digest of its runs, found {state['windows']!r:.80}"
            )
        num_runs = place.history[0].num_runs if place.history else self._num_runs
        self._restored = (place.epoch, num_runs), windows
        self._epochs_made.clear()

    @property
    def _about(self) -> str:
        return (
            f"{type(self).__name__}({type(self.sampler).__name__}, {self.dataset_length} samples, "
            f"max_tokens={self.max_tokens}, window={self._budgets.window}, "
            f"drop_last={self.drop_last})"
        )


def _windows_text(state: Mapping[str, Any], windows: Any) -> str:
    """Return what a state has of windows, with a digest of them and of their epoch."""
    epoch = [state[key] for key in ("epoch", "num_replicas", "history", "fingerprint")]
    digest = hashlib.sha256(canonical([epoch, windows]).encode("ascii")).hexdigest()[:16]
    return canonical({"digest": digest, "runs": windows})


def _limit(value: Any, name: str) -> int:
    limit = at_least(1, value, name)
    if limit >= 1 << 31:
        raise ValueError(f"{name}: expected less than 2**31, found {limit}")
    return limit
