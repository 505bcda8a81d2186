"""Define `ShardListDataset`: samples by index, and what users make of them.

Each method calls the package that does the work, which is imported when it is first needed.
`wids.dataset.access` reads samples.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import replace
from io import BufferedReader
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import numpy.typing as npt

from wids.dataset.access import Access, OnError, Transformation, as_transformations, checked
from wids.dataset.failures import Policy, as_failures
from wids.dataset.reprs import dataset_repr, show_in_notebooks
from wids.dataset.torch_dataset import TorchDataset, check_spawnable, join_torch, overrides
from wids.errors import missing_attribute
from wids.shards.counted_shards import counted_shards
from wids.shards.policy import Wanted
from wids.shards.positions import (
    Positions,
    as_index,
    counts_per_shard,
    first_index_of,
    from_start,
)
from wids.shards.read_options import (
    AccessMode,
    PlacedNames,
    ReadOptions,
    Verify,
    cache_folder,
    cache_limit,
    field_set,
)
from wids.shards.reader import ShardReader
from wids.shards.specs.loader import Shards, load_with
from wids.shards.specs.model import common_classes, is_of_classes
from wids.shards.specs.shard_columns import columns_of
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import Repeated
from wids.shards.tars.raw_samples import Raw
from wids.shards.tars.shard import Shard
from wids.storage.cache.store import Cache, Localname
from wids.storage.fetch import Fetcher
from wids.storage.shared_numbers import SharedNumber
from wids.storage.stages import SAMPLES, counted, here, this_process
from wids.storage.transport import urls
from wids.storage.transport.local import Opener

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from torch.utils.data import ConcatDataset, Dataset
    from typing_extensions import Self

    from wids.look.notebook import Gallery
    from wids.shards.capacity import Capacity
    from wids.shards.sample_access import Keys
    from wids.tables.column_values import Columns
    from wids.tables.columns import Errors
    from wids.tables.join_keys import DatasetKeys
    from wids.tables.joins import Missing

_logger = logging.getLogger(__name__)

_OLD: Final = "(see docs/migration.md)"
_FOREIGN: Final = "(see docs/from-webdataset.md)"
_ADVICE: Final = {
    "base": f"the URLs in dataset.shards, which are absolute {_OLD}",
    "cache": f"dataset.get_shard(index); the dataset manages its open shards {_OLD}",
    "cache_dir": f"dataset.get_shard(index)[0].path; the names of copies are hashes {_OLD}",
    "cum_lengths": f"itertools.accumulate(dataset.lengths) {_OLD}",
    "batched": f"torch's DataLoader {_FOREIGN}",
    "decode": f'transformations="torch" or another name, where the dataset is made {_FOREIGN}',
    "filter": f"dataset.search(where=...), or a mask, dataset[mask] {_FOREIGN}",
    "rename": f"dataset.map(function) {_FOREIGN}",
    "select": f"indices or a mask, dataset[[3, 5]] {_FOREIGN}",
    "shuffle": f"sampler=wids.ChunkedSampler(dataset) of the DataLoader {_FOREIGN}",
}
"""What to use instead of attributes of the old library, and of webdataset."""


class ShardListDataset(TorchDataset):
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
            with the paths of local shards too; these are never copied: the path that it returns is
            read if it exists, and otherwise the shard itself.
        lru_size: Most shards to keep open; None for 256 or a quarter of the process's file
            descriptors, whichever is less.
        access: ``"download"`` fetches whole remote shards. ``"range"`` reads only the bytes of
            samples, and needs an index that was published or is left in the cache. ``"auto"`` reads
            samples and batches by range where it can, and fetches a shard when that costs at most
            as much again as was read of it, or when a pass of a sampler was announced.
        transformations: ``"PIL"``, ``"numpy"``, ``"torch"`` or another name that `wids.Decoder`
            knows, to decode fields by extension and pictures to that form; or a list of callables,
            each from a sample to a sample, and such names; ``[]`` or None to leave every field
            undecoded.
        raw: The form of an undecoded field: ``"stream"`` (``io.BytesIO``), ``"bytes"``, or
            ``"view"`` (a read-only ``memoryview``, of local files without a copy).
        fields: The only fields to read, with or without their leading dots; None for all. A field
            that no shard has is an error when the first shard is opened, or only a warning where
            fetching would be needed to know.
        key_split: Where member names are split into key and field, at the ``"first"`` or the
            ``"last"`` dot; None for what the spec says, or else the first.
        repeated: What members of one name are in a tar that has no index yet: ``"error"``, since
            they may be two samples with one key, or ``"last"`` to read the last of them.
        on_error: What to do if a sample cannot be produced. None raises the error. ``"skip"``
            leaves damaged samples out of batches and iterations; `wids.collate` copes with an empty
            batch. ``"next"`` takes the next good sample of the view, of at most 100. Both count in
            ``num_failed`` and warn once. They pass over a shard too that is missing, incomplete, no
            tar, or not what the spec says, with a warning for each, counted in
            ``num_failed_shards``; ``"next"`` takes samples of the next shard. A shard without a
            stated count then has no samples. Where a server is away, or a sample lacks a field that
            a transformation asks for, they raise. A callable is
            called with any error, and its result takes the place of the sample.
        max_failed: The largest share of samples to pass over, such as 0.01: beyond it their error
            is raised, as soon as the broken shards have more of all samples, or more samples have
            failed than this share of those read, or of the dataset's if it has more. Each rank
            counts its own. None ends an epoch in which the first 100 samples all fail, or more than
            half of at least 1,000, since that is a mistake of the program; 1.0 never does.
        dataset_name: The ``__dataset__`` of samples, instead of the spec's name.
        allow_pipe: Whether a spec may name ``pipe:`` commands.
        allow_pickle: Whether to decode pickles, and thereby execute the code in them.
        storage_options: ``headers`` (a dict, or a callable that returns one, for tokens that
            expire) and ``timeout`` for HTTP; ``retry_s``, the seconds to wait for a server that is
            away (by default ``$WIDS_RETRY_S``, or 300); ``deadline_s``, the seconds that a read may
            take in all (``$WIDS_DEADLINE_S``, or no limit); ``hedge``, whether late requests are
            sent twice (``$WIDS_HEDGE``, or true); and options of object stores and of the drivers
            of other schemes; or dicts of those by URL prefix. Once a document is read from a URL,
            options without a prefix, except these three, go to its server only.
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
        access: AccessMode = "auto",
        transformations: str | Sequence[str | Transformation] | None = "PIL",
        raw: Raw = "stream",
        fields: Collection[str] | None = None,
        key_split: KeySplit | None = None,
        repeated: Repeated = "error",
        on_error: OnError | Policy | None = None,
        max_failed: float | None = None,
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
        join_torch(ShardListDataset)
        read_options = ReadOptions(
            access, field_set(fields), raw, key_split, lru_size, verify, repeated
        )
        folder = cache_folder(cache_dir)
        # Commands write their output where copies are, on a disk that is meant to hold it.
        fetcher = Fetcher(storage_options, handlers, os.path.join(folder, "shards"))
        self.spec = load_with(fetcher, shards, base, allow_pipe=allow_pipe)
        failures = as_failures(on_error, max_failed)
        steps = as_transformations(transformations, allow_pickle=allow_pickle)
        store = Cache(
            folder,
            fetcher,
            limit_nbytes=cache_limit(cache_size, keep=keep, shards=self.spec.shards),
            localname=localname,
            # No user placed a file in the default folder for this dataset.
            offered=() if cache_dir is None else PlacedNames(folder, self.spec.shards),
            wants_progress=progress,
        )
        passes_over = failures is not None
        reader = counted_shards(
            self.spec, store, read_options, passes_over=passes_over, progress=progress
        )
        if failures is not None:
            failures.check_shards(reader)
        self._access = Access(
            range(len(reader)),
            reader,
            self.spec.name if dataset_name is None else dataset_name,
            steps,
            on_error,
            failures,
            is_overridden=type(self).__getitem__ is not ShardListDataset.__getitem__,
        )
        self._epoch = SharedNumber()
        # Not at import, which changes nothing: a notebook with a dataset has samples to show.
        show_in_notebooks(reader, self.spec)

    @property
    def sample_access(self) -> Access:
        """How the samples are read, for other packages of wids."""
        return self._access

    @property
    def reader(self) -> ShardReader:
        """The shards of the dataset; views share it."""
        return self._access.reader

    @property
    def positions(self) -> Positions:
        """Positions of the samples in the whole dataset: a range, or an array of int64.

        Example:
            >>> dataset[1:].positions
            range(1, 3)
        """
        return self._access.positions

    @property
    def is_view(self) -> bool:
        """Whether these are not all samples of the shards in their order."""
        return self._access.is_view

    @property
    def dataset_name(self) -> str:
        """The ``__dataset__`` of samples whose shard names no dataset."""
        return self._access.dataset_name

    @dataset_name.setter
    def dataset_name(self, dataset_name: str) -> None:
        self._change(dataset_name=dataset_name)

    @property
    def transformations(self) -> list[Transformation]:
        """The callables that a sample passes through; may be assigned."""
        return self._access.transformations

    @transformations.setter
    def transformations(self, transformations: list[Transformation]) -> None:
        self._change(transformations=transformations)

    def _change(self, **values: Any) -> None:
        if "_access" in vars(self):  # what a subclass assigns earlier, the constructor replaces
            self._access = replace(self._access, **values)

    @property
    def on_error(self) -> OnError | Policy | None:
        """What to do if a sample cannot be produced, as passed; may be assigned."""
        return self._access.on_error

    @on_error.setter
    def on_error(self, on_error: OnError | Policy | None) -> None:
        self._access = self._access.with_on_error(on_error)

    @property
    def num_failed(self) -> int:
        """Samples that ``on_error="skip"`` has left out or ``"next"`` replaced, in all workers."""
        failures = self._access.failures
        return 0 if failures is None else failures.num_failed.value

    @property
    def num_failed_shards(self) -> int:
        """Shards that ``on_error`` has found broken and passes over, in all workers."""
        return self.reader.num_broken

    # A sequence of samples.

    def __len__(self) -> int:
        return len(self._access.positions)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | npt.NDArray[Any]) -> ShardListDataset: ...
    def __getitem__(self, index: Any) -> Any:
        access = self._access
        positions = access.positions
        if type(index) is not int:  # nearly always it is, and as_index is a call
            try:
                index = as_index(index)
            except TypeError:
                return self._view(access.selected(index))
        if not 0 <= index < len(positions):
            index = from_start(index, len(positions))
        position = positions[index]
        if type(position) is not int:  # an array yields a numpy integer
            position = int(position)
        if this_process.num_watchers:
            return access.watched(access.read, position)
        this_process.num_samples += 1
        return access.read(position)

    def __getitems__(self, indices: Sequence[int] | npt.NDArray[Any]) -> list[Any]:
        """Return a batch: exactly ``[dataset[i] for i in indices]``, with each shard opened once.

        torch's DataLoader calls this instead of ``dataset[i]`` for each index.

        Example:
            >>> [sample[".txt"] for sample in dataset.__getitems__([2, 0])]
            ['text 2', 'text 0']
        """
        here.row[SAMPLES] += len(indices)
        return self._access.batch(indices)

    def __iter__(self) -> Iterator[Any]:
        return self._access.in_turn()

    def __contains__(self, item: object) -> bool:
        # Without this method Python would read and compare sample after sample.
        raise TypeError(
            f"{self!r}: expected `key in dataset.keys()`, found `item in dataset`, which would "
            "read every sample to compare it"
        )

    def __repr__(self) -> str:
        return dataset_repr(self)

    def __getstate__(self) -> dict[str, Any]:
        check_spawnable(self._access.steps, self._access.on_error)
        return vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        join_torch(ShardListDataset)  # in a process that was spawned

    # Subclasses.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make batches and iteration call the ``__getitem__`` of a subclass that defines one."""
        from wids.dataset.access import batch, one_by_one

        super().__init_subclass__(**kwargs)

        # Here, once for each class: a check for each sample would slow down every dataset.
        if overrides(cls, "__getitem__", "__getitems__"):
            cls.__getitems__ = batch  # type: ignore[assignment, method-assign]
        if overrides(cls, "__getitem__", "__iter__"):
            cls.__iter__ = one_by_one  # type: ignore[method-assign]

    def __class_getitem__(cls, item: Any) -> GenericAlias:
        """Return the class with an annotation, as old programs write it; it changes nothing."""
        return GenericAlias(cls, item)

    def __add__(self, other: Dataset[Any]) -> ConcatDataset[Any]:
        """Return torch's ``ConcatDataset`` of this dataset and another.

        Its samplers cannot follow shards; ``ShardListDataset`` of both lists of shards can.
        """
        from torch.utils.data import ConcatDataset

        return ConcatDataset([self, other])

    # Contents.

    @property
    def fields(self) -> list[str]:
        """Names of the fields of the samples, most frequent first.

        They come from the indexes of some shards, of a view those that it is in. No sample is read
        and no shard is fetched; the list is empty if all shards are remote and have no index.

        Example:
            >>> dataset.fields
            ['.txt', '.cls']
        """
        from wids.shards.sample_access import field_stats

        return list(self.reader.field_names([stats.field for stats in field_stats(self)]))

    @property
    def classes(self) -> list[str]:
        """Names of the classes whose numbers are in the fields ``.cls``, as the spec states them.

        `wids pack` and `pack_folder` write them for class folders. Empty if the spec has none; may
        be assigned.

        Example:
            >>> view = dataset[:]
            >>> view.classes = ["a", "b", "c"]
            >>> len(view.search(where=".cls == 'b'"))
            1
        """
        if "_classes" in vars(self):
            found: list[str] = vars(self)["_classes"]  # as it is, whatever the program means by it
            return found
        return self.spec.classes

    @classes.setter
    def classes(self, classes: list[str]) -> None:
        self._classes = classes  # as it is, whatever the program means by it
        if "spec" in vars(self):  # what a subclass assigns earlier is its own
            self.spec = replace(self.spec, extras={**self.spec.extras, "classes": classes})
            if not self.is_view:  # a sample does not tell which view it comes from
                show_in_notebooks(self.reader, self.spec)

    @property
    def sources(self) -> dict[str, npt.NDArray[np.int64]]:
        """The indices of each named dataset, as start and stop of ranges; shape ``(m, 2)``.

        The names are those that samples have as ``__dataset__``, in the order of the shards. There
        is one range for each shard, where the samples of a view stay in the order of the shards.

        Example:
            >>> dataset.sources[""].tolist()
            [[0, 3]]
        """
        from wids.shards.positions import ranges_by_name

        names, numbers = columns_of(self.spec.shards).dataset_names(self.dataset_name)
        return ranges_by_name(self.positions, self.reader.edges, names, numbers)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each named dataset, as the spec states it; 1 where it does not.

        Example:
            >>> dataset.weights
            {'': 1}
        """
        return {name: self.spec.weights.get(name, 1) for name in self.sources}

    @property
    def lengths(self) -> list[int]:
        """Samples in each shard, zeros included, by which samplers follow the shards.

        ``[len(view)]`` for a view of indices that are not in ascending order.

        Example:
            >>> dataset.lengths, dataset[1:].lengths, dataset[[0, 2]].lengths
            ([3], [2], [2])
        """
        return counts_per_shard(self.positions, self.reader.edges)

    @property
    def limits(self) -> Capacity:
        """What this machine can hold of the dataset, by which samplers choose and check chunks.

        Example:
            >>> dataset.limits.cache_nbytes is None
            True
        """
        from wids.shards.sample_access import capacity_of

        return capacity_of(self.reader, self.lengths)

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
        """Return the keys of the samples, as a sequence that reads indexes when it is used.

        ``key in dataset.keys()`` takes constant time, as `find_key` does. A dataset is a sequence
        and not a mapping: ``key in dataset`` and ``dict(dataset)`` are errors.

        Example:
            >>> keys = dataset.keys()
            >>> len(keys), keys[-1], "000001" in keys, list(keys[:2])
            (3, '000002', True, ['000000', '000001'])
        """
        from wids.shards.sample_access import Keys

        return Keys(self.reader, self.positions)

    def _find(self, key: str, shard: int | str | None) -> int:
        if not isinstance(key, str):
            raise TypeError(f"key: expected a text, found {type(key).__name__} {key!r:.80}")
        number = None if shard is None else self._number(shard)

        def index_of(key: str) -> int:
            return first_index_of(self.positions, self.reader.find(key, number))

        index = index_of(key)
        if index >= 0:  # the view has the sample
            return index
        # No `repr`, which looks for fields: a missing key must cost little.
        own = f"{type(self).__name__} {self.dataset_name!r}"
        name = own if number is None else urls.redact(self.spec.shards[number].url)
        from wids.shards.key_lookup import form_hint

        hint = form_hint(key, lambda other: index_of(other) >= 0)
        raise KeyError(f"{name}: no sample has the key {key!r}{hint or '; its keys() are all'}")

    def _number(self, shard: int | str) -> int:
        """Return the number of a shard that is named by number or URL."""
        if not isinstance(shard, str):
            from wids.order.arguments import at_least  # not for reading: decision 0057

            number = at_least(0, shard, "shard")
            if number < len(self.spec.shards):
                return number
            raise IndexError(f"shard {shard} is out of range for {self!r}")
        for number, shard_spec in enumerate(self.spec.shards):
            if shard_spec.url == shard:
                return number
        raise KeyError(f"{urls.redact(shard)}: no such shard in {self!r}")

    def _found(self, index: int) -> Any:
        """Return a sample whose shard was opened to find it, so nothing has to be fetched."""
        access = self._access
        if access.failures is not None:  # the next sample has another key
            access = access.with_on_error(None)
        # The subclass decides what a sample is, also for one that is found by its key.
        if access.is_overridden:
            return (self if access is self._access else self._view(access))[index]
        position, number = int(access.positions[index]), access.shard_number(index)
        return access.read(position, number, Wanted.PART)

    # Views.

    def _view(self, access: Access) -> Self:
        # A shallow copy: views share reader, pool and cache, so they cost nothing and open nothing
        # twice.
        view = copy(self)
        view._access = access  # noqa: SLF001 - another of this class
        return view

    def _plain(self, access: Access) -> ShardListDataset:
        """Return a dataset of samples that a subclass does not expect, as those of a join."""
        made = ShardListDataset.__new__(ShardListDataset)
        vars(made).update(vars(self))  # what users have set on this one, too
        made._access = replace(access, transformations=[], is_overridden=False)  # noqa: SLF001
        return made

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
            from wids.dataset.augmentation import Augmentation

            self._epoch.reserve()
            function = Augmentation(function, seed, self._epoch)
        return self._view(self._access.followed_by(function))

    def to_tuple(
        self, *fields: str, missing: Mapping[str, Any] | Literal["error", "skip"] = "error"
    ) -> Self:
        """Return a view of tuples, for training loops that unpack.

        Args:
            fields: A name for each entry of the tuple, with or without its leading dot. Of several
                names separated by semicolons the first that a sample has is taken, in any case.
            missing: How to treat a sample that lacks a field: ``"error"``, also with ``on_error``;
                ``"skip"`` for a view without such samples, by the indexes of the shards; or values
                by the names of fields: ``{".txt": ""}``.

        Raises:
            FetchError: With ``"skip"``, a remote shard has no index.

        Example:
            >>> dataset.to_tuple(".jpg;.png;.txt", "cls")[2]
            ('text 2', 2)
            >>> dataset.to_tuple(".json", "cls", missing={".json": None})[2]
            (None, 2)
        """
        from wids.dataset.tuples import ToTuple

        if isinstance(missing, str):
            step, access = ToTuple(*fields), self._access
            if missing == "skip":
                access = access.selected(step.in_all(access.reader, access.positions))
            elif missing != "error":
                raise ValueError(f'missing: expected "error", "skip" or values, found {missing!r}')
            return self._view(access.followed_by(step))
        return self._view(self._access.followed_by(ToTuple(*fields, missing=missing)))

    def undecoded(self) -> Self:
        """Return a view of the same samples as they are stored, whose errors are raised.

        Example:
            >>> dataset.undecoded()[2][".cls"].getvalue()
            b'2'
        """
        return self._view(self._access.undecoded())

    def only(self, fields: Collection[str] | None) -> ShardListDataset:
        """Return a view that fetches no whole shards, and raises instead of calling ``on_error``.

        The view opens its own shards: close it.

        Args:
            fields: The only fields to read, as undecoded bytes; None for whole samples, transformed
                as in this dataset.

        Example:
            >>> with dataset.only([".cls"]) as view:
            ...     view[2][".cls"]
            b'2'
        """
        # What is shown has to be the error and not the replacement that training would get.
        access = replace(self._access.with_on_error(None), reader=self.reader.only(fields))
        return self._view(access.followed_by()) if fields is None else self._plain(access)

    def split(
        self,
        parts: Sequence[float],
        *,
        seed: int = 0,
        by: Literal["sample", "shard"] | Sequence[Any] | npt.NDArray[Any] = "sample",
    ) -> list[Self]:
        """Return views that have each sample once, drawn at random, each in ascending order.

        Samplers follow the shards in them, unlike in the parts of torch's ``random_split``.

        Args:
            parts: The share of each part: fractions that add up to 1, or counts.
            seed: Different seeds give unrelated splits, the same on every machine.
            by: ``"sample"``, or ``"shard"`` for parts of whole shards, of nearly these sizes; or a
                label for each sample, such as a column of a table, for parts in which each label
                has the same share.

        Raises:
            ValueError: The parts do not add up.
            TypeError: A Series of labels may be in another order.

        Example:
            >>> train, test = dataset.split([0.67, 0.33], seed=1)
            >>> len(train), len(test)
            (2, 1)
        """
        from wids.dataset.splits import split_indices

        indices = split_indices(self.lengths, parts, seed, by)
        return [self._view(self._access.selected(part)) for part in indices]

    def add_transform(self, transformation: Transformation) -> ShardListDataset:
        """Append a transformation to this dataset itself, and return it; `map` returns a view.

        Example:
            >>> dataset[:].add_transform(lambda sample: sample[".cls"])[2]
            2
        """
        self.transformations.append(checked(transformation, "transformation"))
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of ``map(…, seed=…)`` in all views of this dataset.

        wids' samplers do so when a pass begins, over the dataset, a view of it, or one of torch's
        wrappers around them.

        Example:
            >>> dataset.set_epoch(1)
        """
        from wids.order.arguments import at_least  # not for reading: decision 0057

        number = at_least(0, epoch, "epoch")
        self._epoch.set(number)
        if self._access.joint is not None:
            self._access.joint.set_epoch(number)
        if self._access.failures is not None:
            self._access.failures.begin_epoch()

    def search(
        self, words: str = "", *, where: str = "", field: str = "", seed: int | None = None
    ) -> Self:
        """Return a view of the samples that a search on the page of `wids browse` shows.

        Reads keys, and the small fields that the conditions are on, in this thread; a column of a
        saved table is read from the table. Fields that are damaged or too long are left out as on
        the page, and logged.

        Args:
            words: Texts that a key or the captions contain, without regard to case and also inside
                words: ``"red"`` finds "covered".
            where: Comparisons joined by ``and``: ``.cls == "dog" and .json/height >= 256``.
            field: A field that the samples have.
            seed: A number for the page's random order; None for the order of this dataset.

        Raises:
            ValueError: ``where`` is not a condition, or names a class that the spec does not; no
                sample has the field of a condition; or a shard has no index.
            TypeError: A condition is a function.
            WidsError: A shard cannot be read.

        Example:
            >>> [sample[".txt"] for sample in dataset.search("text", where=".cls > 0")]
            ['text 1', 'text 2']
        """
        from wids.tables.search import found_in, parse_conditions

        whole = self._view(replace(self._access, positions=range(len(self.reader))))
        conditions = parse_conditions(words, where, field, self.spec.classes)
        indices = found_in(whole, self.positions, conditions, seed)
        return self._view(self._access.selected(indices))

    # Other data by key.

    def join(
        self,
        other: Any,
        *,
        on: str = "__key__",
        columns: Sequence[str] | None = None,
        missing: Missing = "error",
        prefix: str = "",
    ) -> ShardListDataset:
        """Return a view whose samples have further fields: those that another side has for a key.

        Keys are matched now, from indexes. Entries of the other side whose keys no sample has are
        ignored. ``__key__`` and the other labels are those of this dataset.

        Args:
            other: A dataset or view, in shards of any kind; a ``pyarrow.Table`` (or what becomes
                one) with a column ``__key__``; a pandas frame with a column or an index
                ``__key__``; a mapping from keys to values, or to mappings of fields; an array whose
                first dimension counts the samples of this view, in their order; or the path or
                URL of a file, ``.parquet``, ``.csv``, ``.tsv``, ``.jsonl`` or ``.json``, also with
                ``.gz``. With ``{shard}``, the name of a shard without ``.tar``, ``{number}``, the
                last digits in it, or ``{relative}``, its path from the folder of all shards, it
                stands for a file of each shard, as in ``"{shard}.captions.json"``.
            on: The column of a table, a frame or a file that has the keys.
            columns: The columns of it that become fields; None for all others.
            missing: How to treat a sample whose key the other side does not have: ``"error"``,
                ``"skip"`` to leave it out, or ``"none"`` for None as the other side's fields.
            prefix: Comes before the names of the other side's fields: with ``"b"``, ``.txt``
                becomes ``.b.txt``.

        Raises:
            JoinError: Keys are missing, or not unique on one side. When a sample is read: both
                sides have a field of one name.
            SpecError: The classes of another dataset differ.
            FetchError: A remote shard has no index.

        Example:
            >>> captions = {"000000": "a cat", "000001": "a dog"}
            >>> joined = dataset.join(captions, prefix="caption", missing="skip")
            >>> len(joined), joined[1][".txt"], joined[1][".caption"]
            (2, 'text 1', 'a dog')
        """
        from wids.tables.joins import joined_reader

        if isinstance(other, ShardListDataset):
            if any(map(is_of_classes, other.reader.fields or (".cls",))):
                names = ("the dataset", "the other dataset")
                common_classes(zip(names, (self.classes, other.classes), strict=True))
            other = other._joinable("the other dataset")  # noqa: SLF001 - another of this class
        reader, chosen = joined_reader(self._joinable(), other, missing, prefix, on, columns)
        return self._plain(self._access.selected(chosen).through(reader))

    def _joinable(self, role: str = "the dataset") -> DatasetKeys:
        from wids.tables.join_keys import DatasetKeys
        from wids.tables.join_sides import KeyedSamples

        # Of all samples, with its own transformations; the joined dataset handles errors.
        access = self._access.with_on_error(None).followed_by()
        whole = replace(access, positions=range(len(access.reader)))
        return DatasetKeys(KeyedSamples(self._view(whole)), self.positions, role)

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
            executor: Where to read; any `concurrent.futures.Executor`. None for this
                process.
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
        from wids.tables.table import read_table

        return read_table(
            self.reader,
            self.positions,
            columns,
            errors=errors,
            executor=executor,
            progress=progress,
        )

    # Galleries.

    def show(
        self,
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
        from wids.look import notebook

        return notebook.gallery(self, num_samples, seed, where)

    def _repr_html_(self) -> str:
        from wids.look import notebook

        return notebook.summary_html(self)

    # Shards.

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
        if self._access.joint is not None or not isinstance(shard, Shard):
            raise TypeError(
                "get_shard: expected a dataset whose shards have all fields of its samples, found "
                "a joined one; ask the dataset that was joined"
            )
        return shard, local_index, self.spec.shards[number].entry()

    def open_field(self, index: int, field: str) -> BufferedReader:
        """Open a field as a file, of which only the parts that are read leave the shard.

        For a remote shard whose index is known, each part is a request, of at least 256 kB. The
        header of the member is compared with the index, but the checksum of the field is not: a
        part cannot show it. `fields` does not matter here.

        Args:
            index: The sample.
            field: The field, with its leading dot.

        Raises:
            IndexError: The index is out of range.
            KeyError: The sample does not have the field.
            FetchError: The shard cannot be opened or fetched; later also when a part is read.

        Example:
            >>> with dataset.open_field(0, ".txt") as file:
            ...     file.seek(1), file.read()
            (1, b'ext 0')
        """
        from wids.shards.field_file import open_field

        reader = self.reader
        return open_field(reader.open, self.locate(index), field, cache_folder=reader.cache_folder)

    def member(self, index: int, field: str) -> tuple[str, int, int]:
        """Return the shard that has a field of a sample, where it begins there, and its length.

        By the index of the shard, without fetching it, for stores that keep such places. The shard
        is its path or URL, as ``__shard__`` of the sample.

        Raises:
            IndexError: The index is out of range.
            KeyError: The sample does not have the field, or a join added it.
            FetchError: The shard has no index, and would have to be fetched.

        Example:
            >>> path, start, nbytes = dataset.member(1, ".txt")
            >>> with open(path, "rb") as file:
            ...     _ = file.seek(start)
            ...     file.read(nbytes)
            b'text 1'
        """
        number, local_index = self.locate(index)
        url = self.spec.shards[number].url
        return url, *self.reader.key_index(number).place(local_index, field, urls.redact(url))

    def locate(self, index: int) -> tuple[int, int]:
        """Return the number of the shard that a sample is in, and its position in the shard.

        Raises:
            IndexError: The index is out of range.

        Example:
            >>> dataset.locate(-1)
            (0, 2)
        """
        return self._access.locate(index)

    def fetch_shard(self, number: int) -> None:
        """Fetch a remote shard, unless it is local or another process fetches it.

        Raises:
            FetchError: The shard cannot be fetched.
            MismatchError: The shard is not what the spec says.

        Example:
            >>> dataset.fetch_shard(0)  # does nothing, as this shard is local
        """
        self.reader.fetch(self._number(number))

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

    # Legacy API.

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __setattr__(self, name: str, value: Any) -> None:
            try:
                object.__setattr__(self, name, value)
            except AttributeError:
                raise AttributeError(
                    f"{type(self).__name__}.{name} is computed and cannot be assigned; for other "
                    "samples take a view, such as dataset[:100], or override it in a subclass",
                    name=name,
                    obj=self,
                ) from None

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, _ADVICE)

    @property
    def total_length(self) -> int:
        """The number of samples, like ``len``."""
        return len(self)

    def get_stats(self) -> tuple[int, int]:
        """Return how often a shard was asked for, and had to be opened, by workers too.

        Example:
            >>> num_accesses, num_misses = dataset.get_stats()
            >>> num_accesses >= num_misses
            True
        """
        return self.reader.accesses.sums()

    def stats(self) -> dict[str, float]:
        """Return what reading has cost this program, as numbers for monitoring.

        They are those of this process and of those that it has started, workers included, of all
        datasets together, which share connections and caches; and they only grow. A process that
        has itself started others counts apart from then on.

        - ``samples`` were read; ``requests`` were sent to servers, ``retries`` of them after a
          failure, and ``nbytes`` arrived.
        - ``fetches`` are files that were downloaded to the cache, ``hits`` those that were opened
          from it, and ``evictions`` those that were deleted for others.
        - ``openings`` are shards that were opened, and ``reopenings`` those among them that the
          process had open before.
        - ``fetch_s``, ``open_s``, ``read_s``, ``check_s``, ``decode_s``, ``transform_s``,
          ``collate_s`` and ``between_s`` are seconds by stage (docs/slow.md). They grow while a
          `wids.timings` block is active.

        Example:
            >>> before = dataset.stats()
            >>> sample = dataset[2]
            >>> dataset.stats()["samples"] - before["samples"]
            1.0
        """
        return counted()

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
