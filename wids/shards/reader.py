"""Find the open shard of a position in a dataset, and answer other questions about shards.

The dataset reads samples through its reader. The prefetcher, the preview, the page and the command
line ask it which shards are local, where keys are and what indexes contain, and have it fetch
shards. It applies no view, transformation or decoder.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np

from wids.errors import ShardFormatError, WidsError
from wids.shards.capacity import cache_share_nbytes
from wids.shards.opener import ShardOpener
from wids.shards.positions import Positions, counts_per_shard, is_ascending
from wids.shards.shard_pool import ShardPool
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import Labels, ReadableShard
from wids.shards.tars.shard import Shard
from wids.storage.arrays import BoolArray, FloatArray, IntArray
from wids.storage.cache.store import BackgroundFetch
from wids.storage.sizes import count_text

if TYPE_CHECKING:
    from wids.shards.key_lookup import KeyLookup

T = TypeVar("T")

Group: TypeAlias = tuple[int, list[int], list[int]]
"""Samples of one shard: its number, the indices of the samples in a batch, and their indices in the
shard."""


class OpenByNumber(Protocol):
    """A callable that returns an open shard by its number, as `ShardPool.get` does."""

    def __call__(self, number: int, local: bool = True) -> ReadableShard:
        """Return the open shard."""


_MAX_LISTED: Final = 20_000
"""Most shards whose edges are lists, which take 40 bytes a shard in each process."""


class ShardReader:
    """The shards of a dataset, addressed by number or by position.

    A *position* counts samples from the start of the first shard.

    Safe to use from any number of threads; can be pickled, without its open shards, and forked.

    Args:
        opener: Opens the shards, whose counts, specs, options and cache it knows.
        pool: The open shards.

    Attributes:
        opener, pool: As passed.
        shards: The specs of the shards.
        options: How they are opened, and samples are read.
        fields: The only fields that samples have; None for all.
        store: The copies of remote files.
        cache_folder: The folder of copies and indexes.
        broken: The shards that were noted as broken.
        open: Returns an open shard by its number: `ShardPool.get`.
        edges: Where shards begin, and the end of the last one; shape ``(num_shards + 1,)``.
        starts, ends: Where each shard begins and ends, as sequences of integers.
        fetches_for_one, fetches_for_many: Whether to fetch a remote shard that has no copy in order
            to read a single sample, or a batch.
        verifies_raw, verifies_decoded: Whether to compare samples with their checksums if they
            stay undecoded, or if they will be decoded.
        joint: What is joined to the samples, so that indexes lack fields: a
            `wids.tables.joined.Joint`; None for nothing.
        ways: How threads that read a batch one sample after the other open its shards, and whether
            they fetch them, by the ids of the threads.
    """

    joint: Any = None

    def __init__(self, opener: ShardOpener, pool: ShardPool) -> None:
        self.opener, self.pool, self.edges = opener, pool, opener.edges
        self.shards, self.options = opener.shards, opener.facts.options
        self.fields, self.store = self.options.fields, opener.facts.store
        self.cache_folder, self.broken = self.store.folder, opener.broken
        access, verify = self.options.access, self.options.verify
        self.fetches_for_one, self.fetches_for_many = access == "download", access != "range"
        self.verifies_raw, self.verifies_decoded = verify == "always", verify != "never"
        # Every read of a sample looks these up, so they are in the fastest form: bisecting a list
        # takes a third of the time of bisecting a memoryview. That of many shards stays an array.
        bounds = self.edges.tolist() if len(self.edges) <= _MAX_LISTED else self.edges.data
        self.starts, self.ends = bounds[:-1], bounds[1:]
        # A wrapping method would cost one more call for each sample.
        self.open: OpenByNumber = self.pool.get
        self.ways: dict[int, tuple[OpenByNumber, bool]] = {}
        self._keys: KeyLookup | None = None
        self._budget = opener.facts.budget

    def __repr__(self) -> str:
        samples = count_text(len(self), "sample")
        return f"<{type(self).__name__}: {samples}, {count_text(len(self.shards), 'shard')}>"

    # Where samples are.

    def __len__(self) -> int:
        return int(self.edges[-1])

    def locate(self, position: int) -> tuple[int, int]:
        """Return the number of the shard that has a position, and the index in the shard."""
        number = bisect_right(self.ends, position)
        return number, position - self.starts[number]

    def labels(self, number: int, dataset_name: str) -> Labels:
        """Return the labels that a dataset of this name adds to the samples of a shard."""
        shard = self.shards[number]
        return self.starts[number], shard.url, shard.dataset or dataset_name

    def groups(self, positions: IntArray) -> Iterator[Group]:
        """Yield the samples of a batch shard by shard, and in ascending order in each.

        Yields:
            The number of a shard, the indices into ``positions`` of its samples, and their indices
            in the shard.
        """
        if not len(positions):
            return
        order = np.argsort(positions, kind="stable")
        ascending = positions[order]
        numbers = np.searchsorted(self.edges[1:], ascending, side="right")
        starts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()]
        # Lists, since slicing off a few items is much cheaper than for arrays.
        indices, local_indices = order.tolist(), (ascending - self.edges[numbers]).tolist()
        stops = [*starts[1:], len(indices)]
        cuts = list(zip(numbers[starts].tolist(), starts, stops, strict=True))
        if len(cuts) > 1:  # a single group is announced when it is read
            for number, start, stop in cuts:
                self.pool.announce(number, local_indices[start:stop])
        for number, start, stop in cuts:
            yield number, indices[start:stop], local_indices[start:stop]

    def of_batch(self, positions: IntArray) -> tuple[Iterable[Group], OpenByNumber]:
        """Return the `groups` of a batch, and the callable that opens the shard of each.

        The samples of remote shards that are read by range are read here, from all shards at once.
        """
        groups = list(self.groups(positions))
        has_local = self.pool.has_local
        others = {number: local for number, _, local in groups if not has_local(number)}
        if not others or self.fetches_for_one:
            return groups, self.open
        wanted = {n: local for n, local in others.items() if self.opener.may_read_ranges(n)}
        if not wanted:
            return groups, self.open
        from wids.shards.range_flight import fly  # only remote shards need it

        landed, open_other = fly(self.pool, self.opener, wanted), self.open

        def open_shard(number: int, local: bool = True) -> ReadableShard:
            shard = landed.get(number)
            if isinstance(shard, WidsError):
                raise shard
            return open_other(number, local) if shard is None else shard

        return groups, open_shard

    def fetches_for_view(self, number: int, positions: Positions) -> bool:
        """Whether to fetch a shard that has no copy, to read all positions of a view in turn."""
        if self.fetches_for_one or not self.fetches_for_many:
            return self.fetches_for_one
        if not is_ascending(positions):
            return False  # it may return to the shard many times, for one sample each
        return bool(_is_large_part(positions, self.edges[number : number + 2])[0])

    def large_parts(self, positions: Positions) -> list[int]:
        """Return the shards of which a pass over positions reads a quarter or more."""
        edges = self.edges
        if not is_ascending(positions):  # nearly always all of a dataset
            edges, positions = edges[[0, -1]], range(len(positions))
        is_large = np.broadcast_to(_is_large_part(positions, edges), len(self.shards))
        found: list[int] = np.flatnonzero(is_large).tolist()
        return found

    def announce_shards(self, numbers: Sequence[int]) -> None:
        """Note that a pass will read these shards, in this process or in its workers.

        They are fetched when they are first needed. This holds until the dataset is closed, since
        workers may still read when the pass has ended.
        """
        if self._budget is not None:
            self._budget.announce(numbers)

    def let_ahead(self, part: float) -> None:
        """Let batches read shards by range while these are being fetched.

        Args:
            part: Part of the bytes of all shards that is read so; 0 for none.
        """
        if self._budget is not None:
            nbytes = int(np.nansum(self.shards.nbytes)) if part else 0
            self._budget.let_ahead(int(nbytes * part))

    def find(self, key: str, number: int | None = None) -> Iterator[int]:
        """Yield the positions of a key, one for each shard that has it, in ascending order.

        Args:
            key: The key.
            number: The only shard to search, which is fetched if necessary; None to search all, by
                their indexes alone.

        Raises:
            FetchError: A shard has no index, and would have to be fetched to be searched.
        """
        if number is None:
            yield from self._key_lookup().find(key)
            return
        local_index = self.pool.get(number, local=False).find(key)
        if local_index >= 0:
            yield self.starts[number] + local_index

    # What is known about a shard.

    def is_local(self, number: int) -> bool:
        """Whether a shard can be read without fetching it."""
        return self.opener.is_local(number)

    def nbytes(self, number: int) -> int | None:
        """Return the length of a shard in bytes; None if the spec does not state it."""
        return self.shards[number].nbytes

    def index(self, number: int) -> ShardIndex | None:
        """Return the index of a shard; None if the shard would have to be fetched to build it."""
        shard = self.pool.peek(number)
        if shard is None and self.opener.has_index(number):
            shard = self.pool.get(number, local=False)
        return None if shard is None else shard.index

    def known_index(self, number: int) -> ShardIndex | None:
        """Return the index of a shard if it is known without opening the shard."""
        shard = self.pool.peek(number)
        return self.opener.known_index(number) if shard is None else shard.index

    def release_dataset_indexes(self) -> None:
        """Release the memory of mapped dataset indexes; later uses read them again."""
        self.opener.dataset_indexes.release()

    def key_index(self, number: int) -> ShardIndex:
        """Return the index of a shard for its keys, opening the shard if necessary.

        Raises:
            FetchError: The shard would have to be fetched.
            ShardFormatError, MismatchError: The shard is not what the spec says.
        """
        return self._key_lookup().index(number)

    def _key_lookup(self) -> KeyLookup:
        """Return the look-up of keys, which stays until `close`."""
        keys = self._keys  # read once, since another thread may close the reader
        if keys is None:  # two threads may both make one; the later one stays
            from wids.shards.key_lookup import KeyLookup

            keys = self._keys = KeyLookup(self.opener, self.pool, self.edges)
        return keys

    def reserve(self) -> None:
        """Let workers that are spawned later take part in `usage`."""
        self.pool.counts.reserve()

    def usage(self) -> tuple[int, int]:
        """Return how often shards were asked for, and opened, in all processes that share this.

        It lets one process notice when another begins to read.
        """
        return self.pool.usage()

    def last_opened(self) -> int:
        """Return the shard that was opened last, or is being opened, in all these processes."""
        return self.pool.last_opened

    def num_read_here(self) -> int:
        """Return how often shards were asked for in this process."""
        return self.pool.num_accesses

    def field_names(self, stored: Sequence[str]) -> Sequence[str]:
        """Return the fields that samples have when read from shards that store these fields."""
        wanted = self.fields
        return stored if wanted is None else [field for field in stored if field in wanted]

    def identity(self, number: int) -> tuple[Any, ...]:
        """Return facts that change when the keys of a shard change.

        Raises:
            FetchError: The shard has no index, and would have to be fetched.
        """
        known = self.opener.identity(number)
        if known is None:
            index = self.key_index(number)
            known = (index.key_split, zlib.crc32(b"\0".join(index.stored_keys())))
        return known

    def content(self, number: int) -> tuple[Any, ...]:
        """Return known facts that change when the stored samples of a shard change.

        The values have the same ``repr`` in every process.

        Raises:
            FetchError: The shard has no index, and would have to be fetched.
        """
        known = self.opener.identity(number)
        if known is None:
            sizes = np.ascontiguousarray(self.key_index(number).sizes)
            known = (*self.identity(number), zlib.crc32(sizes.tobytes()))
        return known

    def fetch(self, number: int, background: BackgroundFetch | None = None) -> None:
        """Fetch a remote shard, unless it is local or another process fetches it.

        Raises:
            FetchError: The shard cannot be fetched, or the fetch was cancelled.
            MismatchError: The shard is not what the spec says.
        """
        self.opener.fetch(number, background or BackgroundFetch())

    def replaces(self, number: int, shard: ReadableShard, error: WidsError) -> bool:
        """Release a damaged copy of a remote shard; return whether to open the shard again.

        Args:
            number: The number of the shard.
            shard: The open shard that could not be read.
            error: The error that it raised.
        """
        if not (isinstance(shard, Shard) and isinstance(error, ShardFormatError)):
            return False
        # Opening one that has changed shows what it is now.
        is_changed = shard.has_changed and self.broken.are_noted
        if not is_changed and not self.opener.discard_copy(number, shard, error):
            return False
        self.pool.drop(number, shard)
        return True

    # Broken shards.

    def pass_over_broken(self) -> None:
        """Note shards that are broken from now on, and do not open them again."""
        self.broken.begin()

    @property
    def num_broken(self) -> int:
        """Number of shards that were noted as broken, in all processes that share the dataset."""
        return len(self.broken.numbers)

    # The cache, and other readers.

    @property
    def cache_nbytes(self) -> int | None:
        """Most bytes in the cache; None if it has no limit, or whole shards are never fetched."""
        return self.store.limit_nbytes if self.fetches_for_many else None

    @cached_property
    def all_stored_nbytes(self) -> FloatArray:
        """What `stored_nbytes` returns for all shards."""
        if self.fetches_for_many:
            return self.shards.remote_nbytes
        return np.zeros(len(self.shards))

    def stored_nbytes(self, numbers: IntArray, counted: set[str]) -> FloatArray:
        """Return the bytes that the cache needs for shards: 0 for local ones, NaN if unknown.

        Shards that are already stored are included.

        Args:
            numbers: The shards.
            counted: The URLs that count as 0, because other shards have them too; those of these
                shards are added.
        """
        nbytes: FloatArray = self.all_stored_nbytes[numbers]
        if self.fetches_for_many:
            names = [self.shards[number].url for number in numbers.tolist()]
            nbytes[[name in counted for name in names]] = 0
            counted.update(names)
        return nbytes

    @property
    def cache_share_nbytes(self) -> int | None:
        """Most bytes of shards that may wait in the cache to be read; None for no limit."""
        return cache_share_nbytes(self.store.limit_nbytes)

    def only(self, fields: Collection[str] | None) -> ShardReader:
        """Return a reader of the same shards with its own pool, which fetches no shard.

        Args:
            fields: The only fields to read, as bytes; None for those of this reader, unchanged.
        """
        opener = self.opener.with_options(self.options.only(fields))
        pool = ShardPool(opener, self.pool.size, self.pool.limit_nbytes)
        return ShardReader(opener, pool)

    def close(self) -> None:
        """Release all open shards, and end what was announced; the next read opens them again."""
        self.pool.close()
        if self._budget is not None:
            self._budget.forget_announced()
        self._keys = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process makes the rest itself, including the look-up of keys.
        return type(self), (self.opener, self.pool)


def read_from(
    reader: ShardReader,
    number: int,
    local: bool,
    read: Callable[[ReadableShard], T],
    open_shard: OpenByNumber | None = None,
) -> T:
    """Return what is read of a shard, from a new copy if the one at hand is damaged.

    Args:
        reader: The shards.
        number: The number of the shard.
        local: As for `ShardPool.get`.
        read: Reads it.
        open_shard: Opens it; None for `ShardReader.open`.

    Raises:
        ShardFormatError: It is damaged, and cannot be fetched again.
    """
    shard = (open_shard or reader.open)(number, local)
    try:
        return read(shard)
    except ShardFormatError as error:
        if not reader.replaces(number, shard, error):
            raise
    return read_from(reader, number, local, read, open_shard)


def _is_large_part(positions: Positions, edges: IntArray) -> BoolArray:
    """Return whether ascending positions have a quarter or more of each shard."""
    counts = np.array(counts_per_shard(positions, edges), np.int64)
    large: BoolArray = counts * 4 >= np.diff(edges)
    return large
