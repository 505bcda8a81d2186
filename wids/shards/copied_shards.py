"""Fetch remote shards into the cache, open the copies with their indexes, and list such files.

An edit changes the modification time of a copy, and so does a backup, ``rsync`` or ``cp``. The
bytes are then compared with the checksums of the stored index, or, if that is lost, with the digest
that the spec states.

`cached_files` lists the files of a dataset in a cache without asking a server. Files of joins are
left out, since they belong to two datasets.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import IO, Final

from wids.errors import MismatchError, ShardFormatError, WidsError
from wids.shards.indexes import index_file
from wids.shards.indexes.index_file import index_paths, load_index, store_index
from wids.shards.opening import check_count, mapped
from wids.shards.policy import ShardFacts, remote_file
from wids.shards.sidecars import CopyRecord, url_digest
from wids.shards.specs.model import DatasetSpec, ShardSpec
from wids.shards.tars.headers import KEY_SPLITS, KeySplit
from wids.shards.tars.index import RepeatedNamesError, ShardIndex, TarIdentity, index_tar
from wids.shards.tars.shard import Shard
from wids.storage.cache.cache_names import copy_path, local_index_path
from wids.storage.cache.eviction import CacheFile, clearable
from wids.storage.cache.store import Cache, CachedCopy, Prepare
from wids.storage.cache.verified import note_path
from wids.storage.download import Report
from wids.storage.files import STEM_LENGTH, stem_of_temporary
from wids.storage.transport import urls

_logger = logging.getLogger(__name__)


def open_copy(facts: ShardFacts, make_room: Callable[[], None], refetched: set[int]) -> Shard:
    """Map the copy of a shard, which is fetched if there is none; fetch a damaged copy again.

    Args:
        facts: The shard.
        make_room: Closes open shards, which prevent the cache from evicting their files.
        refetched: The shards whose damaged copies were fetched again, to which it is added.

    Raises:
        FetchError: The shard cannot be fetched.
        ShardFormatError: It is not a complete, plain tar.
        MismatchError: It is not what the spec says.
    """
    stored = facts.store.open(facts.remote_file, _prepare(facts), make_room)
    find_index = partial(_index, facts, stored)
    try:
        shard = mapped(facts, stored.path, find_index, stored.file)
        check_count(facts, shard)
    except (ShardFormatError, MismatchError) as error:
        is_again = not stored.was_fetched
        if not (is_again and discard_copy(facts, stored.path, stored.inode, error, refetched)):
            raise
    else:
        return shard
    return open_copy(facts, make_room, refetched)


def _index(
    facts: ShardFacts, stored: CachedCopy, path: str, data: mmap.mmap, identity: TarIdentity
) -> ShardIndex:
    """Return the index of a copy, and store it if it had to be made.

    Args:
        facts: The shard.
        stored: The copy.
        path: The path of the copy.
        data: Its bytes.
        identity: What distinguishes it from other files.

    Raises:
        ShardFormatError: The copy was changed in the cache.
    """
    store, key_split = facts.store, facts.key_split
    identity = identity.of_copy(is_own=stored.is_own)
    known = load_index(_index_paths(store, stored, key_split), identity, key_split)
    if known is not None:
        return known
    recorded = index_file.load_recorded(stored.index_path) if stored.is_own else None
    built = _built(facts, data, path)
    if recorded is not None:
        is_as_fetched = _is_recorded(built, identity, path, data, *recorded)
    elif stored.is_own:
        # A process that discards a copy takes its name and its index away in one step.
        is_as_fetched = _has_name(path, stored.inode) and store.is_as_stated(
            facts.remote_file, path
        )
    else:
        is_as_fetched = True  # the user's own file, compared when it was found (CACHE-4)
    if not is_as_fetched:
        raise ShardFormatError(
            f"{path}: expected the bytes that were fetched, found others; it was changed in "
            "the cache"
        )
    return store_index(store.folder, _index_paths(store, stored, key_split), built, identity)


def fetch_copy(facts: ShardFacts, report: Report) -> None:
    """Fetch a shard before it is opened; see `Cache.fetch`."""
    facts.store.fetch(facts.remote_file, _prepare(facts), report)


def discard_copy(
    facts: ShardFacts, path: str, inode: int, error: WidsError, refetched: set[int]
) -> bool:
    """Discard a copy that could not be read, if it can be fetched again.

    Returns:
        Whether to open the shard again: only once, since the spec may be wrong instead of the copy;
        or if another thread or process has discarded the copy.
    """
    if path != copy_path(facts.store.folder, facts.remote_file):
        return False  # the user's own file
    is_current = _has_name(path, inode)
    if is_current and facts.number in refetched:
        return False
    refetched.add(facts.number)
    if is_current:
        _logger.warning("%s; fetching the shard again", str(error))
        facts.store.discard(facts.remote_file)
    return True


def _prepare(facts: ShardFacts) -> Prepare:
    """Return the callable that makes the index of a shard that was just fetched."""
    name = urls.redact(facts.spec.url)
    return partial(_dumped_index, name, lambda data: _built(facts, data, name))


def _built(facts: ShardFacts, data: mmap.mmap, name: str) -> ShardIndex:
    """Index a complete file, with checksums."""
    key_split, repeated = facts.key_split, facts.options.repeated
    try:
        return index_tar(data, key_split, name, checksums=True, repeated=repeated)
    except RepeatedNamesError:
        # The publisher of an index has chosen the last of them for all readers.
        if facts.dataset_indexes.index(facts.number, len(data), key_split) is None:
            raise
        return index_tar(data, key_split, name, checksums=True, repeated="last")


def _dumped_index(name: str, index: Callable[[mmap.mmap], ShardIndex], file: IO[bytes]) -> bytes:
    """Index a complete file; return the stored form, which serves mapped and ranged reads."""
    status = os.fstat(file.fileno())
    if not status.st_size:
        raise ShardFormatError(f"{name}: expected a tar, found an empty file")
    data = mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ)
    try:
        built = index(data)
    finally:
        with suppress(BufferError):  # the traceback of an error may hold a view of the map
            data.close()
    # The inode stays when the file is renamed; its ctime does not.
    return index_file.dump(built, TarIdentity.of_file(status).of_copy(is_own=False))


def _index_paths(store: Cache, stored: CachedCopy, key_split: KeySplit) -> Iterator[str]:
    """Yield the possible paths of a copy's index: beside it, or in the user's own cache folder."""
    yield stored.index_path
    yield from islice(index_paths(store.folder, stored.path, key_split), 1, None)


def _has_name(path: str, inode: int) -> bool:
    """Whether a file that was opened under a path still has this name."""
    try:
        found = os.stat(path).st_ino
    except OSError:
        return False
    return not (found ^ inode) & (1 << 64) - 1  # identities have 64 bits of a longer inode


def _is_recorded(
    built: ShardIndex,
    identity: TarIdentity,
    path: str,
    data: mmap.mmap,
    recorded: ShardIndex,
    recorded_identity: TarIdentity,
) -> bool:
    """Whether a copy still has the bytes from which the stored index was made.

    Args:
        built: The index of the copy.
        identity: Length and time of the copy.
        path: The copy.
        data: Its bytes.
        recorded: The stored index.
        recorded_identity: Length and time of the copy when that index was stored.
    """
    if identity.fits(recorded_identity):  # indexed by another rule
        return True
    if identity.nbytes != recorded_identity.nbytes:
        return False
    if recorded.key_split != built.key_split:
        built = index_tar(data, recorded.key_split, path, checksums=True, repeated="last")
    if not len(recorded.payload_crcs):  # made from the headers alone
        built = built.without_payload_crcs()
    # The same bytes have the same index, bit for bit (INDEX-20).
    return index_file.dump(built, identity) == index_file.dump(recorded, identity)


_INDEX: Final = ".index"
_MAX_RECORD_NBYTES: Final = 4096
"""A longer file is not a record, but the index of a shard."""


def cached_files(spec: DatasetSpec, folder: str) -> list[CacheFile]:
    """Return the files of a cache folder that belong to one dataset.

    Args:
        spec: The dataset.
        folder: The cache folder.
    """
    files = clearable(folder)
    paths = {path for shard in spec.shards for path in _paths(shard, folder)}
    beside = [
        *(part.url for part in spec.all_dataset_indexes()),
        *(shard.index for shard in spec.shards),
    ]
    if spec.table is not None:
        beside.append(spec.table.url)
    wanted = {url_digest(url) for url in beside if url is not None}
    # Only their records say which versions of these files were fetched.
    for file in files if wanted else ():
        if file.name.endswith(_INDEX) and file.nbytes <= _MAX_RECORD_NBYTES:
            record = CopyRecord.load(file.path)
            if record is not None and record.url in wanted:
                paths |= {file.path, file.path.removesuffix(_INDEX)}
    stems = {os.path.basename(path)[:STEM_LENGTH] for path in paths}
    return [
        file
        for file in files
        if file.path in paths or (file.is_temporary and stem_of_temporary(file.name) in stems)
    ]


def _paths(shard: ShardSpec, folder: str) -> Iterator[str]:
    """Yield the paths that the files of a shard can have."""
    copy = copy_path(folder, remote_file(shard))
    # The user may have placed the file in the folder (CACHE-4).
    name = os.path.basename(urls.path_of(shard.url))
    local = urls.local_place(shard.url) or os.path.join(folder, name)
    yield from (copy, copy + _INDEX, note_path(folder, copy), note_path(folder, local))
    for key_split in KEY_SPLITS:
        yield local_index_path(folder, local, key_split)
