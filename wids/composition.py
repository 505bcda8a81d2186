"""A dataset → what is made of it: views, a joined dataset, a table, a gallery.

`ComposableDataset` offers these as methods. Each is a docstring and a call of the package that does
the work, imported when it is first needed. How a sample is read is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from copy import copy
from typing import TYPE_CHECKING, Any, Literal

from wids.contents import DatasetContents
from wids.reading.positions import Positions, select
from wids.views.transformations import Transformation, checked

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

    from wids.columns.column_parts import Errors
    from wids.columns.column_paths import Columns
    from wids.joining.joins import JoinableView, Missing
    from wids.looking.notebook import Gallery
    from wids.looking.preview import Browsable
    from wids.reading.reader import ShardReader
    from wids.views.augmentation import SharedEpoch


class ComposableDataset(DatasetContents):
    """What can be made of any dataset of samples in shards.

    Attributes:
        transformations: The callables that a sample passes through; may be assigned.
        on_error: What to do where a sample cannot be produced.
    """

    transformations: list[Transformation]
    on_error: Any
    _epoch: SharedEpoch

    # Views.

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
        checked(function, "function")
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
        view.reader = self.reader.undecoded()
        view.transformations, view.on_error = [], None
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
        from wids.sampling.arguments import at_least  # not for reading: decision 0057

        number = at_least(0, epoch, "epoch")
        self._epoch.set(number)
        self.reader.set_epoch(number)

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
