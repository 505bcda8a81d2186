"""Look at shards that may have no index, without downloading them.

Of a remote tar without an index, the first megabyte is read by range, and further headers only
when more samples are requested. The samples found so far form an ordinary index, so they are read
by range as from an indexed tar. A shard whose index is known is opened as for a dataset. A new
index is left in the cache folder, where datasets find it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from wids.errors import FetchError, MismatchError, ShardFormatError
from wids.shards.costs import Cost, estimate
from wids.shards.indexes import index_file
from wids.shards.policy import Wanted, remote_file
from wids.shards.reader import ShardReader
from wids.shards.remote_shard import RemoteShard
from wids.shards.tars.header_scan import HeaderScan
from wids.shards.tars.headers import BLOCK_NBYTES, KeySplit, TarMembers, split_name
from wids.shards.tars.index import ShardIndex, TarIdentity
from wids.shards.tars.raw_samples import Raw, TarShard
from wids.storage.cache.cache_names import save_quietly
from wids.storage.fetch import Fetcher
from wids.storage.file_parts import ENDLESS_NBYTES, open_parts
from wids.storage.ranges import WholeFileError
from wids.storage.sizes import nbytes_text
from wids.storage.transport import urls

_FIRST_NBYTES: Final = 1 << 20
_FIRST_NBYTES_OF_WHOLE: Final = 3 << 20
"""Bytes to read from a server without ranges, which cannot be asked for more later. The connection
may buffer as much again before it is closed: up to 6 MB on loopback."""

_MAX_LOOK_NBYTES: Final = 5 << 20
_MAX_LOOK_REQUESTS: Final = 24
"""Most bytes (beyond which the last request may go) and requests for one look, so that a page
appears soon."""


class Glimpse:
    """What is known about one remote tar without an index.

    Safe to use from any number of threads. The constructor reads the first megabyte, or three from
    a server without ranges.

    Args:
        fetcher: Reads the tar.
        url: Its URL.
        key_split: Where member names are split.

    Attributes:
        name: The name of the tar in messages.
        index: The complete samples found so far, with checksums of their headers.
        is_complete: Whether these are all samples of the tar.
        has_ranges: Whether more can be read; False if the server sends whole files only.
        problem: What is wrong with the tar after these samples, or None.
        is_stale: Whether the tar was replaced, so that nothing more can be read.
        cost: What reading all headers is expected to cost.

    Raises:
        FetchError: The tar cannot be read.
        ShardFormatError: It is empty.
    """

    def __init__(self, fetcher: Fetcher, url: str, key_split: KeySplit = "first") -> None:
        self.name = urls.redact(url)
        self.problem: ShardFormatError | None = None
        self.is_stale = False
        self._key_split: KeySplit = key_split
        self._parts = open_parts(
            fetcher, url, _FIRST_NBYTES, nbytes_of_whole=_FIRST_NBYTES_OF_WHOLE
        )
        self.has_ranges = self._parts.has_ranges
        self._scan = HeaderScan(self._parts, self.name)
        self._lock = threading.Lock()
        self.cost = Cost(1, self._parts.num_read_nbytes)
        self._try(self._estimate)
        self.index = self._indexed()

    @property
    def nbytes(self) -> int | None:
        """Length of the tar in bytes, or None if the server does not state it."""
        return None if self._parts.nbytes == ENDLESS_NBYTES else self._parts.nbytes

    @property
    def num_read_nbytes(self) -> int:
        """Bytes of the tar that were read so far."""
        return self._parts.num_read_nbytes

    @property
    def is_complete(self) -> bool:
        """Whether all samples of the tar are known."""
        return self._scan.is_complete and self._num_readable() == self._scan.num_members

    @property
    def can_continue(self) -> bool:
        """Whether more samples may be found."""
        return not self._scan.is_complete and self.has_ranges and self.problem is None

    def reach(self, num_samples: int) -> None:
        """Continue reading until this many samples are known or the limits of one look are reached.

        Raises:
            FetchError: The tar cannot be read.
            MismatchError: It was replaced since its first bytes were read.
        """
        with self._lock, self._noting_staleness():
            parts = self._parts
            max_nbytes = parts.num_read_nbytes + _MAX_LOOK_NBYTES
            max_requests = parts.num_requests + _MAX_LOOK_REQUESTS
            while len(self.index) < num_samples and self.can_continue:
                if parts.num_read_nbytes >= max_nbytes or parts.num_requests >= max_requests:
                    return
                self._try(self._scan_part)
                self.index = self._indexed()

    def complete(self) -> None:
        """Read all headers; after an error, the next call resumes.

        Raises:
            FetchError: The tar cannot be read.
            MismatchError: It was replaced since its first bytes were read.
            WholeFileError: The server sends whole files only.
            ShardFormatError: It breaks a rule of specs/tar-shards.md.
        """
        while not self._scan.is_complete:
            # The lock is released after each part, so that pages of the shard can be shown.
            with self._lock, self._noting_staleness():
                if not self._scan.is_complete:
                    self._scan_part()
        with self._lock:
            self.index = self._indexed()

    def has(self, start: int, stop: int) -> bool:
        """Whether bytes of the tar were already read."""
        return self._parts.has(start, stop)

    def shard(self, *, fields: Collection[str] | None = None, raw: Raw = "bytes") -> RemoteShard:
        """Return a shard of the samples known so far, which reads by range."""
        nbytes = self._parts.nbytes
        return RemoteShard(self.name, self.index, nbytes, self._read, fields=fields, raw=raw)

    def _read(self, start: int, stop: int) -> bytes:
        with self._noting_staleness():
            return self._parts.read(start, stop)

    @contextmanager
    def _noting_staleness(self) -> Iterator[None]:
        try:
            yield
        except MismatchError:
            self.is_stale = True
            raise

    def remark(self) -> str:
        """Return one sentence on why not all samples are shown, or ``""``."""
        if self.problem is not None:
            return str(self.problem)
        if self.is_complete:
            return ""
        read = nbytes_text(self.num_read_nbytes)
        of = "" if self.nbytes is None else f" of {nbytes_text(self.nbytes)}"
        if not self.has_ranges:
            found = "the samples in these are shown" if len(self.index) else "no sample ends there"
            return f"the server sends whole files only: {read}{of} were read, {found}"
        return f"{read}{of} were read"

    def _estimate(self) -> None:
        whole = Cost.of_whole(self._parts.nbytes)
        self.cost = min(estimate(self._scan, self._parts), whole, key=lambda cost: cost.weight)

    def _scan_part(self) -> None:
        """Scan the next member, and all that follow whose headers were already read."""
        scan = self._scan
        scan.step()
        while not scan.is_complete and self.has(scan.position, scan.position + BLOCK_NBYTES):
            scan.step()

    def _try(self, work: Callable[[], None]) -> None:
        """Scan; store an error of the tar, since the samples before it can still be shown."""
        try:
            work()
        except ShardFormatError as error:
            self.problem = error
        except WholeFileError:  # only the first bytes can be read
            self.has_ranges = False

    def _num_readable(self) -> int:
        """Return how many of the members found so far can be read."""
        if self._parts.has_ranges:
            return self._scan.num_members
        members = self._scan.members()
        is_here = members.offsets + members.sizes <= self._parts.start_nbytes
        return len(is_here) if is_here.all() else int(is_here.argmin())

    def _indexed(self) -> ShardIndex:
        """Return the index of the samples that are known to be complete."""
        members, count = self._scan.members(), self._num_readable()
        names = members.names
        if names and not (self._scan.is_complete and count == len(names)):
            # More members of the last sample may follow.
            last = self._key(names[min(count, len(names) - 1)])
            while count and self._key(names[count - 1]) == last:
                count -= 1
        known = TarMembers(
            names[:count], members.offsets[:count], members.sizes[:count], members.heads[:count]
        )
        return self._scan.index(known, self._key_split)

    def _key(self, name: bytes) -> bytes | None:
        split = split_name(name, self._key_split)
        return None if split is None else split[0]


class ShardLook:
    """One shard of a dataset, by its index or a `Glimpse`.

    Safe to use from any number of threads. Notebooks and pages treat it as a dataset with a single
    shard, number 0.

    Args:
        reader: Opens shards of the dataset that have an index.
        number: The number of the shard.

    Attributes:
        cache_folder: The folder of copies and indexes.
        joint: As of a `ShardReader`.
    """

    joint = None

    def __init__(self, reader: ShardReader, number: int) -> None:
        self.cache_folder = reader.cache_folder
        self._reader = reader
        self._number = number
        self._known: ShardIndex | Glimpse | None = None
        self._lock = threading.Lock()

    @property
    def glimpse(self) -> Glimpse | None:
        """What was read of the shard so far; None if it has an index."""
        known = self._look()
        return known if isinstance(known, Glimpse) else None

    def is_local(self, number: int = 0) -> bool:  # noqa: ARG002 - there is one
        """Whether the shard is on this machine."""
        return self._reader.is_local(self._number)

    def index(self, number: int = 0) -> ShardIndex:  # noqa: ARG002 - there is one
        """Return the index of the shard, or of the samples found so far if it has none.

        Raises:
            FetchError: The shard cannot be read.
            MismatchError: It is not what the spec says.
        """
        known = self._look()
        return known.index if isinstance(known, Glimpse) else known

    def open(
        self,
        number: int = 0,  # noqa: ARG002 - there is one
        wanted: Wanted = Wanted.PART,  # noqa: ARG002 - never by fetching it
        *,
        fields: Collection[str] | None = None,
    ) -> TarShard:
        """Open the shard to read the samples known so far."""
        glimpse = self.glimpse
        if glimpse is not None:
            return glimpse.shard(fields=fields, raw=self._reader.options.raw)
        return self._reader.only(fields).open_apart(self._number, Wanted.PART)

    def reach(self, num_samples: int) -> None:
        """Read more of a shard without an index; see `Glimpse.reach`."""
        self._current(lambda glimpse: glimpse.reach(num_samples))

    def make_index(self) -> None:
        """Make the index of the shard if it has none, and leave it in the cache folder.

        The headers are read by range; from a server that sends whole files only, the shard is
        downloaded into the cache.

        Raises:
            FetchError: The shard cannot be read or stored.
            ShardFormatError: It is not a complete, plain tar.
            MismatchError: It was replaced while it was read.
        """
        try:
            self._current(Glimpse.complete)
        except WholeFileError:
            self._reader.fetch(self._number)
        glimpse = self.glimpse
        if glimpse is not None and glimpse.nbytes is not None and glimpse.is_complete:
            blob = index_file.dump(glimpse.index, TarIdentity(glimpse.nbytes))
            path = self._reader.store.index_path(remote_file(self._reader.shards[self._number]))
            if not save_quietly(path, blob):
                raise FetchError(
                    f"{self.cache_folder}: expected a cache folder to write the index to, found "
                    "one that cannot be written; pass cache_dir, or set WIDS_CACHE"
                )

    def _look(self) -> ShardIndex | Glimpse:
        # One request for the beginning of a shard, even if many threads want it.
        with self._lock:
            index_or_glimpse = self._known
            if not isinstance(index_or_glimpse, ShardIndex):
                if self._reader.has_index(self._number):  # it may have been made since
                    with self._reader.open_apart(self._number, Wanted.PART) as shard:
                        index_or_glimpse = shard.index
                elif index_or_glimpse is None or index_or_glimpse.is_stale:
                    index_or_glimpse = self._new_glimpse()
                self._known = index_or_glimpse
            return index_or_glimpse

    def _new_glimpse(self) -> Glimpse:
        shard_spec = self._reader.shards[self._number]
        fetcher, key_split = self._reader.store.fetcher, self._reader.key_split(self._number)
        glimpse = Glimpse(fetcher, shard_spec.url, key_split)
        stated_nbytes, nbytes = shard_spec.nbytes, glimpse.nbytes
        if stated_nbytes is not None and nbytes is not None and stated_nbytes != nbytes:
            raise MismatchError(
                f"{glimpse.name}: expected {stated_nbytes} bytes (filesize), found {nbytes}; file "
                "and spec are from different versions"
            )
        return glimpse

    def _current(self, work: Callable[[Glimpse], None], *, is_again: bool = False) -> None:
        """Call a function with the glimpse; again, with a new one, if the shard was replaced."""
        glimpse = self.glimpse
        if glimpse is None:
            return
        try:
            work(glimpse)
        except MismatchError:
            if is_again:
                raise
            self._current(work, is_again=True)
