"""The number of a shard → the open shard: local path or copy, index, comparison with the spec.

An index that was made before is used where there is one: from the dataset's pack, a pack of the
shard's own, the cache folder; each is checked, and none is needed, save for reading by range.
Nothing here knows what a sample is.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from copy import copy
from functools import partial
from typing import IO, Any, Final, Literal

from wids.cache.names import RemoteFile, local_index_path
from wids.cache.saving import is_settled, save_quietly
from wids.cache.store import BackgroundFetch, Cache, CachedCopy, Prepare
from wids.errors import FetchError, MismatchError, ShardFormatError, WidsError
from wids.reading.range_shard import RemoteShard
from wids.specs.model import DatasetSpec, ShardSpec
from wids.tars import index, tar
from wids.tars.index import Pack, ShardIndex, TarIdentity
from wids.tars.names import KeySplit
from wids.tars.range_pack import RangePack
from wids.tars.samples import Raw
from wids.tars.shard import Shard
from wids.transport import fetch, urls
from wids.transport.rewrite import rewritten

Access = Literal["auto", "download", "range"]

_ENOUGH: Final = 0.25
"""Part of a remote shard to read by range before all of it is fetched, with access="auto"."""

_logger = logging.getLogger("wids")

_LARGE_PACK_NBYTES: Final = 16_000_000
"""Packs beyond this length are read by range, and not fetched whole."""


class ShardOpener:
    """Opens the shards of a spec by number. Can be pickled, and used by any number of threads.

    Args:
        spec: The dataset.
        store: Copies of remote files.
        key_split: Where member names are split; None for what the spec says.
        fields, raw: As for `Shard`.
        access: ``"download"`` to fetch whole shards, ``"range"`` to read the bytes of samples,
            ``"auto"`` for the one or the other.

    Attributes:
        counts: Number of samples in each shard, or None where it is not known. What is known, from
            the spec or because a shard was opened to count it, is what each opened shard must have.
    """

    def __init__(
        self,
        spec: DatasetSpec,
        store: Cache,
        *,
        key_split: KeySplit | None = None,
        fields: Collection[str] | None = None,
        raw: Raw = "bytes",
        access: Access = "auto",
    ) -> None:
        self.shards = spec.shards
        self.store = store
        self.key_split = key_split
        self.fields = fields
        self.raw: Raw = raw
        self.access = access
        self.counts = [shard.num_samples for shard in spec.shards]
        self._pack_url = spec.index
        self._packs: dict[str, Pack | RangePack | None] = {}
        self._fetched_again: set[int] = set()
        self._local_paths: dict[int, str | None] = {}
        if spec.index is not None and urls.is_local(rewritten(spec.index)):
            self._pack(spec.index)  # now, so that processes that are forked later share it

    def __call__(
        self, number: int, *, whole: bool = True, make_room: Callable[[], None] = lambda: None
    ) -> Shard | RemoteShard:
        """Open a shard and hold it against its spec; see `pool.OpenShard`.

        Raises:
            FetchError: It cannot be opened, or not be fetched.
            ShardFormatError: It is not a complete, plain tar.
            MismatchError: It is not what the spec says.
        """
        path = self.local_path(number)
        if path is not None:
            find_index = partial(self._index_of_local, number)
            shard: Shard | RemoteShard = self._shard(path, find_index)
            self._check_count(number, shard)
            return shard
        if not whole:
            remote = self._remote(number)
            if remote is not None:
                self._check_count(number, remote)
                return remote
        return self._copy(number, make_room)

    def local_path(self, number: int) -> str | None:
        """Give the path of a shard that is a file of this machine, by its URL or rewritten so."""
        try:
            return self._local_paths[number]
        except KeyError:
            place = rewritten(self.shards[number].url)
            path = urls.local_path(place) if urls.is_local(place) else None
            self._local_paths[number] = path  # shards are opened often
            return path

    def fetch(self, number: int, background: BackgroundFetch) -> None:
        """Fetch a remote shard before it is opened; see `Cache.fetch`."""
        if self.local_path(number) is None:
            self.store.fetch(remote_file(self.shards[number]), self._prepare(number), background)

    def is_here(self, number: int) -> bool:
        """Tell whether a shard can be opened without fetching it."""
        if self.local_path(number) is not None:
            return True
        return self.store.find(remote_file(self.shards[number])) is not None

    def has_index(self, number: int) -> bool:
        """Tell whether the index of a shard can be had without fetching the shard."""
        return self.is_here(number) or self._index_for_ranges(number) is not None

    def only(self, fields: frozenset[str] | None) -> ShardOpener:
        """Give one that opens the same shards, and fetches none; for some fields only, as bytes."""
        other = copy(self)
        other.access = "range"
        if fields is not None:
            other.fields, other.raw = fields, "bytes"
        return other

    def key_split_of(self, number: int) -> KeySplit:
        """Give the rule for a shard: the caller's, else the spec's, else the first dot."""
        return self.key_split or self.shards[number].key_split or "first"

    # Whole shards.

    def _shard(self, path: str, find_index: Any, handle: int | None = None) -> Shard:
        return Shard(path, fields=self.fields, raw=self.raw, find_index=find_index, handle=handle)

    def _prepare(self, number: int) -> Prepare:
        """Give what makes the index of a shard that was fetched."""
        name = urls.redact(self.shards[number].url)
        return partial(_dumped_index, name, self.key_split_of(number))

    def _copy(self, number: int, make_room: Callable[[], None]) -> Shard:
        """Open the copy of a remote shard. One that was there, and is damaged, is fetched again."""
        about = remote_file(self.shards[number])
        was_here = self.store.find(about) is not None
        copy = self.store.open(about, self._prepare(number), make_room)
        try:
            shard = self._shard(copy.path, partial(self._index_of_copy, number, copy), copy.handle)
            self._check_count(number, shard)
        except (ShardFormatError, MismatchError) as error:
            # Once in the life of this object: the fault may be the spec's.
            if not (was_here and copy.is_own) or number in self._fetched_again:
                raise
            self._fetched_again.add(number)
            _logger.warning("%s; fetching it again", str(error))
            self.store.discard(about)
            return self._copy(number, make_room)
        return shard

    def _index_of_local(
        self, number: int, path: str, data: mmap.mmap, identity: TarIdentity
    ) -> ShardIndex:
        found = self.packed_index(number, identity.nbytes)
        if found is not None:
            return found
        key_split = self.key_split_of(number)
        kept_path = local_index_path(self.store.folder, path, key_split)
        found = index.load(kept_path, identity, key_split)
        if found is not None:
            return found
        made = index.build(tar.scan(data, path), key_split, path)
        if is_settled(identity) and save_quietly(kept_path, index.dump(made, identity)):
            # Mapped, its memory is shared by all processes; the one that was made would not be.
            found = index.load(kept_path, identity, key_split)
        return made if found is None else found

    def _index_of_copy(
        self, number: int, copy: CachedCopy, path: str, data: mmap.mmap, identity: TarIdentity
    ) -> ShardIndex:
        key_split = self.key_split_of(number)
        found = index.load(copy.index_path, identity, key_split)
        if found is not None:
            return found
        if copy.is_own:
            made_of = index.stored_identity(copy.index_path)
            if made_of is not None and made_of.nbytes != identity.nbytes:
                raise ShardFormatError(
                    f"{path}: expected {made_of.nbytes} bytes as when it was fetched, found "
                    f"{identity.nbytes}; it was changed in the cache"
                )
        made = index.for_ranges(data, key_split, path)
        if save_quietly(copy.index_path, index.dump(made, identity)):
            found = index.load(copy.index_path, identity, key_split)
        return made if found is None else found

    def _check_count(self, number: int, shard: Shard | RemoteShard) -> None:
        about, expected = self.shards[number], self.counts[number]
        if expected is not None and len(shard) != expected:
            with shard:
                message = _count_message(about, shard, expected, self.key_split_of(number))
            raise MismatchError(message)

    # Parts of shards.

    def _remote(self, number: int) -> RemoteShard | None:
        """Give a shard to be read by range; None where its copy is here, or it has to be fetched.

        Raises:
            FetchError: Its index is not known, and nothing but ranges is wanted.
        """
        about = self.shards[number]
        if self.store.find(remote_file(about)) is not None:
            return None
        known = self._index_for_ranges(number)
        if known is None:
            if self.access == "range":
                raise FetchError(
                    f"{urls.redact(about.url)}: expected an index to read it by range, found none; "
                    'make one for the dataset with `wids create`, or use access="download"'
                )
            return None
        found, nbytes = known
        return RemoteShard(
            urls.redact(about.url),
            found,
            nbytes,
            _ReadRange(self.store.fetcher, about.url, nbytes),
            fields=self.fields,
            raw=self.raw,
            enough_nbytes=math.inf if self.access == "range" else nbytes * _ENOUGH,
            is_here=partial(self.is_here, number),
        )

    def _index_for_ranges(self, number: int) -> tuple[ShardIndex, int] | None:
        """Give the index of a remote shard, and the length of the tar, without fetching the tar."""
        about, key_split = self.shards[number], self.key_split_of(number)
        for pack, at in self._packs_of(number):
            nbytes = pack.tar_nbytes(at)
            found = pack.index(at, nbytes, key_split)
            if found is not None and about.nbytes in (None, nbytes):
                return found, nbytes
        left = index.load_for_ranges(self.store.index_path(remote_file(about)), key_split)
        if left is not None and about.nbytes in (None, left[1].nbytes):
            return left[0], left[1].nbytes
        return None

    # Packs.

    @property
    def pack(self) -> Pack | RangePack | None:
        """The dataset's pack, or None where there is none that can be used."""
        return None if self._pack_url is None else self._pack(self._pack_url)

    def _pack(self, url: str) -> Pack | RangePack | None:
        """Give a pack, fetched if need be, when it is first wanted."""
        if url in self._packs:
            return self._packs[url]
        pack = self._loaded_pack(url)
        if pack is None:
            _logger.info("%s: no index that can be used", urls.redact(url))
        # One that is mapped holds a descriptor: that of the dataset is kept, and no shard's own.
        if pack is None or url == self._pack_url or not pack.is_mapped:
            self._packs[url] = pack
        return pack

    def _loaded_pack(self, url: str) -> Pack | RangePack | None:
        place = rewritten(url)
        if urls.is_local(place):
            return index.load_pack(urls.local_path(place))
        try:
            nbytes, tag = self.store.fetcher.head(url)
            about = RemoteFile(
                url, version="" if (nbytes, tag) == (None, None) else repr((nbytes, tag))
            )
            if nbytes is not None and nbytes > _LARGE_PACK_NBYTES and not self.store.find(about):
                with suppress(fetch.RangeError):  # then it is fetched whole
                    return RangePack(_ReadRange(self.store.fetcher, url, nbytes), nbytes)
            copy = self.store.open(about)
        except (WidsError, ValueError) as error:
            _logger.warning("%s: %s; going on without it", urls.redact(url), str(error))
            return None
        return index.load_pack(copy.path, copy.handle)  # leased as long as it is mapped

    def _packs_of(self, number: int) -> Iterator[tuple[Pack | RangePack, int]]:
        """Give the packs that have a shard of this number and name, and where they have it."""
        about = self.shards[number]
        if self._pack_url is None and about.index is None:  # as for most, which are opened often
            return
        name = os.path.basename(urls.path_of(about.url))
        for url, at in ((self._pack_url, number), (about.index, 0)):
            pack = None if url is None else self._pack(url)
            # A tar that was packed by its path has %20 for a blank in the name of its URL.
            if pack is not None and any(pack.is_named(at, n) for n in (name, urls.unquoted(name))):
                yield pack, at

    def packed_index(self, number: int, tar_nbytes: int) -> ShardIndex | None:
        """Give a shard's index from a pack; None where it is not that of this tar."""
        for pack, at in self._packs_of(number):
            found = pack.index(at, tar_nbytes, self.key_split_of(number))
            if found is not None:
                return found
        return None

    def is_fresh(self, number: int) -> bool:
        """Tell whether a pack has the index of a tar as long as the shard's is, or should be."""
        nbytes = self.shards[number].nbytes
        path = self.local_path(number)
        if path is not None:
            try:
                nbytes = os.path.getsize(path)
            except OSError:
                return False
        return any(nbytes in (None, p.tar_nbytes(at)) for p, at in self._packs_of(number))

    def fill_counts(self) -> None:
        """Fill in the counts that the spec does not state, as far as indexes are at hand."""
        if None not in self.counts:
            return
        for number, count in enumerate(self.counts):
            if count is not None:
                continue
            if self.local_path(number) is not None:
                known = self._packs_of(number) if self.is_fresh(number) else iter(())
                for pack, at in known:
                    found = pack.index(at, pack.tar_nbytes(at), self.key_split_of(number))
                    self.counts[number] = None if found is None else len(found)
                    break
            elif not self.is_here(number):
                remote = self._index_for_ranges(number)
                self.counts[number] = None if remote is None else len(remote[0])

    def shards_that_may_have(self, key: str) -> Iterator[int]:
        """Give the numbers of shards that may have a key: by the pack, and those it knows not.

        Raises:
            FetchError: Before a shard that would have to be fetched to know.
        """
        packed = None if self.pack is None else self.pack.shards_with(key)
        for number in range(len(self.shards)):
            if packed is not None and number not in packed and self.is_fresh(number):
                continue
            if not self.is_here(number) and self._index_for_ranges(number) is None:
                raise FetchError(
                    f"{urls.redact(self.shards[number].url)}: expected its index, to search for "
                    f"the key {key!r}, found none; make one for the dataset with "
                    "`wids create`, or name the shard, which is then fetched"
                )
            yield number

    def __getstate__(self) -> dict[str, Any]:
        # A pack that was fetched may be gone by then, and is fetched again.
        local = {url: pack for url, pack in self._packs.items() if urls.is_local(url)}
        return {**self.__dict__, "_fetched_again": set(), "_packs": local}


