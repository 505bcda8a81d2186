"""The number of a shard → the open shard: a local file, a cached copy, or a tar read by range.

Each way of opening has its own way to an index: from a pack, from the cache folder, or by scanning
the tar. Every index is checked against its tar; only reading by range depends on finding one. An
open shard is compared with its spec. Nothing here knows what a sample is.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from wids.cache.names import RemoteFile, copy_path
from wids.cache.saving import is_settled
from wids.cache.store import BackgroundFetch, Cache, Prepare
from wids.errors import FetchError, MismatchError, ShardFormatError, WidsError, local_error
from wids.indexes import index_file
from wids.opening.options import ReadOptions
from wids.opening.packs import Packs
from wids.opening.stored_indexes import index_paths, load_index, store_index
from wids.specs.model import DatasetSpec, ShardSpec
from wids.tars.index import ShardIndex, TarIdentity, index_tar
from wids.tars.names import KeySplit
from wids.tars.readable_shard import ReadableShard
from wids.tars.shard import FindIndex, Shard
from wids.transport import urls
from wids.transport.rewrite import rewritten

if TYPE_CHECKING:
    from wids.opening.range_shard import RemoteShard

_ENOUGH: Final = 0.25
"""Part of a remote shard to read by range before all of it is fetched, with access="auto"."""

_logger = logging.getLogger("wids")


class ShardOpener:
    """Opens the shards of a spec by number.

    Can be pickled, and used by any number of threads and after a fork.

    Args:
        spec: The dataset.
        store: Copies of remote files.
        options: How to open shards.

    Attributes:
        counts: Number of samples in each shard, None where it is not known yet. A shard that is
            opened must have the number of samples stated here, whether the spec stated it or the
            dataset counted them when it was opened.
    """

    def __init__(self, spec: DatasetSpec, store: Cache, options: ReadOptions) -> None:
        self.shards = spec.shards
        self.counts = [shard_spec.num_samples for shard_spec in spec.shards]
        self.packs = Packs(spec, store)
        self._store = store
        self._options = options
        self._fetched_again: set[int] = set()
        self._local_paths: dict[int, str | None] = {}

    def __call__(
        self, number: int, *, local: bool = True, make_room: Callable[[], None] = lambda: None
    ) -> ReadableShard:
        """Open a shard and compare it with its spec; see `pool.OpenShard`.

        Raises:
            FetchError: The shard cannot be opened or fetched.
            ShardFormatError: The file is not a complete, plain tar.
            MismatchError: The shard is not what the spec says.
        """
        path = self.local_path(number)
        if path is not None:
            return self._open_file(number, path)
        if not local:
            shard = self._open_by_range(number)
            if shard is not None:
                return shard
        return self._open_copy(number, make_room)

    def local_path(self, number: int) -> str | None:
        """Return the path of a shard whose URL is a local file, maybe after rewriting, or None."""
        try:
            return self._local_paths[number]
        except KeyError:
            place = rewritten(self.shards[number].url)
            path = urls.local_path(place) if urls.is_local(place) else None
            if path is not None:
                path = self._named_path(self.shards[number].url) or path
            self._local_paths[number] = path  # shards are opened often
            return path

    def _named_path(self, url: str) -> str | None:
        """Return the file that ``localname`` names for a local shard; None if there is none."""
        named = None if self._store.localname is None else self._store.localname(url)
        if named is None:
            return None
        path = os.path.abspath(os.path.expanduser(os.fspath(named)))
        # A name in a cache folder, as for remote shards, stays without a file.
        return path if os.path.exists(path) else None

    def is_local(self, number: int) -> bool:
        """Whether a shard can be opened without fetching it."""
        if self.local_path(number) is not None:
            return True
        return self._store.find(remote_file(self.shards[number])) is not None

    def has_index(self, number: int) -> bool:
        """Whether the index of a shard is available without fetching the shard."""
        return self.is_local(number) or self._index_for_ranges(number) is not None

    def is_packed(self, number: int) -> bool:
        """Whether the dataset's pack has the keys of a tar as long as the shard is, or should be.

        Not where names are split by another rule than the spec's, which the pack was made by.
        """
        if self._options.key_split not in (None, self.shards[number].key_split or "first"):
            return False
        return self.packs.has_keys_of(number) and self.is_as_packed(number)

    def is_as_packed(self, number: int) -> bool:
        """Whether a shard that the dataset's pack has the keys of is still as long as there."""
        path = self.local_path(number)
        try:
            nbytes = self.shards[number].nbytes if path is None else os.path.getsize(path)
        except OSError:
            return False
        return self.packs.has_length(number, nbytes)

    def identity(self, number: int) -> tuple[Any, ...] | None:
        """Return what changes when a shard does, without reading its index; None if unknown.

        Raises:
            FetchError: A local shard cannot be found.
        """
        shard_spec, path = self.shards[number], self.local_path(number)
        rule = self._key_split(number)
        if path is not None:
            try:
                return path, rule, *TarIdentity.of_file(os.stat(path))
            except OSError as error:
                raise local_error(path, error) from error
        if shard_spec.md5sum or shard_spec.sha256:
            return rule, shard_spec.nbytes, shard_spec.md5sum, shard_spec.sha256
        if self.is_packed(number):
            return rule, shard_spec.url, shard_spec.nbytes, self.packs.digest(number)
        return None

    def packs_key(self, number: int, local_index: int, key: str, num_samples: int) -> bool:
        """Whether a sample of a shard with so many samples has a key, as the pack says."""
        return self.packs.has_key(number, local_index, key, num_samples, self._key_split(number))

    def known_count(self, number: int) -> int | None:
        """Return the number of samples of a shard by its index; None if it has to be opened."""
        path = self.local_path(number)
        known: ShardIndex | None = None
        if path is None:
            known = self.known_index(number)
        else:
            with suppress(OSError):
                known = self._stored_index(number, path, TarIdentity.of_file(os.stat(path)))
        return None if known is None else len(known)

    def known_index(self, number: int) -> ShardIndex | None:
        """Return the index of a shard without opening the shard; None if it has to be opened."""
        path = self.local_path(number)
        if path is not None:
            with suppress(OSError):
                return self.packs.index(number, os.path.getsize(path), self._key_split(number))
        elif not self.is_local(number):
            index_and_nbytes = self._index_for_ranges(number)
            return None if index_and_nbytes is None else index_and_nbytes[0]
        return None

    def fetch(self, number: int, background: BackgroundFetch) -> None:
        """Fetch a remote shard before it is opened; see `Cache.fetch`."""
        if self.local_path(number) is None:
            self._store.fetch(remote_file(self.shards[number]), self._prepare(number), background)

    def with_options(self, options: ReadOptions) -> ShardOpener:
        """Return an opener of the same shards with other options; packs and counts are shared."""
        opener = copy(self)  # shares the list of counts: what one learns, the other knows
        opener._options = options  # noqa: SLF001 - another of this class
        return opener

    def __getstate__(self) -> dict[str, Any]:
        # Another process may have another cache folder, with damaged copies of its own.
        return {**self.__dict__, "_fetched_again": set()}

    # A file of this machine.

    def _open_file(self, number: int, path: str) -> Shard:
        shard = self._shard(path, partial(self._index_of_file, number))
        self._check_count(number, shard)
        return shard

    def _index_of_file(
        self, number: int, path: str, data: mmap.mmap, identity: TarIdentity
    ) -> ShardIndex:
        """Return the index of a local file: from a pack, or the cache folder, or a scan."""
        known = self._stored_index(number, path, identity)
        if known is not None:
            return known
        key_split = self._key_split(number)
        built = index_tar(data, key_split, path)
        # The time of modification of a younger file may not change when the file does.
        if not is_settled(identity.mtime_ns):
            return built
        folder = self._store.folder
        return store_index(folder, index_paths(folder, path, key_split), built, identity)

    def _stored_index(self, number: int, path: str, identity: TarIdentity) -> ShardIndex | None:
        """Return the index of a local file from a pack or the cache folder, or None."""
        key_split = self._key_split(number)
        packed = self.packs.index(number, identity.nbytes, key_split)
        if packed is not None:
            return packed
        paths = index_paths(self._store.folder, path, key_split)
        return load_index(paths, identity, key_split)

    # The copy of a remote shard.

    def _open_copy(self, number: int, make_room: Callable[[], None]) -> Shard:
        """Open the copy of a remote shard; fetch a damaged copy again."""
        from wids.opening.copy_index import index_of_copy  # only where a shard is remote

        file = remote_file(self.shards[number])
        was_local = self._store.find(file) is not None
        stored = self._store.open(file, self._prepare(number), make_room)
        try:
            find_index = partial(index_of_copy, self._store, file, stored, self._key_split(number))
            shard = self._shard(stored.path, find_index, stored.handle)
            self._check_count(number, shard)
        except (ShardFormatError, MismatchError) as error:
            if not was_local or not self._discard(number, stored.path, stored.inode, error):
                raise
            return self._open_copy(number, make_room)
        return shard

    def discard_copy(self, number: int, shard: Shard, error: WidsError) -> bool:
        """Discard the copy that a shard was opened from, if it can be fetched again.

        Returns:
            Whether to open the shard again: once for each opener, since the spec may be wrong and
            not the copy, or if another thread or process has discarded the copy.
        """
        return self.local_path(number) is None and self._discard(
            number, shard.path, shard.identity.inode, error
        )

    def _discard(self, number: int, path: str, inode: int, error: WidsError) -> bool:
        file = remote_file(self.shards[number])
        if path != copy_path(self._store.folder, file):
            return False  # it is a file of the user's
        from wids.opening.copy_index import has_name

        is_current = has_name(path, inode)
        if is_current and number in self._fetched_again:
            return False
        self._fetched_again.add(number)
        if is_current:
            _logger.warning("%s; fetching the shard again", str(error))
            self._store.discard(file)
        return True

    def _prepare(self, number: int) -> Prepare:
        """Return the callable that makes the index of a shard that was just fetched."""
        from wids.opening.copy_index import dumped_index

        name = urls.redact(self.shards[number].url)
        return partial(dumped_index, name, self._key_split(number))

    # A remote shard by byte range.

    def _open_by_range(self, number: int) -> RemoteShard | None:
        """Return a shard to be read by range; None if it has a copy, or has to be fetched.

        Raises:
            FetchError: No index is known, and the shard must not be fetched.
        """
        shard_spec = self.shards[number]
        if self._store.find(remote_file(shard_spec)) is not None:
            return None
        only_ranges = self._options.access == "range"
        # Each attempt would begin the transfer of a whole file.
        if not (only_ranges or self._store.fetcher.sends_parts(shard_spec.url)):
            return None
        index_and_nbytes = self._index_for_ranges(number)
        if index_and_nbytes is None:
            if only_ranges:
                raise FetchError(
                    f"{urls.redact(shard_spec.url)}: expected an index to read it by range, found "
                    "none; make one for the dataset with `wids create`, or use "
                    'access="download"'
                )
            return None
        shard_index, nbytes = index_and_nbytes
        if self._options.verify == "never":
            shard_index = shard_index.without_payload_crcs()
        from wids.opening.range_shard import RemoteShard

        shard = RemoteShard(
            urls.redact(shard_spec.url),
            shard_index,
            nbytes,
            self._store.fetcher.range_reader(shard_spec.url, nbytes),
            fields=self._options.fields,
            raw=self._options.raw,
            enough_nbytes=math.inf if only_ranges else nbytes * _ENOUGH,
            has_copy=partial(self.is_local, number),
        )
        self._check_count(number, shard)
        return shard

    def _index_for_ranges(self, number: int) -> tuple[ShardIndex, int] | None:
        """Return the index of a remote shard and the length of its tar, without fetching the tar.

        From a pack, or as an earlier copy has left it in the cache; None where there is neither.
        """
        shard_spec, key_split = self.shards[number], self._key_split(number)
        packed = self.packs.index_and_nbytes(number, key_split)
        if packed is not None:
            return packed
        left = index_file.load_for_ranges(
            self._store.index_path(remote_file(shard_spec)), key_split
        )
        if left is not None and shard_spec.nbytes in (None, left[1].nbytes):
            return left[0], left[1].nbytes
        return None

    # What the three have in common.

    def _shard(self, path: str, find_index: FindIndex, handle: int | None = None) -> Shard:
        options = self._options
        return Shard(
            path, fields=options.fields, raw=options.raw, find_index=find_index, handle=handle
        )

    def _key_split(self, number: int) -> KeySplit:
        """Return the rule for a shard: the caller's, else the spec's, else the first dot."""
        return self._options.key_split or self.shards[number].key_split or "first"

    def _check_count(self, number: int, shard: Shard | RemoteShard) -> None:
        expected = self.counts[number]
        if expected is not None and len(shard) != expected:
            with shard:  # close it now: a stored error should not keep a file open
                message = _count_message(
                    self.shards[number], shard, expected, self._key_split(number)
                )
            raise MismatchError(message)


