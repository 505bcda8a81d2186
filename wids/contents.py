"""A dataset → what is in it: fields, sources, weights, positions, and samples by their keys.

`DatasetContents` answers from the spec and from indexes, by way of the reader. How a sample is
read, and what is made of a dataset, are not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wids.mapstyle import MapStyleDataset
from wids.reading.positions import Positions, counts_per_shard, first_index_of
from wids.transport import urls

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wids.columns.keys import Keys
    from wids.reading.reader import ShardReader
    from wids.sampling.fit import Limits
    from wids.specs.model import DatasetSpec


_FOR_THE_LIBRARY: Final = (
    *("is_overridden", "is_view", "locate", "only", "own_sample", "reader", "shard_number"),
    *("transformed", "undecoded"),
)
"""What packages of wids ask of a dataset; tab completion shows what is for its users."""


class DatasetContents(MapStyleDataset):
    """What is in any dataset of samples in shards.

    Attributes:
        spec: The resolved spec.
        reader: The shards of the dataset; views share it.
        dataset_name: The ``__dataset__`` of samples whose shard belongs to no dataset of its own.
    """

    spec: DatasetSpec
    reader: ShardReader
    dataset_name: str
    _positions: Positions

    @property
    def lengths(self) -> list[int]:
        """Samples in each shard."""
        raise NotImplementedError

    def __repr__(self) -> str:
        from wids.looking.reprs import dataset_repr

        return dataset_repr(self)

    def __dir__(self) -> list[str]:
        hidden = _FOR_THE_LIBRARY
        return [n for n in super().__dir__() if n not in hidden and (n[:1] != "_" or n[:2] == "__")]

    @property
    def fields(self: Any) -> list[str]:
        """Names of the fields of the samples, those that most samples have first.

        As the indexes of some shards state them, spread over the dataset. No sample is read and no
        shard is fetched; the list is empty if all shards are remote and have no index.

        Example:
            >>> dataset.fields
            ['.txt', '.cls']
        """
        from wids.looking.preview import field_stats

        return list(self.reader.field_names([stats.field for stats in field_stats(self)]))

    @property
    def sources(self) -> dict[str, npt.NDArray[np.int64]]:
        """The indices of each named dataset, as start and stop of ranges; shape ``(m, 2)``.

        The names are those that samples have as ``__dataset__``, in the order of the shards. There
        is one range for each shard, where the samples of a view stay in the order of the shards.

        Example:
            >>> dataset.sources[""].tolist()
            [[0, 3]]
        """
        from wids.reading.sources import ranges_by_name

        names = [shard.dataset or self.dataset_name for shard in self.spec.shards]
        return ranges_by_name(self._positions, self.reader.edges, names)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each named dataset, as the spec states it; 1 where it does not.

        Example:
            >>> dataset.weights
            {'': 1}
        """
        return {name: self.spec.weights.get(name, 1) for name in self.sources}

    @property
    def positions(self) -> Positions:
        """Positions of the samples in the whole dataset: a range, or an ascending or other array.

        Example:
            >>> dataset[1:].positions
            range(1, 3)
        """
        return self._positions

    @property
    def limits(self) -> Limits:
        """What this machine can hold of the dataset, by which samplers choose and check chunks.

        Example:
            >>> dataset.limits.cache_nbytes is None
            True
        """
        return self.reader.limits(counts_per_shard(self._positions, self.reader.edges))

    # Samples by key.

    def get_by_key(self, key: str, shard: int | str | None = None) -> Any:
        """Return the first sample with a key.

        Args:
            key: The key, as samples have it under ``__key__``.
            shard: Number or URL of the only shard to search, which is fetched if it has no index;
                None for all, in order.

        Raises:
            KeyError: No sample has the key.
            IndexError: There is no shard of this number.
            FetchError: A shard has no index, and would have to be fetched to be searched.

        Example:
            >>> dataset.get_by_key("000001")[".txt"]
            'text 1'
        """
        return self._found(self._find(key, shard))

    def find_key(self, key: str) -> int:
        """Return the index of the first sample with a key, as `get_by_key` finds it.

        Raises:
            KeyError: No sample has the key.
            FetchError: A shard has no index, and would have to be fetched to be searched.

        Example:
            >>> dataset.find_key("000001")
            1
        """
        return self._find(key, None)

    def keys(self) -> Keys:
        """Return the keys of the samples, as a sequence that reads indexes when it is asked.

        ``key in dataset.keys()`` takes constant time, as `find_key` does. A dataset is a sequence
        and not a mapping: ``key in dataset`` and ``dict(dataset)`` are errors.

        Example:
            >>> keys = dataset.keys()
            >>> len(keys), keys[-1], "000001" in keys, list(keys[:2])
            (3, '000002', True, ['000000', '000001'])
        """
        from wids.columns.keys import Keys

        return Keys(self.reader, self._positions)

    def __contains__(self, item: object) -> bool:
        # Without this method Python would read sample after sample, and compare each of them.
        raise TypeError(
            f"{self!r}: expected `key in dataset.keys()`, found `item in dataset`, which would "
            "read every sample to compare it"
        )

    def _find(self, key: str, shard: int | str | None) -> int:
        if not isinstance(key, str):
            raise TypeError(f"key: expected a text, found {type(key).__name__} {key!r:.80}")
        number = None if shard is None else self._number(shard)
        index = first_index_of(self._positions, self.reader.find(key, number))
        if index >= 0:  # the view has the sample
            return index
        # No `repr`, which looks for fields: a key that no sample has must cost little.
        own = f"{type(self).__name__} {self.dataset_name!r}"
        name = own if number is None else urls.redact(self.spec.shards[number].url)
        raise KeyError(f"{name}: no sample has the key {key!r}")

    def _number(self, shard: int | str) -> int:
        """Return the number of a shard that is named by number or URL."""
        if not isinstance(shard, str):
            from wids.sampling.arguments import at_least  # not for reading: decision 0057

            number = at_least(0, shard, "shard")
            if number < len(self.spec.shards):
                return number
            raise IndexError(f"shard {shard} is out of range for {self!r}")
        for number, shard_spec in enumerate(self.spec.shards):
            if shard_spec.url == shard:
                return number
        raise KeyError(f"{urls.redact(shard)}: no such shard in {self!r}")

    def _found(self, index: int) -> Any:
        """Return a sample whose shard was opened to find it, so that nothing has to be fetched."""
        raise NotImplementedError
