"""Draw the indices of one rank from named datasets in exact proportions, as a torch sampler.

It checks the arguments and makes passes over the pure functions of `wids.order.mixing`. Ranks do
not communicate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wids.order.arguments import at_least, lengths_of, unwrapped
from wids.order.elastic import lengths_digest, stated
from wids.order.mixing import Mix, Source, checked_weight, draws_per_period
from wids.order.samplers import DistributedChunkedSampler
from wids.storage.arrays import IntArray

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


Weights = Mapping[str, Any] | Sequence[Any]


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
    states, and trainers do not replace the sampler. ORDER-20 to ORDER-26 in specs/sampler-order.md
    specify the order.

    Args:
        dataset: A `ShardListDataset` or a view of one; anything with ``sources``; or anything with
            ``len()``, which is a single source.
        weights: Numbers of any scale, by name or in the order of ``dataset.sources``; 0 draws
            nothing. None for those that the spec states, and 1 where it states none. A list may
            have one for each part of torch's ``ConcatDataset``, such as two views of one dataset.
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
        weights: The share of each source, which add up to 1. They are exact; if their common
            denominator would exceed 2**20, they are rounded to multiples of 2**-20.

    Raises:
        ValueError: A weight is negative or not a number, all are 0, one belongs to no source, a
            source has no weight or no samples, or the numbers contradict each other.

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
        sources = _sources(dataset, self._lengths, weights)
        if weights is None:
            weights = getattr(dataset, "weights", None) or [1] * len(sources)
        stated = _checked_weights(weights, sources)
        # A source of weight 0 is not there: an order has draws of each of its sources.
        self._sources = tuple(source for source in sources if stated[source.name])
        self._draws = draws_per_period([stated[source.name] for source in self._sources])
        draws = dict(zip((source.name for source in self._sources), self._draws, strict=True))
        self.weights = {
            source.name: Fraction(draws.get(source.name, 0), sum(self._draws)) for source in sources
        }
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
            self._draws,
            -(-self._num_samples // num_runs),
            self.chunksize,
            self.shuffle,
            num_runs,
        )

    def _fingerprint(self) -> dict[str, Any]:
        if not hasattr(self, "_sources_digest"):
            ranges = [source.ranges.ravel() for source in self._sources]
            counts = np.array([len(each) for each in ranges])
            self._sources_digest = lengths_digest(np.concatenate([counts, *ranges]))
        return {
            "sources": self._sources_digest,
            "weights": {name: str(weight) for name, weight in self.weights.items()},
            "num_samples": self._num_samples,
            "seed": self.seed,
            **stated(
                self.settings,
                otherwise=("lengths", "sources", "draws", "length", "num_runs"),
                always=("chunksize", "shuffle"),
            ),
            "num_canonical": self._num_runs,
        }


def _sources(dataset: Sized, lengths: IntArray, weights: Weights | None) -> tuple[Source, ...]:
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


def _checked_weights(weights: Weights, sources: Sequence[Source]) -> dict[str, Fraction]:
    """Return the weight of each source, as a fraction, by its name."""
    names = [source.name for source in sources]
    if not isinstance(weights, Mapping):
        try:
            values = list(weights)
        except TypeError:
            raise ValueError(
                f"weights: expected numbers by name or in a list, found {weights!r:.80}"
            ) from None
        if len(values) != len(names):
            raise ValueError(
                f"weights: expected {len(names)}, one for each of {_listed(names)}, found "
                f"{len(values)}; specs of one name are one dataset, so give each a name of its "
                "own; views are mixed as torch's ConcatDataset([view, other_view]), with a weight "
                "for each"
            )
        weights = dict(zip(names, values, strict=True))
    if unknown := [name for name in weights if name not in names]:
        raise ValueError(
            f"weights: expected names of datasets, {_listed(names)}, found {_listed(unknown)}"
        )
    if missing := [name for name in names if name not in weights]:
        raise ValueError(
            f"weights: expected one for each dataset, found none for {_listed(missing)}; 0 "
            "draws nothing from a dataset"
        )
    fractions = {name: checked_weight(weights[name], f"weights[{name!r}]") for name in names}
    if not any(fractions.values()):
        raise ValueError("weights: expected one that is not 0, found 0 for each dataset")
    if empty := [s.name for s in sources if fractions[s.name] and not s.num_samples]:
        raise ValueError(
            f"dataset: expected samples of each source, found none of {_listed(empty)}; leave it "
            "out of the list of specs, or give it weight 0"
        )
    return fractions


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(f"{name!r}" for name in names)[:200] or "none"