def remote_file(shard_spec: ShardSpec) -> RemoteFile:
    """Return what the cache has to know of a remote shard."""
    return RemoteFile(shard_spec.url, shard_spec.nbytes, shard_spec.md5sum, shard_spec.sha256)


def _count_message(
    shard_spec: ShardSpec, shard: Shard | RemoteShard, expected: int, key_split: KeySplit
) -> str:
    """Return the error for a shard with another number of samples, with the likely cause."""
    url = urls.redact(shard_spec.url)
    stated = shard_spec.num_samples
    if stated is None:
        return (
            f"{url}: expected {expected} samples as when the dataset was opened, found "
            f"{len(shard)}; it was written again since: open the dataset again"
        )
    # The two mistakes that people make most: the other rule, and counting files.
    other: KeySplit = "last" if key_split == "first" else "first"
    message = f"{url}: the spec says {stated} samples, the shard has {len(shard)}"
    if isinstance(shard, Shard):
        with Shard(shard.path, key_split=other) as split_otherwise:
            if len(split_otherwise) == stated:
                return (
                    f"{message}, but {stated} when names are split at their {other} dot; pass "
                    f'key_split="{other}"'
                )
    if stated == shard.index.num_files:
        return (
            f"{message}, and {stated} is its number of members: the spec counts files; pass "
            "spec.without_counts() to count samples when the dataset is opened, or make a correct "
            "spec with `wids create`"
        )
    return (
        f"{message}; if the spec is wrong, pass spec.without_counts(), or make a correct spec with "
        "`wids create`; otherwise fetch or write the shard again"
    )
