"""A dataset → what is made of it: a sample by its key, all keys, a table, a gallery.

`ComposableDataset` offers these as methods. Each is a docstring and a call of the package that does
the work, imported when it is first needed. How a sample is read is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Literal

from wids.mapstyle import MapStyleDataset
from wids.reading.positions import Positions, counts_per_shard, index_of, select
from wids.transport import urls
from wids.views.transformations import Transformation

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from typing_extensions import Self

    from wids.columns.column_parts import Errors
    from wids.columns.column_paths import Columns
    from wids.columns.keys import Keys
    from wids.joining.joins import JoinableView, Missing
    from wids.looking.notebook import Gallery
    from wids.looking.preview import Browsable
    from wids.reading.reader import ShardReader
    from wids.sampling.fit import Limits
    from wids.specs.model import DatasetSpec
    from wids.views.augmentation import SharedEpoch


_FOR_THE_LIBRARY: Final = (
    *("is_overridden", "is_view", "locate", "only", "own_sample", "reader", "shard_number"),
    *("transformed", "undecoded"),
)
"""What packages of wids ask of a dataset; tab completion shows what is for its users."""


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
    transformations: list[Transformation]
    on_error: Any
    _positions: Positions
    _epoch: SharedEpoch

    @property
    def lengths(self) -> list[int]:
        """Samples in each shard."""
        raise NotImplementedError

    def _view(self, positions: Positions) -> Self:
        # A shallow copy: views share reader, pool and cache, so they cost nothing and open nothing
        # twice.
        view = copy(self)
        view._positions = positions  # noqa: SLF001 - another of this class
        # A list of its own, so that add_transform on the view leaves this dataset alone.
        view.transformations = list(self.transformations)
        return view

    def _with(self, transformation: Transformation) -> Self:
        """Return a view with one more transformation."""
        view = self._view(self._positions)
        view.transformations.append(transformation)
        return view

    def __repr__(self) -> str:
        from wids.looking.reprs import dataset_repr

        return dataset_repr(self)

    def __dir__(self) -> list[str]:
        hidden = _FOR_THE_LIBRARY
        return [n for n in super().__dir__() if n not in hidden and (n[:1] != "_" or n[:2] == "__")]

    # What is in it.

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
        number = None if shard is None else self._number(shard)
        for position in self.reader.find(key, number):
            index = index_of(self._positions, position)
            if index >= 0:  # the view has the sample
                return index
        # No `repr`, which looks for fields: a key that no sample has must cost little.
        own = f"{type(self).__name__} {self.dataset_name!r}"
        name = own if number is None else urls.redact(self.spec.shards[number].url)
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

    # Views.

    def map(self, function: Callable[..., Any], *, seed: int | None = None) -> Self:
        """Return a view whose samples pass through one more transformation.

        Args:
            function: Takes a sample, and returns what takes its place.
            seed: None, or a number for a function of a sample and a ``numpy.random.Generator``,
                which follows from this seed, the epoch and the index of the sample, so that an
                augmentation is the same with any number of workers, and after a resume. wids'
                samplers set the epoch; with others call `set_epoch`.

        Example:
            >>> dataset.map(lambda sample: sample[".cls"] * 10)[2]
            20
            >>> noisy = dataset.map(lambda sample, rng: sample[".cls"] + rng.random(), seed=0)
            >>> noisy[2] == noisy[2]
            True
        """
        if seed is not None:
            from wids.views.augmentation import Augmentation

            function = Augmentation(function, seed, self._epoch.number())
        return self._with(function)

    def to_tuple(self, *fields: str) -> Self:
        """Return a view of tuples, for training loops that unpack.

        Args:
            fields: A name for each entry of the tuple, with or without its leading dot. Of several
                names separated by semicolons the first that a sample has is taken, in any case.

        Example:
            >>> dataset.to_tuple(".jpg;.png;.txt", "cls")[2]
            ('text 2', 2)
        """
        from wids.views.tuples import ToTuple

        return self._with(ToTuple(*fields))

    def undecoded(self) -> Self:
        """Return a view of the same samples as they are stored, whose errors are raised.

        Example:
            >>> dataset.undecoded()[2][".cls"].getvalue()
            b'2'
        """
        view = self._view(self._positions)
        view.transformations = []
        view.on_error = None
        return view

    def split(
        self,
        parts: Sequence[float],
        *,
        seed: int = 0,
        by: Literal["sample", "shard"] = "sample",
    ) -> list[Self]:
        """Return views that have each sample once, drawn at random, each in ascending order.

        Samplers follow the shards in them, unlike in the parts of torch's ``random_split``.

        Args:
            parts: The share of each part: fractions that add up to 1, or counts.
            seed: Different seeds give unrelated splits, the same on every machine.
            by: ``"sample"``, or ``"shard"`` for parts of whole shards, of nearly these sizes.

        Raises:
            ValueError: The parts do not add up.

        Example:
            >>> train, test = dataset.split([0.67, 0.33], seed=1)
            >>> len(train), len(test)
            (2, 1)
        """
        from wids.views.splits import split_indices

        indices = split_indices(self.lengths, parts, seed, by)
        return [self._view(select(self._positions, part)) for part in indices]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of ``map(…, seed=…)`` in all views of this dataset.

        wids' samplers do so when a pass begins, over the dataset, a view of it, or one of torch's
        wrappers around them.

        Example:
            >>> dataset.set_epoch(1)
        """
        self._epoch.set(epoch)
        self.reader.set_epoch(epoch)

    # Other data by key.

    def join(self, other: Any, *, missing: Missing = "error", prefix: str = "") -> Self:
        """Return a view whose samples have further fields: those that another side has for a key.

        Which samples belong together is found out once, from indexes, and stored in the cache
        folder. Entries of the other side whose keys no sample has are ignored. ``__key__`` and the
        other labels are those of this dataset.

        Args:
            other: A dataset or view, in shards of any kind; a ``pyarrow.Table`` (or what becomes
                one) with a column ``__key__``; a pandas frame with a column or an index
                ``__key__``; a mapping from keys to values, or to mappings of fields; or a pattern
                such as ``"{shard}.captions.json"``, for a file of JSON beside each shard.
            missing: What becomes of a sample whose key the other side does not have: ``"error"``,
                ``"skip"`` to leave it out, or ``"none"`` for None as the other side's fields.
            prefix: Comes before the names of the other side's fields: with ``"b"``, ``.txt``
                becomes ``.b.txt``.

        Raises:
            JoinError: Keys are missing, or not unique on one side. When a sample is read: both
                sides have a field of one name.
            FetchError: A remote shard has no index.

        Example:
            >>> captions = {"000000": "a cat", "000001": "a dog"}
            >>> joined = dataset.join(captions, prefix="caption", missing="skip")
            >>> len(joined), joined[1][".txt"], joined[1][".caption"]
            (2, 'text 1', 'a dog')
        """
        from wids.joining.joins import joined_reader

        if isinstance(other, ComposableDataset):
            other = other._joinable()  # noqa: SLF001 - another of this class
        reader, chosen = joined_reader(self._joinable(), other, missing, prefix)
        return self._reading(reader, select(self._positions, chosen))

    def _joinable(self: Any) -> JoinableView:
        from wids.joining.joins import JoinableView

        whole = self._view(range(len(self.reader)))
        whole.on_error = None  # an error is the joined dataset's
        return JoinableView(whole, self._positions)

    def _reading(self, reader: ShardReader, positions: Positions) -> Self:
        """Return a view whose samples come from another reader, and are not transformed."""
        raise NotImplementedError

    # All samples at once.

    def table(
        self,
        columns: Columns,
        *,
        errors: Errors = "raise",
        executor: Executor | None = None,
        progress: bool | None = None,
    ) -> pa.Table:
        """Return fields, and parts of fields, of all samples as the columns of an Arrow table.

        A row for each sample, in their order. Only the named fields are read, as they are stored:
        ``transformations``, ``fields`` and ``on_error`` are not used. A path into JSON, MessagePack
        or CBOR follows the field after a slash: ``.json/size/0`` is the first item of ``size``; in
        a key, ``~1`` stands for ``/``. Where a sample lacks the field or the part, and where it is
        null, the row is null.

        The type of a column is the one that all values fit: bool, int64 (uint64 for larger ones),
        float64, string, binary (fields that wids does not decode), or a list of those. Integers and
        floating-point numbers together are float64. Objects, and lists of objects or of several
        types, are strings of JSON. Needs the extra ``wids[table]``.

        Args:
            columns: Paths by the names of their columns, or a list of paths, which are the names
                too. ``__index__`` (position in the whole dataset) and ``__key__`` are always there.
            errors: ``"raise"``, or ``"null"`` for null in place of a value that cannot be decoded,
                that is damaged, or that has another type than most values of the column.
            executor: Where to read; any `concurrent.futures.Executor`. None for this thread.
            progress: Whether to show a progress bar; None for in terminals and notebooks only.

        Raises:
            TableError: No sample has a path, or the values of a column have several types.
            DecodeError: A field cannot be decoded.
            FetchError: A shard cannot be opened or read.
            ValueError: A column has no values by its path, as those of pictures.
            ModuleNotFoundError: pyarrow is not installed.

        Example:
            >>> table = dataset.table({"label": ".cls", "caption": ".txt"})
            >>> table["label"].to_pylist(), str(table.schema.field("caption").type)
            ([0, 1, 2], 'string')
            >>> mask = table["label"].to_numpy() > 0
            >>> [sample[".txt"] for sample in dataset[mask]]
            ['text 1', 'text 2']
        """
        from wids.columns.table import read_table

        return read_table(
            self.reader,
            self._positions,
            columns,
            errors=errors,
            executor=executor,
            progress=progress,
        )

    # What people look at.

    def show(
        self: Browsable,
        num_samples: int = 12,
        *,
        seed: int | None = None,
        where: Callable[[Any], Any] | None = None,
    ) -> Gallery:
        """Return a gallery, which displays itself in a notebook; its ``next()`` is the next page.

        Only small pictures and texts are read, by range where shards are remote. With ``where``,
        whole samples are read until enough of them match.

        Args:
            num_samples: Most samples to show.
            seed: None for the first samples, a number for random ones, as `wids browse` shows them.
            where: Takes a sample, and returns whether to show it. It is called for at most a
                thousand samples for each page; samples that cannot be read are skipped.

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
