"""Draw the indices of one rank from named datasets in exact proportions, as a torch sampler.

It checks the arguments and makes passes over the pure functions of `wids.order.mixing`. Ranks do
not communicate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wids.errors import StateError
from wids.order.arguments import at_least, lengths_of, unwrapped
from wids.order.elastic import State, digest_of, stated
from wids.order.mixing import Mix, Source, checked_weight, draws_per_period
from wids.order.samplers import DistributedChunkedSampler
from wids.storage.arrays import IntArray, has_other_labels

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


Weights = Mapping[str, Any] | Sequence[Any]
"""Weights by name or in order; or pairs of a number of samples and weights from there on."""


class MixedSampler(DistributedChunkedSampler):
    """Draw from several datasets in exact proportions, on one rank or many.

    The sources are the named datasets of ``dataset``: a list of specs names them by the specs. On
    each rank, after any number of draws, the count of each source differs from its share by less
    than 1 (from that of each of its runs, with ``num_canonical``). So a batch differs by less than
    2, and by at most 1 if there are two sources. The proportions continue across epochs. Each
    source is shuffled as by `ChunkedSampler`, yields all its samples before it repeats any, and
    continues in the next epoch where it stopped: on any number of ranks, the numbers of draws of
    two samples of a source never differ by more than two.

    Ranks are equally long, and are looked up as by `DistributedChunkedSampler`; so are epochs and
    states, and trainers do not replace the sampler.

    Weights may change after numbers of samples, and each source continues where it was. A state
    resumes with weights that change at its position or later, so a run continues with other
    weights, and with sources more or fewer. ORDER-20 to ORDER-30 in specs/sampler-order.md specify
    the order.

    Args:
        dataset: A `ShardListDataset` or a view of one; anything with ``sources``; or anything with
            ``len()``, which is a single source.
        weights: Numbers of any scale, by name (of a Series, by its index) or in the order of
            ``dataset.sources``; 0 draws nothing. None for those that the spec states, and 1 where
            it states none. A list may have one for each part of torch's ``ConcatDataset``, such as
            two views of one dataset. A schedule is a list of pairs,
            ``[(0, weights), (2_000_000, weights)]``: a number of samples of the whole job, over all
            epochs, and the weights from there on.
        num_samples: Samples in an epoch, of all ranks together; rounded up to a multiple of the
            runs. None for ``len(dataset)``. It may be longer than the data, or shorter.
        num_replicas: Number of ranks; None to look it up.
        rank: Rank of this process, from 0; None to look it up.
        num_canonical: Number of runs that an epoch is cut into; None for one per rank. With a fixed
            number, a job can resume on any number of ranks that divides it.
        chunksize: Largest number of samples in a chunk of a source; ``"auto"`` as in
            `ChunkedSampler`, for a chunk of each source at a time.
        seed: Must be the same on all ranks.
        shuffle: False to read each source in ascending order.
        mesh, replication: Which processes yield the same samples, as in
            `DistributedChunkedSampler`.

    Attributes:
        weights: The share of each source, which add up to 1; of a schedule, the first. They are
            exact; if their common denominator would exceed 2**20, they are rounded to multiples of
            2**-20.
        schedule: Pairs of a number of samples and the shares from there on.

    Raises:
        ValueError: A weight is negative or not a number, all are 0, one belongs to no source, a
            source has no weight or no samples, a schedule does not ascend from 0, or the numbers
            contradict each other.

    Example:
        >>> import wids
        >>> shards = [wids.ShardSpec(f"/{name}.tar", 6, dataset=name) for name in "ab"]
        >>> dataset = wids.ShardListDataset(shards)
        >>> sampler = wids.MixedSampler(dataset, {"a": 3, "b": 1}, num_samples=8)
        >>> list(sampler)  # 0 to 5 are a's, 6 to 11 are b's
        [0, 4, 9, 2, 1, 5, 7, 3]
        >>> sampler.weights["b"]
        Fraction(1, 4)
    """

    _is_elastic = False  # each run continues its pattern in the next epoch (ORDER-23)
    _shown: tuple[str, ...] = ("seed", "shuffle", "weights", "num_samples")

    def __init__(
        self,
        dataset: Sized,
        weights: Weights | None = None,
        *,
        num_samples: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        num_canonical: int | None = None,
        chunksize: int | Literal["auto"] = 2000,
        seed: int = 0,
        shuffle: bool = True,
        mesh: DeviceMesh | None = None,
        replication: int | None = None,
    ) -> None:
        super().__init__(
            dataset,
            num_replicas=num_replicas,
            rank=rank,
            chunksize=chunksize,
            seed=seed,
            shuffle=shuffle,
            num_canonical=num_canonical,
            mesh=mesh,
            replication=replication,
        )
        if weights is None:
            weights = getattr(dataset, "weights", None) or None
        phases = _phases(weights)
        sources = _sources(dataset, self._lengths, phases[0][1])
        checked_phases = [
            (start, _checked_weights(each, sources, f"weights[{start}]" if start else "weights"))
            for start, each in phases
        ]
        self._named = {source.name: source for source in sources}
        # A source without any weight is not there. In the order in which they come into the mix, so
        # that later ones change nothing (ORDER-29).
        names = list(
            dict.fromkeys(name for _, each in checked_phases for name in each if each[name])
        )
        self._sources = tuple(self._named[name] for name in names)
        self._schedule = tuple(
            (start, draws_per_period([each[name] for name in names]))
            for start, each in checked_phases
        )
        at = {name: number for number, name in enumerate(names)}
        self.schedule = [
            (start, {n: Fraction(draws[at[n]] if n in at else 0, sum(draws)) for n in self._named})
            for start, draws in self._schedule
        ]
        self.weights = self.schedule[0][1]
        if len(phases) > 1:
            self._shown = ("seed", "shuffle", "schedule", "num_samples")
        self._num_samples = at_least(
            1, len(dataset) if num_samples is None else num_samples, "num_samples"
        )
        if chunksize == "auto":
            self.chunksize = self._fitting_chunksize(self._settings_of(1))

    def _settings_of(self, num_runs: int) -> Mix:  # type: ignore[override]  # the same
        """Return what the order depends on, of an epoch that is cut into so many runs."""
        return Mix(
            self._lengths,
            self._sources,
            self._schedule,
            -(-self._num_samples // num_runs),
            self.chunksize,
            self.shuffle,
            num_runs,
        )

    def _fingerprint(self) -> dict[str, Any]:
        if not hasattr(self, "_sources_digest"):
            self._sources_digest = self._digest([source.name for source in self._sources])
        phases = [
            [start, {name: str(weight) for name, weight in weights.items()}]
            for start, weights in self.schedule
        ]
        return {
            "sources": self._sources_digest,
            "weights": phases if len(phases) > 1 else phases[0][1],
            "num_samples": self._num_samples,
            "seed": self.seed,
            **stated(
                self.settings,
                otherwise=("lengths", "sources", "schedule", "length", "num_runs"),
                always=("chunksize", "shuffle"),
            ),
            "num_canonical": self._num_runs,
        }

    def _digest(self, names: Collection[str]) -> str:
        """Return a digest of the ranges of some sources."""
        ranges = [each.ranges.ravel() for name, each in self._named.items() if name in names]
        return digest_of(np.concatenate([np.array([len(each) for each in ranges]), *ranges]))

    def _expected_by(self, state: State, *, whole: bool = False) -> dict[str, Any]:
        expected = self._fingerprint()
        epoch, position = state.epoch, state.position
        if whole:
            epoch, position = epoch + (position > 0), 0
        state_weights = state.fingerprint.get("weights")
        num_runs = state.fingerprint["num_canonical"]
        position += epoch * self._settings_of(num_runs).num_indices
        try:
            theirs, ours = (_past(each, position) for each in (state_weights, expected["weights"]))
        except (TypeError, ValueError, AttributeError):
            return expected  # of a state that is damaged, or of another sampler
        if theirs != ours:
            advice = (
                f"to draw with other weights from there on, pass weights=[(0, {{…}}), ({position}, "
                "{…})], with those of the state first"
            )
            if not position:
                advice = "nothing was read before, so to draw with other weights, start without it"
            raise StateError(
                f"the state belongs to another order: weights: expected {ours!r:.400} until sample "
                f"{position}, where it was saved, found {theirs!r:.400} in the state; {advice}"
            )
        # What the state has read is the same; what comes later is that of this sampler (ORDER-30).
        names = {name for _, each in _past(state_weights, math.inf) for name in each}
        if missing := names - self._named.keys():
            raise StateError(
                "dataset: expected the datasets of the state, found none named "
                f"{_listed(sorted(missing))}; keep them in the list of specs, with weight 0 from "
                "the state's position on"
            )
        return {**expected, "weights": state_weights, "sources": self._digest(names)}


def _phases(weights: Any) -> list[tuple[int, Any]]:
    """Return the phases of a schedule; weights that are none have a single one (ORDER-29)."""
    pairs = list(weights) if isinstance(weights, Sequence) else []
    if not any(isinstance(pair, Sequence) and not isinstance(pair, str) for pair in pairs):
        return [(0, weights)]
    try:
        phases = [(at_least(0, start, "number of samples"), each) for start, each in pairs]
    except (TypeError, ValueError):
        phases = []
    starts = [start for start, _ in phases]
    if starts[:1] != [0] or any(a >= b for a, b in pairwise(starts)):
        raise ValueError(
            "weights: expected pairs of a number of samples and the weights from there on, "
            f"ascending from 0, such as [(0, {{…}}), (2_000_000, {{…}})], found {weights!r:.200}"
        )
    return phases


def _past(weights: Any, position: float) -> list[tuple[int, dict[str, str]]]:
    """Return the weights in a state without what begins at a position or later, and without 0."""
    phases = weights if isinstance(weights, list) else [[0, weights]]
    return [
        (start, {name: weight for name, weight in each.items() if weight != "0"})
        for start, each in phases
        if not start or start < position
    ]


def _sources(dataset: Sized, lengths: IntArray, weights: Any) -> tuple[Source, ...]:
    """Return the named datasets; all indices are one source where there are no names.

    The parts of torch's ``ConcatDataset`` are sources if there is a list with a weight for each.
    """
    ends = np.cumsum(lengths)
    ranges = np.stack([ends - lengths, ends], axis=1)
    named: Mapping[str, Any] = getattr(dataset, "sources", {"": ranges})
    wrapper = unwrapped(dataset)
    is_joined = wrapper is not None and not wrapper.is_stacked and wrapper.indices is None
    parts = wrapper.datasets if wrapper is not None and is_joined else []
    if isinstance(weights, Sequence) and len(weights) == len(parts) > 1:
        edges = np.cumsum([len(lengths_of(part)) for part in parts])
        names = map(str, range(len(parts)))
        named = dict(zip(names, np.split(ranges, edges[:-1]), strict=True))
    return tuple(Source(name, np.asarray(ranges)) for name, ranges in named.items())


def _checked_weights(weights: Any, sources: Sequence[Source], what: str) -> dict[str, Fraction]:
    """Return the weight of each source, as a fraction, by its name."""
    names = [source.name for source in sources]
    if weights is None:
        weights = [1] * len(names)
    if has_other_labels(weights):  # a Series by name, whose order may be another
        weights = weights.to_dict()
    if not isinstance(weights, Mapping):
        try:
            values = list(weights)
        except TypeError:
            raise ValueError(
                f"{what}: expected numbers by name or in a list, found {weights!r:.80}"
            ) from None
        if len(values) != len(names):
            raise ValueError(
                f"{what}: expected {len(names)}, one for each of {_listed(names)}, found "
                f"{len(values)}; specs of one name are one dataset, so give each a name of its "
                "own; views are mixed as torch's ConcatDataset([view, other_view]), with a weight "
                "for each"
            )
        weights = dict(zip(names, values, strict=True))
    if unknown := [name for name in weights if name not in names]:
        raise ValueError(
            f"{what}: expected names of datasets, {_listed(names)}, found {_listed(unknown)}"
        )
    if missing := [name for name in names if name not in weights]:
        raise ValueError(
            f"{what}: expected one for each dataset, found none for {_listed(missing)}; 0 "
            "draws nothing from a dataset"
        )
    fractions = {name: checked_weight(weights[name], f"{what}[{name!r}]") for name in names}
    if not any(fractions.values()):
        raise ValueError(f"{what}: expected one that is not 0, found 0 for each dataset")
    if empty := [s.name for s in sources if fractions[s.name] and not s.num_samples]:
        raise ValueError(
            f"dataset: expected samples of each source, found none of {_listed(empty)}; leave it "
            "out of the list of specs, or give it weight 0"
        )
    return fractions


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(f"{name!r}" for name in names)[:200] or "none"
