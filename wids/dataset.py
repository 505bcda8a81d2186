"""`ShardListDataset`: the one place where spec, pool, decoding and indices meet.

It holds almost no logic of its own: an index becomes a shard and a local index by a binary search,
the pool gives the shard, the shard gives the raw sample, and the transformations do the rest.
"""

from __future__ import annotations

import operator
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, overload

import numpy as np
import numpy.typing as npt

from wids.cache.names import default_folder
from wids.cache.store import BackgroundFetch, Cache, Limits, Localname
from wids.errors import SampleError, SpecError, TransformError, WidsError
from wids.fields.decode import Decoder
from wids.files.progress import Bar
from wids.files.sizes import parse_nbytes
from wids.looking import notebook
from wids.looking.notebook import Gallery
from wids.reading.opener import Access, ShardOpener
from wids.reading.pool import ShardPool, default_size
from wids.specs.loader import Shards, load_spec
from wids.specs.model import ShardSpec
from wids.tars.index import ShardIndex
from wids.tars.names import KeySplit
from wids.tars.samples import Raw, check_raw
from wids.tars.shard import Shard
from wids.transport import fetch, urls
from wids.transport.local import Opener

Sample: TypeAlias = dict[str, Any]
Transformation: TypeAlias = Callable[[Any], Any]
OnError: TypeAlias = Callable[[WidsError], Any]
IntArray = npt.NDArray[np.int64]


if TYPE_CHECKING:
    from torch.utils.data import Dataset

    _Dataset = Dataset[Any]
else:
    # DataLoader asks for __len__ and __getitem__ only, and browsing should not import torch.
    _Dataset = object


