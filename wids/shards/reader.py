"""Open the shards of a dataset, keep at most *n* of them open, and find samples by position.

`ShardReader.open` is how samples and fields are reached: it returns an open shard by its
number, or opens it in the way that the policy chooses (`wids.shards.policy`). The prefetcher, the
preview, the page and the command line ask the reader which shards are local, where keys are and
what indexes contain, and have it fetch shards. It applies no view, transformation or decoder.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np

from wids.errors import ShardFormatError, WidsError, local_error
from wids.shards.access_counts import AccessCounts
from wids.shards.broken_shards import BrokenShards
from wids.shards.capacity import cache_share_nbytes, default_num_open
from wids.shards.dataset_indexes import DatasetIndexes
from wids.shards.indexes.index_file import index_paths, stored_count
from wids.shards.opening import open_file, open_ranges, stored_index
from wids.shards.policy import ShardFacts, Wanted, Way, way_to_read
from wids.shards.positions import Positions, counts_per_shard, is_ascending
from wids.shards.range_budget import RangeBudget
from wids.shards.read_options import ReadOptions
from wids.shards.specs.model import DatasetSpec, ShardSpec
from wids.shards.specs.shard_columns import Numbers, columns_of
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import ShardIndex, TarIdentity
from wids.shards.tars.raw_samples import Labels, ReadableShard, TarShard
from wids.shards.tars.shard import Shard
from wids.storage import locks, stages
from wids.storage.arrays import BoolArray, FloatArray, IntArray
from wids.storage.cache.store import Cache
from wids.storage.download import Report
from wids.storage.sizes import count_text
from wids.storage.stages import this_process
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.shards.key_lookup import KeyLookup

T = TypeVar("T")

Group: TypeAlias = tuple[int, list[int], list[int]]
"""Samples of one shard: its number, the indices of the samples in a batch, and their indices in the
shard."""


_MAX_LISTED: Final = 20_000
"""Most shards whose edges are lists, which take 40 bytes a shard in each process."""

_LAST_USED: Final = attrgetter("last_used")  # several times faster than a Python function


class ShardReader:
    """The shards of a dataset, addressed by number or by position.

    A *position* counts samples from the start of the first shard.

    Safe to use from any number of threads; can be pickled, without its open shards, and forked.
    There is no lock, so none can be held across a fork: each step is one atomic operation on a
    plain dict, and a hit only changes a number. If two threads miss a shard at the same time, both
    open it and the later one stays. A shard that is evicted while a thread reads it is closed when
    that thread releases it, so each thread can hold one shard beyond ``max_open``.

    Args:
        spec: The dataset.
        store: The copies of remote files.
        options: How shards are opened, and samples are read.

    Attributes:
        shards: The specs of the shards.
        counts: Number of samples in each shard: those of the spec, if it states all; else a list,
            None where it is not known yet. An opened shard must have this number.
        options, store: As passed.
        fields: The only fields that samples have; None for all.
        cache_folder: The folder of copies and indexes.
        dataset_indexes: Dataset indexes that may have the indexes of shards.
        broken: The shards that were noted as broken.
        max_open: Most shards to keep open.
        limit_nbytes: Most bytes of mapped shards to keep open, if there is more than one, and of
            those that wait to be read; None for no limit. The cache cannot evict an open copy.
        check_opened: Compares an opened shard with what the caller expects; None for nothing.
        accesses: How often shards were asked for, and had to be opened.
        edges: Where shards begin, and the end of the last one; shape ``(num_shards + 1,)``; only
            after all have been counted (`note_counts`).
        starts, ends: Where each shard begins and ends, as sequences of integers.
        verifies_raw, verifies_decoded: Whether to compare samples with their checksums if they
            stay undecoded, or if they will be decoded.
        joint: What is joined to the samples, so that indexes lack fields, of a `JoinedReader`; None
            for nothing.
    """

    joint: Any = None
    check_opened: Callable[[ShardReader, int, TarShard], None] | None = None

    def __init__(self, spec: DatasetSpec, store: Cache, options: ReadOptions) -> None:
        self.shards = columns_of(spec.shards)
        self.counts: list[int | None] | Numbers = self.shards.counts
        if self.shards.edges is None:
            self.counts = [None if n < 0 else n for n in self.shards.counts.tolist()]
        self.options, self.store, self.fields = options, store, options.fields
        self.cache_folder, self.broken = store.folder, BrokenShards(self.shards)
        self.dataset_indexes = DatasetIndexes(spec, store)
        self.verifies_raw = options.verify == "always"
        self.verifies_decoded = options.verify != "never"
        # Also those that may be remote after rewriting.
        are_remote = bool(os.environ.get("WDS_REWRITE")) or self.shards.has_remote
        if are_remote:
            locks.prepare()  # 10 ms, before a thread of this process may do it
        chooses = options.access == "auto" and are_remote
        self._budget = RangeBudget(len(self.shards)) if chooses else None
        self.max_open = options.lru_size or default_num_open()
        self.limit_nbytes = cache_share_nbytes(store.limit_nbytes)
        self.accesses = AccessCounts()
        self._held = _Held()
        self._paths: dict[int, str | None] = {}
        self._refetched: set[int] = set()  # shards whose damaged copies were fetched again
        if not isinstance(self.counts, list):
            self.note_counts()

    def note_counts(self) -> None:
        """Take the counts as complete. A broken shard, which was not counted, has no samples."""
        edges = self.shards.edges
        if edges is None or isinstance(self.counts, list):
            counts = (count or 0 for count in self.counts)
            edges = np.array([*accumulate(counts, initial=0)], np.int64)
        self.edges: IntArray = edges
        # Every read of a sample looks these up, so they are in the fastest form: bisecting a list
        # takes a third of the time of bisecting a memoryview. That of many shards stays an array.
        bounds = self.edges.tolist() if len(self.edges) <= _MAX_LISTED else self.edges.data
        self.starts, self.ends = bounds[:-1], bounds[1:]

    def take_stated(self, shards: Iterable[ShardSpec]) -> None:
        """Take the indexes of the same shards that lie beside them."""
        self.shards, self._paths = columns_of(shards), {}

    def __repr__(self) -> str:
        samples = count_text(len(self), "sample")
        return f"<{type(self).__name__}: {samples}, {count_text(len(self.shards), 'shard')}>"

    # Opening.

    def open(self, number: int, wanted: Wanted = Wanted.FILE) -> TarShard:
        """Return a shard by its number, and open it if necessary.

        Args:
            number: Its number.
            wanted: What is wanted of it.

        Raises:
            FetchError: The shard cannot be opened or fetched.
            ShardFormatError: The file is not a complete, plain tar.
            MismatchError: The shard is not what the spec says.
        """
        # Two threads may read the same count here. A count or an age is then off by one, which
        # changes what is evicted first but never what is read.
        held, accesses = self._held, self.accesses
        now = accesses.num_here = accesses.num_here + 1
        if this_process.is_child:
            accesses.rows.row[0] += 1
        entry = held.entries.get(number)
        if entry is not None:
            # Once enough of a shard was read by range, or a copy exists, the file is better.
            if entry.facts is None or way_to_read(wanted, entry.facts) is Way.RANGE:
                entry.last_used = now
                return entry.shard
            wanted = Wanted.FILE
        accesses.note_opening(number)
        stages.count(stages.OPENINGS)
        if number in held.opened:
            stages.count(stages.REOPENINGS)
        held.opened.add(number)
        facts = self.facts(number)
        shard = self._open(facts, wanted)
        if self.check_opened is not None:
            self.check_opened(self, number, shard)
        is_mapped = isinstance(shard, Shard)
        # Another thread may have stored its own shard of this number since the miss. The later one
        # stays, and the other is closed when its reader releases it.
        held.entries[number] = _Entry(number, shard, None if is_mapped else facts, now)
        while len(held.entries) > self.max_open or self._is_too_long():
            # list() is one atomic step; other threads would change the dict under an iterator.
            oldest = min(list(held.entries.values()), key=_LAST_USED, default=None)
            # None, or a number that is gone: another thread evicted it or called `close`.
            if oldest is not None:
                held.entries.pop(oldest.number, None)
        return shard

    def open_apart(self, number: int, wanted: Wanted) -> TarShard:
        """Open a shard that is not kept open, so that it takes the place of no other."""
        return self._open(self.facts(number), wanted)

    def facts(self, number: int) -> ShardFacts:
        """Return what is known of a shard, by which the policy decides."""
        return ShardFacts(
            number,
            self.shards[number],
            self.path(number),
            self.counts[number],
            self.options,
            self.store,
            self.dataset_indexes,
            self._budget,
        )

    def _open(self, facts: ShardFacts, wanted: Wanted) -> TarShard:
        number = facts.number
        with self.broken.watch(number), stages.nested(stages.OPEN):
            way = way_to_read(wanted, facts)
            if way is Way.MAP and facts.path is not None:
                return open_file(facts, facts.path)
            if way is Way.RANGE:
                is_watched = self.broken.are_noted
                watch = partial(self.broken.watch, number) if is_watched else nullcontext
                return open_ranges(facts, watch)
            # Imported only for remote shards: with its own imports it takes 2 ms.
            from wids.shards.copied_shards import open_copy

            # Its copy, or one that is fetched now.
            copy = open_copy(facts, self._held.entries.clear, self._refetched)
            if self._budget is not None:
                self._budget.note_fetched(number)
            return copy

    def _is_too_long(self) -> bool:
        # One shard always stays, however long: the caller is about to read it.
        if self.limit_nbytes is None or len(self._held.entries) < 2:
            return False
        # Only these hold a lease, which prevents the cache from deleting their files (CACHE-7).
        shards = [entry.shard for entry in list(self._held.entries.values()) if entry.facts is None]
        return sum(shard.nbytes for shard in shards) > self.limit_nbytes

    def peek(self, number: int) -> TarShard | None:
        """Return a shard if it is open, without counting as a use."""
        entry = self._held.entries.get(number)
        return None if entry is None else entry.shard

    @property
    def num_open(self) -> int:
        """Number of open shards."""
        return len(self._held.entries)

    def path(self, number: int, rewrite: Callable[[str], str] = urls.rewritten) -> str | None:
        """Return the path of a shard whose URL is local, possibly after rewriting, or None."""
        try:
            return self._paths[number]
        except KeyError:
            url = self.shards.url(number)
            path = urls.local_place(url, rewrite)
            if path is not None:
                # `localname` may return a cache path, as for remote shards; no local one is there.
                named = self.store.named_path(url)
                path = named if named is not None and os.path.exists(named) else path
            self._paths[number] = path  # shards are opened often
            return path

    def close(self) -> None:
        """Release all open shards, and end what was announced; the next read opens them again."""
        # Left to the garbage collector: another thread may be reading one of them.
        self._held.entries.clear()
        if self._budget is not None:
            self._budget.forget_announced()
        self._held.keys = None

    def only(self, fields: Collection[str] | None) -> ShardReader:
        """Return a reader of the same shards with open shards of its own, which fetches none.

        Args:
            fields: The only fields to read, as bytes; None for those of this reader, unchanged.
        """
        reader = object.__new__(ShardReader)
        vars(reader).update(vars(self))
        vars(reader).pop("all_stored_nbytes", None)
        reader.options = self.options.only(fields)
        reader.fields = reader.options.fields
        reader.check_opened = reader._budget = None
        reader.accesses, reader._held = AccessCounts(), _Held()
        return reader

    def __getstate__(self) -> dict[str, Any]:
        # Another process opens the files itself, and may have another cache folder, with damaged
        # copies of its own.
        left_out = ("edges", "starts", "ends", "all_stored_nbytes")
        kept = {name: value for name, value in vars(self).items() if name not in left_out}
        fresh = {"_held": _Held(), "_paths": {}, "_refetched": set()}
        return {**kept, **fresh, "is_counted": hasattr(self, "edges")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        is_counted = state.pop("is_counted")
        vars(self).update(state)
        if is_counted:
            self.note_counts()

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
                shard = self.peek(number)
                if isinstance(shard, Shard):  # read ahead from the disk
                    shard.announce(local_indices[start:stop])
        for number, start, stop in cuts:
            yield number, indices[start:stop], local_indices[start:stop]

    def may_range(self, number: int, *, supposes_index: bool = True) -> bool:
        """Whether samples of a shard are read by range; see `way_to_read`."""
        entry = self._held.entries.get(number)
        facts = self.facts(number) if entry is None else entry.facts
        if facts is None:
            return False
        return way_to_read(Wanted.SAMPLES, facts, supposes_index=supposes_index) is Way.RANGE

    def wanted_of_view(self, number: int, positions: Positions) -> Wanted:
        """Return what reading all positions of a view in turn wants of a shard."""
        if not is_ascending(positions):
            return Wanted.SAMPLES  # it may return to the shard many times, for one sample each
        is_most = _is_large_part(positions, self.edges[number : number + 2])[0]
        return Wanted.MOST if is_most else Wanted.SAMPLES

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
            yield from self._key_lookup().find(self, key)
            return
        local_index = self.open(number, Wanted.PART).find(key)
        if local_index >= 0:
            yield self.starts[number] + local_index

    # What is known about a shard.

    def is_local(self, number: int) -> bool:
        """Whether a shard can be read without fetching it."""
        return self.path(number) is not None or self.facts(number).has_copy

    def nbytes(self, number: int) -> int | None:
        """Return the length of a shard; None if it is not stated."""
        return self.shards[number].nbytes

    def key_split(self, number: int) -> KeySplit:
        """Return the rule for the names of a shard: the caller's, the spec's, or the first dot."""
        return self.options.key_split or self.shards.key_split(number) or "first"

    def index(self, number: int) -> ShardIndex | None:
        """Return the index of a shard; None if the shard would have to be fetched to build it."""
        shard = self.peek(number)
        if shard is None and self.has_index(number):
            shard = self.open(number, Wanted.PART)
        return None if shard is None else shard.index

    def has_index(self, number: int) -> bool:
        """Whether the index of a shard is available without fetching the shard."""
        facts = self.facts(number)
        return facts.path is not None or facts.has_copy or facts.has_index

    def known_index(self, number: int) -> ShardIndex | None:
        """Return the index of a shard if it is known without opening the shard."""
        shard = self.peek(number)
        if shard is not None:
            return shard.index
        facts = self.facts(number)
        if facts.path is not None:
            with suppress(OSError):
                return stored_index(facts, facts.path, TarIdentity.of_file(os.stat(facts.path)))
        elif not facts.has_copy and facts.range_index is not None:
            return facts.range_index[0]
        return None

    def known_counts(self, numbers: Iterable[int]) -> list[int | None]:
        """Return the numbers of samples of shards, None where the index is not known."""
        rewrite = urls.rewriter()
        return [self._known_count(number, self.path(number, rewrite)) for number in numbers]

    def _known_count(self, number: int, path: str | None) -> int | None:
        count = None
        if path is not None:
            key_split = self.key_split(number)
            paths = index_paths(self.cache_folder, path, key_split)
            try:
                count = stored_count(paths, TarIdentity.of_file(os.stat(path)), key_split)
            except OSError:  # reported when the shard is opened
                return None
        if count is None:
            index = self.known_index(number)
            count = None if index is None else len(index)
        return count

    def is_in_dataset_index(self, number: int) -> bool:
        """Whether the dataset index has the keys of this shard, and states its length.

        False if names are split by another rule than the spec's, with which the dataset index was
        made.
        """
        wanted = self.options.key_split
        if wanted not in (None, self.shards.key_split(number) or "first"):
            return False
        return self.dataset_indexes.has_keys_of(number) and self.has_indexed_length(number)

    def has_indexed_length(self, number: int) -> bool:
        """Whether a shard still has the length that the dataset index states."""
        path = self.path(number)
        try:
            nbytes = self.shards[number].nbytes if path is None else os.path.getsize(path)
        except OSError:
            return False
        return self.dataset_indexes.has_length(number, nbytes)

    def release_dataset_indexes(self) -> None:
        """Release the memory of mapped dataset indexes; later uses read them again."""
        self.dataset_indexes.release()

    def key_index(self, number: int) -> ShardIndex:
        """Return the index of a shard for its keys, opening the shard if necessary.

        Raises:
            FetchError: The shard would have to be fetched.
            ShardFormatError, MismatchError: The shard is not what the spec says.
        """
        return self._key_lookup().index(self, number)

    def _key_lookup(self) -> KeyLookup:
        """Return the look-up of keys, which stays until `close`."""
        keys = self._held.keys  # read once, since another thread may close the reader
        if keys is None:  # two threads may both make one; the later one stays
            from wids.shards.key_lookup import KeyLookup

            keys = self._held.keys = KeyLookup()
        return keys

    def field_names(self, stored: Sequence[str]) -> Sequence[str]:
        """Return the fields that samples have when read from shards that store these fields."""
        wanted = self.fields
        return [field for field in stored if wanted is None or field in wanted]

    def stated_identity(self, number: int) -> tuple[Any, ...] | None:
        """Return facts that change when a shard changes, without reading its index, or None.

        Raises:
            FetchError: A local shard cannot be found.
        """
        facts = self.facts(number)
        spec, path, rule = facts.spec, facts.path, facts.key_split
        if path is not None:
            try:
                return path, rule, *TarIdentity.of_file(os.stat(path))
            except OSError as error:
                raise local_error(path, error) from error
        if spec.md5sum or spec.sha256:
            return rule, spec.nbytes, spec.md5sum, spec.sha256
        if self.is_in_dataset_index(number):
            return rule, spec.url, spec.nbytes, self.dataset_indexes.digest(number)
        return None

    def content(self, number: int) -> tuple[Any, ...]:
        """Return known facts that change when the stored samples of a shard change.

        The values have the same ``repr`` in every process.

        Raises:
            FetchError: The shard has no index, and would have to be fetched.
        """
        known = self.stated_identity(number)
        if known is None:
            index = self.key_index(number)
            keys, sizes = b"\0".join(index.stored_keys()), np.ascontiguousarray(index.sizes)
            known = index.key_split, zlib.crc32(keys), zlib.crc32(sizes.tobytes())
        return known

    def fetch(self, number: int, report: Report = lambda *_: None) -> None:
        """Fetch a shard, unless it is local or another process fetches it.

        Raises:
            FetchError: The shard cannot be fetched, or the fetch was cancelled.
            MismatchError: The shard is not what the spec says.
        """
        facts = self.facts(number)
        if facts.path is None:
            from wids.shards.copied_shards import fetch_copy

            with self.broken.watch(number):
                fetch_copy(facts, report)

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
        if not is_changed and not self._discards_copy(number, shard, error):
            return False
        entry = self._held.entries.get(number)
        if entry is not None and entry.shard is shard:  # no other one has taken its place
            self._held.entries.pop(number, None)
        return True

    def _discards_copy(self, number: int, shard: Shard, error: WidsError) -> bool:
        facts = self.facts(number)
        if facts.path is not None:
            return False
        from wids.shards.copied_shards import discard_copy

        inode = shard.identity.inode
        return discard_copy(facts, shard.path, inode, error, self._refetched)

    # Broken shards.

    def pass_over_broken(self) -> None:
        """Note shards that are broken from now on, and do not open them again."""
        if not self.broken.are_noted:
            self.broken.begin()
            self._held.entries.clear()  # shards that were opened before would note nothing

    @property
    def num_broken(self) -> int:
        """Number of shards that were noted as broken, in all processes that share the dataset."""
        return len(self.broken.numbers)

    # The cache.

    @property
    def cache_nbytes(self) -> int | None:
        """Most bytes in the cache; None if it has no limit, or whole shards are never fetched."""
        return self.store.limit_nbytes if self.options.may_fetch else None

    @cached_property
    def all_stored_nbytes(self) -> FloatArray:
        """What `stored_nbytes` returns for all shards."""
        if self.options.may_fetch:
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
        if self.options.may_fetch:
            names = list(map(self.shards.url, numbers.tolist()))
            nbytes[[name in counted for name in names]] = 0
            counted.update(names)
        return nbytes


@dataclass(eq=False, repr=False, slots=True)
class _Held:
    """What readers with the same open shards share in this process.

    Attributes:
        entries: The open shards by their numbers.
        opened: The shards that were opened before.
        keys: The look-up of keys, once it is used.
    """

    entries: dict[int, _Entry] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    keys: KeyLookup | None = None


@dataclass(eq=False, repr=False, slots=True)
class _Entry:
    """An open shard, and the number of the access that last used it.

    Attributes:
        facts: What is known of a shard that is read by range; None for one that is mapped.
    """

    number: int
    shard: TarShard
    facts: ShardFacts | None
    last_used: int


def read_from(
    reader: ShardReader, number: int, wanted: Wanted, read: Callable[[ReadableShard], T]
) -> T:
    """Return what is read of a shard, from a new copy if the one at hand is damaged.

    Args:
        reader: The shards.
        number: The number of the shard.
        wanted: What is wanted of it.
        read: Reads it.

    Raises:
        ShardFormatError: It is damaged, and cannot be fetched again.
    """
    shard = reader.open(number, wanted)
    try:
        return read(shard)
    except ShardFormatError as error:
        if not reader.replaces(number, shard, error):
            raise
    return read_from(reader, number, wanted, read)


def _is_large_part(positions: Positions, edges: IntArray) -> BoolArray:
    """Return whether ascending positions have a quarter or more of each shard."""
    counts = np.array(counts_per_shard(positions, edges), np.int64)
    large: BoolArray = counts * 4 >= np.diff(edges)
    return large
