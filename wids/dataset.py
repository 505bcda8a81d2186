"""`ShardListDataset`: indices → decoded samples, with their provenance.

The dataset maps the indices of a view to positions, has its `ShardReader` read them, labels the
samples, and passes them through the transformations. Files, caches and shards are the reader's.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, overload

import numpy.typing as npt

from wids.cache.store import Cache, Localname
from wids.composition import ComposableDataset
from wids.errors import WidsError
from wids.fetching.fetch import Fetcher
from wids.fetching.range_reader import RangeError
from wids.looking.in_notebooks import show_samples_in_notebooks
from wids.mapstyle import join_torch
from wids.opening.cache_settings import cache_folder, cache_limits, placed_names
from wids.opening.options import Access, ReadOptions, Verify, field_set
from wids.reading.counted_shards import counted_shards
from wids.reading.indices import as_index
from wids.reading.positions import (
    Positions,
    counts_per_shard,
    from_start,
    index_of,
    position_at,
    select,
    select_batch,
)
from wids.reading.reader import OpenByNumber, ShardReader, in_batch
from wids.specs.loader import Shards, load_with
from wids.tars.names import KeySplit
from wids.tars.samples import Raw
from wids.tars.shard import Shard
from wids.transport.local import Opener
from wids.views.augmentation import SharedEpoch
from wids.views.failures import Failed, Failures, Policy, as_failures
from wids.views.transformations import Transformation, as_transformations, checked, locate_error

Sample: TypeAlias = dict[str, Any]
OnError: TypeAlias = Callable[[WidsError], Any]


_logger = logging.getLogger("wids")


class ShardListDataset(ComposableDataset):
    """Samples by index, from tar shards.

    A sample is a dict: its fields under their names with the leading dot (``".jpg"``,
    ``".seg.png"``), then ``__key__``, ``__index__``, ``__shard__`` (path or URL),
    ``__shardindex__`` (position in the shard) and ``__dataset__``.

    ``dataset[i]`` reads one sample; ``i`` may be negative. A slice, indices or a boolean mask (a
    list, an array, or a column of pandas, Arrow or polars) select a *view*: a dataset that shares
    everything with this one and reads nothing. A mask has the length of the dataset or view, and a
    null in it is false. Samplers follow the shards of a view whose indices ascend.

    Safe to read from any number of threads, and can be pickled and forked at any time. ``close``
    (or leaving a ``with`` block) releases the open shards; a later read opens them again.

    A subclass can override ``__getitem__``: batches, iteration and `get_by_key` then go through it,
    sample by sample. A slice reaches it too; ``super().__getitem__`` returns the view. Where the
    program has imported torch, the class is a ``torch.utils.data.Dataset``.

    Args:
        shards: Path, URL, ``Path`` or open file of a JSON spec; one ``.tar``; a pattern with braces
            or wildcards; a folder; a spec; a list of these, of ``(path, count)`` pairs or of dicts.
            Shards without a count are indexed once, now, to learn the length.
        base: Folder or URL that relative references start from, instead of the spec's.
        cache_dir: Folder for copies of remote shards and for indexes. None for ``$WIDS_CACHE``, or
            else the user's cache folder. A shard that was placed in a folder passed here, under its
            base name, is used if the spec states its ``filesize`` or a digest, and the file
            matches.
        cache_size: Most bytes of copies to store there, or a text such as ``"200GB"``; the least
            recently used copies are deleted first. None for ``$WIDS_CACHE_SIZE``, or else no limit.
        keep: True never deletes a copy, whatever ``cache_size`` says.
        localname: Returns the path of a file for the URL of a remote shard, which is used in place
            or fetched to, instead of a file in ``cache_dir``; or None for the latter. It is called
            with the paths of local shards too; these are never copied, so that what it returns is
            read if it exists, and otherwise the shard itself.
        lru_size: Most shards to keep open; None for 256 or a quarter of the process's file
            descriptors, whichever is less.
        access: ``"download"`` fetches whole remote shards. ``"range"`` reads only the bytes of
            samples, and needs an index that was published or is left in the cache. ``"auto"`` reads
            single samples by range where it can, until a quarter of a shard was read this way, and
            fetches the shards of batches.
        transformations: ``"PIL"``, ``"numpy"``, ``"torch"`` or another name that `wids.Decoder`
            knows, to decode fields by extension and pictures to that form; or a list of callables,
            each from a sample to a sample, and such names; ``[]`` or None to leave every field
            undecoded.
        raw: The form of an undecoded field: ``"stream"`` (``io.BytesIO``), ``"bytes"``, or
            ``"view"`` (``memoryview`` without a copy).
        fields: The only fields to read, with or without their leading dots; None for all. A field
            that no shard has is an error when the first shard is opened, or only a warning where
            fetching would be needed to know.
        key_split: Where member names are split into key and field, at the ``"first"`` or the
            ``"last"`` dot; None for what the spec says, or else the first.
        on_error: What to do where a sample cannot be produced. None raises the error. ``"skip"``
            leaves damaged samples out of batches and iterations; `wids.collate` copes with an empty
            batch. ``"next"`` takes the next good sample of the view, of at most 100. Both count in
            ``num_failed`` and warn once, and raise if a shard cannot be fetched. A callable is
            called with any error, and its result takes the place of the sample.
        dataset_name: The ``__dataset__`` of samples, instead of the spec's name.
        allow_pipe: Whether a spec may name ``pipe:`` commands.
        allow_pickle: Whether to decode pickles, and thereby execute the code in them.
        storage_options: ``headers`` and ``timeout`` for HTTP; ``retry_s``, the seconds to wait for
            a server that is away (by default ``$WIDS_RETRY_S``, or 300); and what fsspec's file
            systems take for other schemes; or dicts of those by URL prefix. Once a document is
            read from a URL, options without a prefix, except ``retry_s``, go to its server only.
            None for the JSON of ``$WIDS_STORAGE_OPTIONS``; ``{}`` for none at all.
        handlers: For each scheme a callable that returns an open binary file for a URL.
        progress: Whether to show progress bars while shards are fetched or counted; None for
            ``$WIDS_PROGRESS``, or else in terminals and notebooks only.
        verify: When to compare the bytes of fields with the checksums that indexes have, if they
            were published or made when the shard was fetched: ``"auto"`` if the fields will be
            decoded, ``"always"`` also if they stay undecoded, or ``"never"``. A damaged copy of a
            remote shard is fetched once more; a damaged local shard is an error. What is read by
            range is compared with ``"auto"`` too. `verify_spec` compares whole shards.
        options: None. The old library replaced entries of the document by these.

    Attributes:
        spec: The resolved spec.
        reader: The shards of the dataset; views share it.
        transformations: The callables that a sample passes through; may be assigned.
        dataset_name: The ``__dataset__`` of samples whose shard belongs to no dataset of its own.

    Raises:
        SpecError: ``shards`` is malformed; or its shards have no counts, and more than a gigabyte
            would have to be downloaded to count them, without ``access="download"``.
        NotFoundError: A shard that has to be counted does not exist, or a name stands for nothing.
        FetchError: A document, or a shard that has to be counted, cannot be read.
        ShardFormatError: A shard that has to be counted is not a complete, plain tar.

    Example:
        >>> import wids
        >>> with wids.TarWriter("train.tar") as writer:
        ...     for n in range(3):
        ...         _ = writer.write({"__key__": f"{n:06d}", "txt": f"text {n}", "cls": n})
        >>> dataset = wids.ShardListDataset("train.tar")
        >>> len(dataset)
        3
        >>> dataset[-1][".txt"], dataset[-1][".cls"]
        ('text 2', 2)
        >>> [sample["__key__"] for sample in dataset[1:]]
        ['000001', '000002']
        >>> dataset.close()
    """

    def __init__(
        self,
        shards: Shards,
        *,
        base: str | os.PathLike[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
        keep: bool = False,
        localname: Localname | None = None,
        lru_size: int | None = None,
        access: Access = "auto",
        transformations: str | Sequence[str | Transformation] | None = "PIL",
        raw: Raw = "stream",
        fields: Collection[str] | None = None,
        key_split: KeySplit | None = None,
        on_error: OnError | Policy | None = None,
        dataset_name: str | None = None,
        allow_pipe: bool = False,
        allow_pickle: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        handlers: Mapping[str, Opener] | None = None,
        progress: bool | None = None,
        verify: Verify = "auto",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if options:
            raise ValueError(
                f"options: expected None, found {options!r:.80}; change the document and pass it "
                'as shards: {**json.load(open("train.json")), "name": "other"}, with base='
            )
        # Not at import: programs may import torch after this module, and a dataset has to be
        # torch's then.
        join_torch()
        read_options = ReadOptions(access, field_set(fields), raw, key_split, lru_size, verify)
        folder = cache_folder(cache_dir)
        # Commands write their output where copies are, on a disk that is meant to hold it.
        fetcher = Fetcher(storage_options, handlers, os.path.join(folder, "shards"))
        self.spec = load_with(fetcher, shards, base, allow_pipe=allow_pipe)
        self.on_error = on_error
        self.dataset_name = self.spec.name if dataset_name is None else dataset_name
        self.transformations = as_transformations(transformations, allow_pickle=allow_pickle)
        store = Cache(
            folder,
            fetcher,
            limits=cache_limits(cache_size, keep=keep, shards=self.spec.shards),
            localname=localname,
            # Nobody placed a file in the default folder for this dataset.
            offered=frozenset() if cache_dir is None else placed_names(self.spec.shards),
            wants_progress=progress,
        )
        self.reader = ShardReader(counted_shards(self.spec, store, read_options, progress=progress))
        self._positions: Positions = range(len(self.reader))
        self._epoch = SharedEpoch()
        # A notebook that has a dataset has samples to show, and importing wids changes nothing.
        show_samples_in_notebooks()

    @property
    def on_error(self) -> OnError | Policy | None:
        """What to do where a sample cannot be produced, as passed; may be assigned."""
        return self._on_error

    @on_error.setter
    def on_error(self, on_error: OnError | Policy | None) -> None:
        self._failures: Failures | None = as_failures(on_error)
        self._on_error = on_error

    @property
    def num_failed(self) -> int:
        """Samples that ``on_error="skip"`` has left out or ``"next"`` replaced, in all workers."""
        return 0 if self._failures is None else self._failures.num_failed.value

    # A sequence of samples.

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | npt.NDArray[Any]) -> ShardListDataset: ...
    def __getitem__(self, index: Any) -> Any:
        if type(index) is not int:  # nearly always it is, and as_index is a call
            try:
                index = as_index(index)
            except TypeError:
                return self._view(select(self._positions, index))
        positions, reader = self._positions, self.reader
        if not 0 <= index < len(positions):
            index = from_start(index, len(positions))
        position = positions[index]
        if type(position) is not int:  # an array yields a numpy integer
            position = int(position)
        local = reader.fetches_for_many if in_batch.get() is reader else reader.fetches_for_one
        return self._sample(position, bisect_right(reader.ends, position), local)

    def __getitems__(self, indices: Sequence[int] | npt.NDArray[Any]) -> list[Any]:
        """Return a batch: exactly ``[dataset[i] for i in indices]``, with each shard opened once.

        torch's DataLoader calls this instead of ``dataset[i]`` for each index.

        Example:
            >>> [sample[".txt"] for sample in dataset.__getitems__([2, 0])]
            ['text 2', 'text 0']
        """
        if self._failures is not None:
            return self._failures.batch(self, indices)
        # True and False in a batch are 1 and 0, as for dataset[i]; only a view takes a mask.
        positions = select_batch(self._positions, indices)
        samples: list[Any] = [None] * len(positions)
        groups, open_shard = self.reader.of_batch(positions)
        for number, places, local_indices in groups:
            self._read_into(samples, places, number, local_indices, open_shard)
        return samples

    def __iter__(self) -> Iterator[Any]:
        return self._in_turn() if self._failures is None else self._failures.iterate(self)

    def _in_turn(self) -> Iterator[Any]:
        positions, reader, latest, local = self._positions, self.reader, -1, False
        for position in positions if isinstance(positions, range) else positions.tolist():
            number = bisect_right(reader.ends, position)
            # Asked once for each shard, since the answer depends on how much of the shard the view
            # has.
            if number != latest:
                latest, local = number, reader.fetches_for_view(number, positions)
            yield self._sample(position, number, local)

    # What users of the old library know.

    @property
    def lengths(self) -> list[int]:
        """Samples in each shard, zeros included, by which samplers follow the shards.

        ``[len(view)]`` for a view of indices that are not in ascending order.

        Example:
            >>> dataset.lengths, dataset[1:].lengths, dataset[[0, 2]].lengths
            ([3], [2], [2])
        """
        return counts_per_shard(self._positions, self.reader.edges)

    @property
    def total_length(self) -> int:
        """The number of samples, like ``len``."""
        return len(self)

    @property
    def shards(self) -> list[dict[str, Any]]:
        """The shards as they stand in a JSON document, with absolute URLs.

        Example:
            >>> [shard["url"].rpartition("/")[2] for shard in dataset.shards]
            ['train.tar']
        """
        return [shard_spec.entry() for shard_spec in self.spec.shards]

    def get_shard(self, index: int) -> tuple[Shard, int, dict[str, Any]]:
        """Return the shard of a sample, the position of the sample in it, and its JSON entry.

        A remote shard is fetched. The shard stays the dataset's: do not close it.

        Raises:
            IndexError: The index is out of range.
            FetchError: The shard cannot be opened or fetched.

        Example:
            >>> shard, local_index, entry = dataset.get_shard(2)
            >>> shard[local_index]["__key__"]
            '000002'
        """
        number, local_index = self.locate(index)
        shard = self.reader.open(number)
        if not isinstance(shard, Shard):  # the reader was asked for a local one
            raise TypeError(f"{shard!r}: expected a local shard")
        return shard, local_index, self.spec.shards[number].entry()

    def get_stats(self) -> tuple[int, int]:
        """Return how often a shard was asked for, and how often it had to be opened.

        Example:
            >>> num_accesses, num_misses = dataset.get_stats()
            >>> num_accesses >= num_misses
            True
        """
        return self.reader.pool.num_accesses, self.reader.pool.num_misses

    def check_cache_misses(self) -> None:
        """Log a warning if more than 30% of over 100 accesses had to open their shard.

        Example:
            >>> dataset.check_cache_misses()
        """
        num_accesses, num_misses = self.get_stats()
        if num_accesses > 100 and num_misses > 0.3 * num_accesses:
            _logger.warning(
                "%r: %d of %d accesses had to open their shard; read in the order of a "
                "ShardListSampler or ChunkedSampler, or make lru_size larger",
                self,
                num_misses,
                num_accesses,
            )

    def fetch_shard(self, number: int) -> None:
        """Fetch a remote shard, unless it is local or another process fetches it.

        Raises:
            FetchError: The shard cannot be fetched.
            MismatchError: The shard is not what the spec says.

        Example:
            >>> dataset.fetch_shard(0)  # does nothing, as this shard is local
        """
        self.reader.fetch(self._number(number))

    def add_transform(self, transformation: Transformation) -> ShardListDataset:
        """Append a transformation to this dataset itself, and return it; `map` returns a view.

        Example:
            >>> dataset[:].add_transform(lambda sample: sample[".cls"])[2]
            2
        """
        self.transformations.append(checked(transformation, "transformation"))
        return self

    def close(self) -> None:
        """Release all open shards, which the views of the dataset share.

        Example:
            >>> dataset.close()
            >>> dataset[0][".txt"]  # opens the shard again
            'text 0'
        """
        self.reader.close()

    def __enter__(self) -> ShardListDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What the samplers, the prefetcher and the page ask.

    def shard_number(self, index: int) -> int:
        """Return the number of the shard that a sample is in; the index must not be negative."""
        return bisect_right(self.reader.ends, int(self._positions[index]))

    def locate(self, index: int) -> tuple[int, int]:
        """Return the number of the shard that a sample is in, and its position in the shard.

        Raises:
            IndexError: The index is out of range.

        Example:
            >>> dataset.locate(-1)
            (0, 2)
        """
        return self.reader.locate(position_at(self._positions, index))

    def only(self, fields: Collection[str] | None) -> ShardListDataset:
        """Return a view that fetches no whole shards, and raises instead of calling ``on_error``.

        The view has open shards of its own: close it.

        Args:
            fields: The only fields to read, as undecoded bytes; None for whole samples, transformed
                as in this dataset.

        Example:
            >>> with dataset.only([".cls"]) as view:
            ...     view[2][".cls"]
            b'2'
        """
        reader = self.reader.only(fields)
        positions = self._positions
        view = self._view(positions) if fields is None else self._reading(reader, positions)
        view.reader = reader
        # What is shown has to be the error and not the replacement that training would get.
        view.on_error = None
        return view

    def _reading(self, reader: ShardReader, positions: Positions) -> ShardListDataset:
        view = self._view(positions)
        view.reader = reader
        view.transformations = []
        view.__class__ = ShardListDataset  # a subclass expects its samples, not others
        return view

    @property
    def is_overridden(self) -> bool:
        """Whether a subclass decides what a sample is."""
        return type(self).__getitem__ is not ShardListDataset.__getitem__

    @property
    def is_view(self) -> bool:
        """Whether these are not all samples of the shards in their order."""
        return not isinstance(self._positions, range) or len(self) != len(self.reader)

    def own_sample(self, index: int) -> Any:
        """Return ``dataset[index]``, and not what a subclass makes of it."""
        return ShardListDataset.__getitem__(self, index)

    def _found(self, index: int) -> Any:
        if self._failures is not None:  # the next sample has another key
            strict = self._view(self._positions)
            strict.on_error = None
            return strict._found(index)  # noqa: SLF001 - another of this class
        # The subclass decides what a sample is, also for one that is found by its key.
        if self.is_overridden:
            return self[index]
        position = int(self._positions[index])
        number = bisect_right(self.reader.ends, position)
        return self._sample(position, number, local=False)

    def _each(self, indices: Iterable[int]) -> Iterator[Any]:
        return (
            super()._each(indices) if self._failures is None else self._failures.each(self, indices)
        )

    def _reading_batch(self) -> AbstractContextManager[None]:
        return self.reader.reading_many()

    def _reading_pass(self) -> AbstractContextManager[None]:
        # A view may have one sample of each shard, so it reads as single samples do.
        return nullcontext() if self.is_view else self.reader.reading_many()

    # Reading one sample. Its labels are not `reader.labels(…)`: the call would cost more than they.

    def _sample(self, position: int, number: int, local: bool, is_again: bool = False) -> Any:
        """Read, label and transform one sample.

        Args:
            position: Its position in the dataset.
            number: The number of its shard.
            local: As for `ShardPool.get`. Neither this nor what follows is keyword-only, since
                Python matches those by name, at each call.
            is_again: Whether it was read before, from a copy that was damaged.
        """
        reader = self.reader
        start, shard_spec = reader.starts[number], reader.shards[number]
        labels = (start, shard_spec.url, shard_spec.dataset or self.dataset_name)
        transformations = self.transformations
        verify = reader.verifies_decoded if transformations else reader.verifies_raw
        shard = None
        try:
            shard = reader.open(number, local)
            sample = shard.read(position - start, verify, labels)
        except WidsError as error:  # names the shard
            if isinstance(error, RangeError) and not local and reader.fetches_for_many:
                # The server has no ranges, and fetching was not ruled out.
                return self._sample(position, number, local=True)
            if shard is not None and not is_again and reader.replaces(number, shard, error):
                return self._sample(position, number, local, is_again=True)
            return self._stand_in(error, position, opened=shard is not None)
        return self.transformed(sample) if transformations else sample

    def _read_into(
        self,
        batch: list[Any],
        places: list[int],
        number: int,
        local_indices: list[int],
        open_shard: OpenByNumber,
    ) -> None:
        """Read, label and transform samples of one shard, into their places in a batch."""
        reader = self.reader
        transformations, local = self.transformations, reader.fetches_for_many
        verify = reader.verifies_decoded if transformations else reader.verifies_raw
        shard = None
        try:
            shard = open_shard(number, local)
            labels = reader.labels(number, self.dataset_name)
            samples = shard.read_many(local_indices, verify=verify, labels=labels)
        except WidsError as error:  # names the shard
            start = reader.starts[number]
            for place, local_index in zip(places, local_indices, strict=True):
                # One by one, so that only those that fail are replaced. A shard that cannot be
                # opened is not tried for each of them.
                batch[place] = (
                    self._stand_in(error, start + local_index, opened=False)
                    if shard is None
                    else self._sample(start + local_index, number, local)
                )
            return
        for place, sample in zip(places, samples, strict=True):
            batch[place] = self.transformed(sample) if transformations else sample

    def transformed(self, sample: Any) -> Any:
        """Return what the transformations make of a labelled sample."""
        # Kept before the first call: a transformation may return something that has no such
        # entries.
        shard, key, index = sample["__shard__"], sample["__key__"], sample["__index__"]
        try:
            for transform in self.transformations:
                sample = transform(sample)
        except Exception as error:  # noqa: BLE001 - raised again, or passed to the caller
            # Wrapped, so that `on_error` gets one kind of exception, with the sample's name
            # (decision 0003).
            located = locate_error(error, sample, shard, key, index)
            located.__cause__ = error
            return self._stand_in(located, index)
        return sample

    def _stand_in(self, error: WidsError, position: int, *, opened: bool = True) -> Any:
        """Return what ``on_error`` has for a sample that cannot be produced, or raise.

        Args:
            error: The reason.
            position: The position of the sample.
            opened: Whether its shard could be opened, so that the sample itself may be to blame.
        """
        failures, on_error = self._failures, self._on_error
        if not opened and (failures is not None or on_error is Failed):
            raise error
        if failures is not None:
            return failures.one(self, index_of(self._positions, position), error)
        if not callable(on_error):
            raise error
        return on_error(error)