class _ReadRange:
    """Reads ranges of one remote file; can be pickled."""

    def __init__(self, fetcher: fetch.Fetcher, url: str, nbytes: int) -> None:
        self.fetcher = fetcher
        self.url = url
        self.nbytes = nbytes

    def __call__(self, start: int, stop: int) -> bytes:
        return self.fetcher.read_range(self.url, start, stop, self.nbytes)


def remote_file(about: ShardSpec) -> RemoteFile:
    """Give what the cache has to know of a remote shard."""
    return RemoteFile(about.url, about.nbytes, about.md5sum, about.sha256)


def _dumped_index(name: str, key_split: KeySplit, file: IO[bytes]) -> bytes:
    """Make the index of a complete file, as it is kept beside it: for maps and for ranges."""
    status = os.fstat(file.fileno())
    if not status.st_size:
        raise ShardFormatError(f"{name}: expected a tar, found an empty file")
    data = mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ)
    try:
        made = index.for_ranges(data, key_split, name)
    finally:
        with suppress(BufferError):
            data.close()
    return index.dump(made, TarIdentity(status.st_size, status.st_mtime_ns))


def _count_message(
    about: ShardSpec, shard: Shard | RemoteShard, expected: int, key_split: KeySplit
) -> str:
    url = urls.redact(about.url)
    if about.num_samples is None:
        return (
            f"{url}: expected {expected} samples as when the dataset was opened, found "
            f"{len(shard)}; it was written anew: open the dataset again"
        )
    other: KeySplit = "last" if key_split == "first" else "first"
    message = f"{url}: the spec says {about.num_samples} samples, the shard has {len(shard)}"
    if isinstance(shard, Shard):
        with Shard(shard.path, key_split=other) as split_otherwise:
            if len(split_otherwise) == about.num_samples:
                return (
                    f"{message}, but {about.num_samples} when names are split at their {other} "
                    f'dot; pass key_split="{other}"'
                )
    if about.num_samples == shard.index.num_files:
        return (
            f"{message}, and {about.num_samples} is its number of members: the spec counts files; "
            "count samples, or leave nsamples out to have them counted here"
        )
    return f"{message}; correct the spec, or fetch or write the shard again"
