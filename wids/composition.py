"""A dataset → what is made of it: a sample by its key, a gallery.

`ComposableDataset` offers these as methods. Each is a docstring and a call of the package that does
the work, imported when it is first needed. How a sample is read is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wids.mapstyle import MapStyleDataset
from wids.reading.positions import Positions, index_of
from wids.transport import urls

if TYPE_CHECKING:
    from wids.looking.notebook import Gallery
    from wids.looking.preview import Browsable
    from wids.reading.reader import ShardReader
    from wids.specs.model import DatasetSpec


class ComposableDataset(MapStyleDataset):
    """What can be made of any dataset of samples in shards.

    Attributes:
        spec: The resolved spec.
        reader: The shards of the dataset; views share it.
        dataset_name: The ``__dataset__`` of samples whose shard belongs to no dataset of its own.
    """

    spec: DatasetSpec
    reader: ShardReader
    dataset_name: str
    _positions: Positions

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

    def _find(self, key: str, shard: int | str | None) -> int:
        number = None if shard is None else self._number(shard)
        for position in self.reader.find(key, number):
            index = index_of(self._positions, position)
            if index >= 0:  # the view has the sample
                return index
        name = repr(self) if number is None else urls.redact(self.spec.shards[number].url)
        raise KeyError(f"{name}: no sample has the key {key!r}")

    def _number(self, shard: int | str) -> int:
        """Return the number of a shard that is named by number or URL."""
        if not isinstance(shard, str):
            if 0 <= shard < len(self.spec.shards):
                return shard
            raise IndexError(f"shard {shard} is out of range for {self!r}")
        for number, shard_spec in enumerate(self.spec.shards):
            if shard_spec.url == shard:
                return number
        raise KeyError(f"{urls.redact(shard)}: no such shard in {self!r}")

    def _found(self, index: int) -> Any:
        """Return a sample whose shard was opened to find it, so that nothing has to be fetched."""
        raise NotImplementedError

    # What people look at.

    def show(
        self: Browsable,
        num_samples: int = 12,
        *,
        seed: int | None = None,
        where: Callable[[Any], Any] | None = None,
    ) -> Gallery:
        """Return a gallery, which displays itself in a notebook.

        Only small pictures and texts are read, by range where shards are remote. With ``where``,
        whole samples are read until enough of them match.

        Args:
            num_samples: Most samples to show.
            seed: None for the first samples, a number for random ones.
            where: Takes a sample, and returns whether to show it. It is called for at most a
                thousand samples; samples that cannot be read are skipped.

        Example:
            >>> gallery = dataset[1:].show(where=lambda sample: sample[".cls"] == 2)
            >>> gallery.indices
            [1]
        """
        from wids.looking import notebook

        return notebook.gallery(self, num_samples, seed, where)

    def _repr_html_(self: Browsable) -> str:
        from wids.looking import notebook

        return notebook.summary_html(self)
