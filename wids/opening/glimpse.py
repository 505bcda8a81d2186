"""A remote tar without an index → the samples at its beginning, and later ones as they are wanted.

The first megabytes are read by range, and headers beyond them as far as somebody asks for more
samples. What was found so far is an index like any other, so that samples are read by range as from
a tar that was indexed. Nothing here downloads a whole shard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from wids.errors import MismatchError, ShardFormatError
from wids.fetching.fetch import Fetcher
from wids.fetching.parts import ENDLESS_NBYTES, open_parts
from wids.fetching.range_reader import RangeError
from wids.files.sizes import nbytes_text
from wids.opening.index_cost import Cost, estimate
from wids.opening.range_shard import RemoteShard
from wids.tars.archive import BLOCK_NBYTES, TarMembers
from wids.tars.header_scan import HeaderScan
from wids.tars.index import ShardIndex
from wids.tars.names import KeySplit, split_name
from wids.tars.samples import Raw
from wids.transport import urls

_FIRST_NBYTES: Final = 1 << 20
_FIRST_NBYTES_OF_WHOLE: Final = 3 << 20
"""Bytes to read from a server without ranges, which cannot be asked for more. About as many more go
into the buffers of the connection before it is closed: on loopback up to 6 MB."""

_MAX_LOOK_NBYTES: Final = 5 << 20
_MAX_LOOK_REQUESTS: Final = 24
"""Most bytes (and the rest of a request) and requests for one look: a page has to appear soon."""


class Glimpse:
    """What is known of one remote tar without an index. Safe to use from any number of threads.

    Making one reads the first megabyte.

    Args:
        fetcher: Reads the tar.
        url: Its URL.
        key_split: Where member names are split.

    Attributes:
        name: The name of the tar in messages.
        index: The complete samples that were found so far, with checksums of their headers.
        is_complete: Whether these are all samples of the tar.
        has_ranges: Whether more can be read; False if the server sends whole files only.
        problem: What is wrong with the tar behind these samples, or None.
        is_stale: Whether the tar was replaced since, so that nothing can be read any more.
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
        """Read on until so many samples are known, or as much was read as one look may cost.

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
            RangeError: The server sends whole files only.
            ShardFormatError: It breaks a rule of specs/tar-shards.md.
        """
        while not self._scan.is_complete:
            # The lock is free in between, so that pages of the shard are shown meanwhile.
            with self._lock, self._noting_staleness():
                if not self._scan.is_complete:
                    self._scan_part()
        with self._lock:
            self.index = self._indexed()

    def has(self, start: int, stop: int) -> bool:
        """Whether bytes of the tar are at hand."""
        return self._parts.has(start, stop)

    def shard(self, *, fields: Collection[str] | None = None, raw: Raw = "bytes") -> RemoteShard:
        """Return the samples that are known by now, to be read by range."""
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
        """Return in a sentence why not all samples are shown, or ``""``."""
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
        """Scan the next member, and those whose headers are then at hand."""
        self._scan.step()
        while not self._scan.is_complete and self._is_at_hand():
            self._scan.step()

    def _is_at_hand(self) -> bool:
        return self._parts.has(self._scan.position, self._scan.position + BLOCK_NBYTES)

    def _try(self, work: Callable[[], None]) -> None:
        """Scan; what is wrong with the tar is noted, since the samples before it can be shown."""
        try:
            work()
        except ShardFormatError as error:
            self.problem = error
        except RangeError:  # the first bytes are all there is
            self.has_ranges = False

    def _num_readable(self) -> int:
        """Return how many of the members found can be read."""
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