class ShardListDataset(_Dataset):
    """Samples by index, from tar shards.

    A sample is a dict: the fields under their names with the leading dot (``".jpg"``,
    ``".seg.png"``), then ``__key__``, ``__index__``, ``__shard__`` (path or URL),
    ``__shardindex__`` (position in the shard) and ``__dataset__``.

    ``dataset[i]`` reads one sample; ``i`` may be negative. A slice, a list of indices or a boolean
    mask gives a *view*: a dataset that shares everything with this one and reads nothing.

    Safe to read from any number of threads, and can be pickled and forked at any time. ``close``
    (or leaving a ``with`` block) lets go of the open shards; a later read opens them again.

    Args:
        shards: Path, URL, ``Path`` or open file of a JSON spec; one ``.tar``; a brace pattern; a
            list of paths, of ``(path, count)`` pairs or of dicts. Shards without a count are
            indexed here, once, to know the length.
        base: Folder or URL that relative references start from, instead of the spec's.
        cache_dir: Folder for copies of remote shards and for indexes. None for ``$WIDS_CACHE``, or
            else the user's cache folder. A shard that was placed in a folder passed here, under its
            base name, is used if its spec states ``filesize`` or a digest, and it matches.
        cache_size: Most bytes of copies to keep there, or a text such as ``"200GB"``; the least
            recently used ones go. None for ``$WIDS_CACHE_SIZE``, or else no limit.
        keep: True never deletes a copy.
        localname: Gives the path of a file for the URL of a remote shard, to use in place or to
            fetch to, in place of names in ``cache_dir``; or None for those.
        lru_size: Most shards to keep open; None for 256 or a quarter of the process's file
            descriptors, whichever is less.
        access: ``"download"`` fetches remote shards whole. ``"range"`` reads the bytes of samples
            only, and needs an index that was published or is left in the cache. ``"auto"`` reads
            single samples by range where it can, until a quarter of the shard was read, and
            fetches the shards of batches.
        transformations: ``"PIL"``, ``"numpy"``, ``"torch"`` or another name that `wids.Decoder`
            knows, to decode fields by extension, with pictures as that; or a list of callables,
            each from a sample to a sample; ``[]`` or None to leave every field undecoded.
        raw: What an undecoded field is: ``"stream"`` (``io.BytesIO``), ``"bytes"``, or ``"view"``
            (``memoryview`` without a copy).
        fields: The only fields to read, with their leading dots; None for all.
        key_split: Where member names are split into key and field, at the ``"first"`` or the
            ``"last"`` dot; None for what the spec says, or else the first.
        on_error: Called with the error of a sample that cannot be produced; what it returns stands
            in for the sample. None raises the error.
        dataset_name: The ``__dataset__`` of samples, instead of the spec's name.
        allow_pipe: Whether a spec may name ``pipe:`` commands.
        allow_pickle: Whether to decode pickles, and with that execute the code in them.
        storage_options: ``headers`` and ``timeout`` for HTTP, and what fsspec's file systems take
            for other schemes; or dicts of those by URL prefix. Once a document is read from a URL,
            options without a prefix go to its server only.
        handlers: For each scheme a callable that gives an open binary file for a URL.
        progress: Whether to show progress bars while shards are fetched or counted; None for
            ``$WIDS_PROGRESS``, or else in terminals and notebooks only.

    Attributes:
        spec: The resolved spec.
        transformations: The callables that a sample passes through; may be assigned.

    Raises:
        SpecError: ``shards`` is malformed.
        FetchError: A document, or a shard that has to be counted, cannot be read.
        ShardFormatError: A shard that has to be counted is not a complete, plain tar.
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
        transformations: str | Sequence[Transformation] | None = "PIL",
        raw: Raw = "stream",
        fields: Collection[str] | None = None,
        key_split: KeySplit | None = None,
        on_error: OnError | None = None,
        dataset_name: str | None = None,
        allow_pipe: bool = False,
        allow_pickle: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        handlers: Mapping[str, Opener] | None = None,
        progress: bool | None = None,
    ) -> None:
        check_raw(raw)
        if access not in get_args(Access):
            raise ValueError(f'access: expected "auto", "download" or "range", found {access!r}')
        if isinstance(fields, str):
            raise TypeError(f"fields: expected a list of fields, found the text {fields!r}")
        wanted = None if fields is None else frozenset(fields)
        if lru_size is not None and lru_size < 1:
            raise ValueError(f"lru_size: expected at least 1, found {lru_size}")
        folder = default_folder()
        if cache_dir is not None:
            folder = os.path.abspath(os.path.expanduser(os.fspath(cache_dir)))
        fetcher = fetch.Fetcher(storage_options, handlers, os.path.join(folder, "shards"))
        self.spec = load_spec(shards, base=base, allow_pipe=allow_pipe, read=fetcher.read)
        self.on_error = on_error
        self.dataset_name = self.spec.name if dataset_name is None else dataset_name
        self.transformations = _transformations(transformations, allow_pickle=allow_pickle)
        limits = _limits(cache_size, keep=keep, shards=self.spec.shards)
        store = Cache(
            folder,
            fetcher,
            limits=limits,
            localname=localname,
            offered=_unique_names(self.spec.shards) if cache_dir is not None else frozenset(),
            wants_progress=progress,
        )
        self._opener = ShardOpener(
            self.spec, store, key_split=key_split, fields=wanted, raw=raw, access=access
        )
        self._singles_whole, self._batches_whole = access == "download", access != "range"
        self._pool = ShardPool(self._opener, lru_size or default_size(), limits.share_nbytes)
        self._opener.fill_counts()
        counts = self._opener.counts
        missing = [number for number, count in enumerate(counts) if count is None]
        with Bar("counting samples", len(missing), "shard", wanted=progress) as bar:
            for num_counted, number in enumerate(missing, start=1):
                counts[number] = len(self._pool.get(number, whole=self._batches_whole))
                bar.reach(num_counted)
        if sum(count or 0 for count in counts) >= 1 << 63:
            raise SpecError(f"{self.spec.name or 'the spec'}: its counts add up to 2**63 or more")
        self._set_edges(np.concatenate(([0], np.cumsum(np.array(counts, np.int64)))))
        self._positions: range | IntArray = range(int(self._edges[-1]))
        notebook.show_samples_in_notebooks()

    def _set_edges(self, edges: IntArray) -> None:
        """Set where shards begin and end in the dataset; views give plain ints, and fast."""
        self._edges = edges
        self._starts, self._ends = edges[:-1].data, edges[1:].data

    # A sequence of samples.

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | npt.NDArray[Any]) -> ShardListDataset: ...
    def __getitem__(self, index: Any) -> Any:
        if type(index) is not int:
            try:
                index = operator.index(index)
            except TypeError:
                return self._view(self._select(index))
        if not 0 <= index < len(self._positions):
            index = self._wrapped(index)
        position = int(self._positions[index])
        number = bisect_right(self._ends, position)
        return self._sample(position, number, whole=self._singles_whole)

    def __getitems__(self, indices: Sequence[int] | npt.NDArray[Any]) -> list[Any]:
        """Read a batch: exactly ``[dataset[i] for i in indices]``, each shard opened once.

        torch's DataLoader calls this where it would otherwise call ``dataset[i]`` for each index.
        """
        array = _array(indices)
        # True and False in a batch are 1 and 0, as one by one; a mask is for views.
        positions = self._select(array.astype(np.int64) if array.dtype == bool else array)
        positions = np.asarray(positions)
        samples: list[Any] = [None] * len(positions)
        # In the order of the files: shard by shard, and forwards in each.
        order = np.argsort(positions, kind="stable")
        in_order = positions[order]
        numbers = np.searchsorted(self._edges[1:], in_order, side="right")
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        places = order.tolist()
        for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(places)], strict=True):
            group = in_order[start:stop].tolist()
            if group:
                read = self._samples(group, int(numbers[start]))
                for place, sample in zip(places[start:stop], read, strict=True):
                    samples[place] = sample
        return samples

    def __iter__(self) -> Iterator[Any]:
        positions, latest, whole = self._positions, -1, False
        for position in positions if isinstance(positions, range) else positions.tolist():
            number = bisect_right(self._ends, position)
            if number != latest:
                latest, whole = number, self._singles_whole or self._covers(number)
            yield self._sample(position, number, whole=whole)

    def _covers(self, number: int) -> bool:
        """Tell whether this is a contiguous slice with much of a shard, better fetched whole."""
        if not (self._batches_whole and isinstance(self._positions, range)):
            return False
        start, stop = self._starts[number], self._ends[number]
        first, last = max(start, self._positions.start), min(stop, self._positions.stop)
        return self._positions.step == 1 and (last - first) * 4 >= stop - start

    def get_by_key(self, key: str, shard: int | str | None = None) -> Any:
        """Read the first sample with a key.

        Args:
            key: The key, as samples have it under ``__key__``.
            shard: Number or URL of the only shard to search; None for all, in order.

        Raises:
            KeyError: There is none.
        """
        position, number = self._place_of(key, shard)
        return self._sample(position, number, whole=False)

    def find_key(self, key: str) -> int:
        """Give the index of the first sample with a key, as `get_by_key` finds it."""
        position, _ = self._place_of(key, None)
        positions = self._positions
        if isinstance(positions, range):
            return positions.index(position)
        return int(np.flatnonzero(positions == position)[0])

    def _place_of(self, key: str, shard: int | str | None) -> tuple[int, int]:
        """Give the position in the full dataset of a key, and the number of its shard."""
        for number, local_index in self._places_of(key, shard):
            position = self._starts[number] + local_index
            if _contains(self._positions, position):
                return position, number
        where = repr(self)
        if shard is not None:
            where = urls.redact(self.spec.shards[self._number(shard)].url)
        raise KeyError(f"{where}: no sample has the key {key!r}")

    def _places_of(self, key: str, shard: int | str | None) -> Iterator[tuple[int, int]]:
        """Give shard number and local index of the samples with a key, in order."""
        numbers: Iterable[int] = self._opener.shards_that_may_have(key)
        for number in numbers if shard is None else [self._number(shard)]:
            # One that is named is fetched if need be; of many only the index is wanted.
            local_index = self._pool.get(number, whole=False).find(key)
            if local_index >= 0:
                yield number, local_index

    # What users of the old library touch.

    @property
    def lengths(self) -> list[int]:
        """Samples in each shard; for a view that is no contiguous slice, ``[len(view)]``."""
        if not isinstance(self._positions, range) or self._positions.step != 1:
            return [len(self)]
        start = self._positions.start
        inside = np.clip(self._edges[1:], start, start + len(self))
        return np.diff(inside, prepend=start).tolist()  # type: ignore[no-any-return]

    @property
    def total_length(self) -> int:
        """The number of samples, as ``len`` gives it."""
        return len(self)

    @property
    def shards(self) -> list[dict[str, Any]]:
        """The shards as they stand in a JSON document, with absolute URLs."""
        return [shard.entry() for shard in self.spec.shards]

    def get_shard(self, index: int) -> tuple[Shard, int, dict[str, Any]]:
        """Give the open shard of a sample, the sample's index in it, and the shard's JSON entry."""
        position = int(self._positions[self._wrapped(operator.index(index))])
        number = bisect_right(self._ends, position)
        shard = self._pool.get(number)
        if not isinstance(shard, Shard):  # the pool was asked for a whole one
            raise TypeError(f"{shard!r}: expected a local shard")
        return shard, position - self._starts[number], self.spec.shards[number].entry()

    # What a `Prefetcher` asks for.

    def shard_number(self, index: int) -> int:
        """Give the number of the shard that a sample is in."""
        return bisect_right(self._ends, int(self._positions[index]))

    def is_here(self, number: int) -> bool:
        """Tell whether a shard can be read without fetching it."""
        return self._opener.is_here(number)

    def fetch_shard(self, number: int, background: BackgroundFetch | None = None) -> None:
        """Fetch a remote shard, if it is not here and no other process does."""
        self._opener.fetch(number, background or BackgroundFetch())

    def shard_nbytes(self, number: int) -> int | None:
        """Give the length of a shard in bytes, as far as the spec states it."""
        return self.spec.shards[number].nbytes

    @property
    def cache_share_nbytes(self) -> int | None:
        """Most bytes that should wait in the cache to be read; None for no limit."""
        return self._opener.store.limits.share_nbytes

    def get_stats(self) -> tuple[int, int]:
        """Give how often a shard was asked for, and how often it had to be opened."""
        return self._pool.num_accesses, self._pool.num_misses

    def add_transform(self, transformation: Transformation) -> ShardListDataset:
        """Append a transformation and return the dataset."""
        self.transformations.append(transformation)
        return self

    def close(self) -> None:
        """Let go of all open shards, also for the views of this dataset."""
        self._pool.close()

    def __enter__(self) -> ShardListDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What people look at.

    def show(
        self,
        num_samples: int = 12,
        *,
        seed: int | None = None,
        where: Callable[[Any], Any] | None = None,
    ) -> Gallery:
        """Give a gallery, which shows itself in a notebook. ``dataset[1000:2000].show()`` is one.

        Only small pictures and texts are read, by range where shards are remote; with ``where``
        also the samples that are looked at, whole.

        Args:
            num_samples: Most samples to show.
            seed: None for the first ones, a number for random ones.
            where: Takes a sample, and tells whether to show it; a thousand are looked at, and those
                that cannot be read are passed over.
        """
        return notebook.gallery(self, num_samples, seed, where)

    def _repr_html_(self) -> str:
        return notebook.summary_html(self)

    def locate(self, index: int) -> tuple[int, int]:
        """Give the number of a sample's shard, and the sample's index in it."""
        position = int(self._positions[self._wrapped(operator.index(index))])
        number = bisect_right(self._ends, position)
        return number, position - self._starts[number]

    def shard_index(self, number: int) -> ShardIndex | None:
        """Give the index of a shard, or None where it would have to be fetched for that."""
        shard = self._pool.peek(number)
        if shard is None and self._opener.has_index(number):
            shard = self._pool.get(number, whole=False)
        return None if shard is None else shard.index

    def only(self, fields: Collection[str] | None) -> ShardListDataset:
        """Give a view that fetches no whole shards, and raises what ``on_error`` would hide.

        It has open shards of its own: close it.

        Args:
            fields: The only fields to read, as undecoded bytes; None for samples as they are here.
        """
        view = copy(self)
        view.on_error = None
        view.transformations = list(self.transformations) if fields is None else []
        view._singles_whole = view._batches_whole = False  # noqa: SLF001 - another of us
        view._opener = self._opener.only(None if fields is None else frozenset(fields))  # noqa: SLF001
        view._pool = ShardPool(view._opener, self._pool.size, self._pool.limit_nbytes)  # noqa: SLF001
        return view

    @property
    def is_view(self) -> bool:
        """Whether these are not all samples of the shards, in their order."""
        return not isinstance(self._positions, range) or len(self._positions) != self._edges[-1]

    @property
    def cache_folder(self) -> str:
        """The cache folder."""
        return self._opener.store.folder

    def __repr__(self) -> str:
        name = f" {self.dataset_name!r}" if self.dataset_name else ""
        return f"<ShardListDataset{name}: {len(self)} samples, {len(self.spec.shards)} shards>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_starts": None, "_ends": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_edges(self._edges)

    # The way of one sample.

    def _sample(self, position: int, number: int, *, whole: bool) -> Any:
        local_index = position - self._starts[number]
        try:
            sample = self._pool.get(number, whole=whole).read(local_index)
        except WidsError as error:  # about the shard, which it names
            if isinstance(error, fetch.RangeError) and not whole and self._batches_whole:
                return self._sample(position, number, whole=True)
            return self._stand_in(error)
        about = self.spec.shards[number]
        sample["__index__"] = position
        sample["__shard__"] = about.url
        sample["__shardindex__"] = local_index
        sample["__dataset__"] = about.dataset or self.dataset_name
        return self._transformed(sample) if self.transformations else sample

    def _samples(self, positions: list[int], number: int) -> list[Any]:
        """Read samples of one shard."""
        start, about = self._starts[number], self.spec.shards[number]
        url, name = about.url, about.dataset or self.dataset_name
        local_indices = [position - start for position in positions]
        try:
            shard = self._pool.get(number, whole=self._batches_whole)
        except WidsError as error:  # about the shard, which is not opened again for each of them
            return [self._stand_in(error) for _ in positions]
        try:
            samples: list[Any] = shard.read_many(local_indices)
        except WidsError:  # one by one, for who wants a stand-in for each
            whole = self._batches_whole
            return [self._sample(position, number, whole=whole) for position in positions]
        for position, local_index, sample in zip(positions, local_indices, samples, strict=True):
            sample["__index__"] = position
            sample["__shard__"] = url
            sample["__shardindex__"] = local_index
            sample["__dataset__"] = name
        return list(map(self._transformed, samples)) if self.transformations else samples

    def _transformed(self, sample: Any) -> Any:
        shard, key, index = sample["__shard__"], sample["__key__"], sample["__index__"]
        try:
            for transform in self.transformations:
                sample = transform(sample)
        except Exception as error:  # noqa: BLE001 - raised again, or given to the caller
            located = _located(error, shard, key, index)
            located.__cause__ = error
            return self._stand_in(located)
        return sample

    def _stand_in(self, error: WidsError) -> Any:
        """Give what ``on_error`` has for a sample that cannot be produced, or raise."""
        if self.on_error is None:
            raise error
        return self.on_error(error)

    # Which samples are meant.

    def _wrapped(self, index: int) -> int:
        """Count a negative index from the end; refuse what is out of range."""
        length = len(self)
        if -length <= index < 0:
            return index + length
        if 0 <= index < length:
            return index
        raise IndexError(f"index {index} is out of range for a dataset of {length} samples")

    def _select(self, indices: Any) -> range | IntArray:
        """Give the positions in the full dataset that a slice, a mask or indices mean."""
        if isinstance(indices, slice):
            return self._positions[indices]
        array = _array(indices)
        length = len(self)
        if array.dtype == bool and array.shape == (length,):
            array = np.flatnonzero(array)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size) or array.dtype == bool:
            raise TypeError(
                f"expected an index, a slice, a list of indices or a mask of {length} booleans, "
                f"found {type(indices).__name__} {indices!r:.80}"
            )
        outside = (array < -length) | (array >= length)
        if outside.any():
            self._wrapped(int(array[outside.argmax()]))
        array = array.astype(np.int64)
        array = np.where(array < 0, array + length, array)
        if isinstance(self._positions, range):
            return array * self._positions.step + self._positions.start
        selected: IntArray = self._positions[array]
        return selected

    def _view(self, positions: range | IntArray) -> ShardListDataset:
        view = copy(self)
        view._positions = positions  # noqa: SLF001 - another of this class
        view.transformations = list(self.transformations)
        return view

    def _number(self, shard: int | str) -> int:
        """Give the number of a shard that is named by number or URL."""
        if not isinstance(shard, str):
            if 0 <= shard < len(self.spec.shards):
                return shard
            raise IndexError(f"shard {shard} is out of range for {self!r}")
        for number, known in enumerate(self.spec.shards):
            if known.url == shard:
                return number
        raise KeyError(f"{urls.redact(shard)}: no such shard in {self!r}")


def _limits(cache_size: int | str | None, *, keep: bool, shards: Sequence[ShardSpec]) -> Limits:
    """Give what may stay in the cache; refuse what cannot work."""
    if keep and cache_size is not None:
        raise ValueError(
            f"keep=True never deletes a copy, and cache_size={cache_size!r} asks for it; choose one"
        )
    nbytes = parse_nbytes(os.environ.get("WIDS_CACHE_SIZE") if cache_size is None else cache_size)
    if nbytes is None or keep:
        return Limits(None, keep)
    stated = sorted(shard.nbytes or 0 for shard in shards if not urls.is_local(shard.url))
    if sum(stated[-2:]) > nbytes:
        raise ValueError(
            f"cache_size: expected room for the two largest shards at least, {sum(stated[-2:])} "
            f"bytes (one is read while the next one is fetched), found {nbytes}"
        )
    return Limits(nbytes if stated else None)


def _unique_names(shards: Sequence[ShardSpec]) -> frozenset[str]:
    """Give the base names that one remote shard has alone."""
    remote = (urls.path_of(shard.url) for shard in shards if not urls.is_local(shard.url))
    counts = Counter(os.path.basename(path) for path in remote)
    return frozenset(name for name, count in counts.items() if count == 1 and name)


def _transformations(given: Any, *, allow_pickle: bool) -> list[Transformation]:
    if isinstance(given, str):
        try:
            return [Decoder(given, allow_pickle=allow_pickle)]
        except ValueError as error:
            raise ValueError(
                f"transformations: expected a list of callables, None, or the name of what "
                f"pictures become; {error}"
            ) from None
    transformations = [given] if callable(given) else list(given or ())
    for transformation in transformations:
        if not callable(transformation):
            raise TypeError(f"transformations: expected callables, found {transformation!r:.80}")
    if allow_pickle:
        raise ValueError(
            "allow_pickle: expected transformations by name, found callables of your own; put "
            "wids.Decoder(allow_pickle=True) among them"
        )
    return transformations


def _array(indices: Any) -> npt.NDArray[Any]:
    """Give indices as an array; what is no list of any has no dimensions, and is refused later."""
    try:
        array = np.asarray(indices)
        if array.dtype == object and array.ndim == 1:  # too large for numpy, or no numbers
            largest = (1 << 63) - 1
            return np.array([max(-largest, min(largest, operator.index(i))) for i in array])
    except (ValueError, TypeError, RuntimeError):
        return np.empty((), object)
    return array


def _contains(positions: range | IntArray, position: int) -> bool:
    if isinstance(positions, range):
        return position in positions
    return bool((positions == position).any())


def _located(error: Exception, shard: str, key: str, index: int) -> SampleError:
    """Give the error of a sample with its shard, key and index, in attributes and text."""
    where = f'{urls.redact(shard)}: sample "{key}" (index {index})'
    if isinstance(error, SampleError):
        return type(error)(
            f"{where}: {error}", shard=shard, key=key, field=error.field, index=index
        )
    return TransformError(
        f"{where}: a transformation raised {type(error).__name__}: {error}",
        shard=shard,
        key=key,
        index=index,
    )
