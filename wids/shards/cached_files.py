"""Find the files of a dataset in a cache folder: copies, indexes, notes, and unfinished files.

No server is asked. Files of joins are left out, since they belong to two datasets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from wids.shards.copy_records import CopyRecord, url_digest
from wids.shards.shard_facts import remote_file
from wids.shards.specs.model import DatasetSpec, ShardSpec
from wids.shards.tars.member_names import KEY_SPLITS
from wids.storage.cache.cache_names import copy_path, local_index_path
from wids.storage.cache.eviction import CacheFile, clearable
from wids.storage.cache.verified import note_path
from wids.storage.complete_files import STEM_LENGTH, stem_of_temporary
from wids.storage.transport import urls
from wids.storage.transport.url_rewrite import rewritten

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
    beside = [*(pack.url for pack in spec.all_packs()), *(shard.index for shard in spec.shards)]
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
    place = rewritten(shard.url)
    is_local = urls.is_local(place)
    # The user may have placed the file in the folder (CACHE-4).
    name = os.path.basename(urls.path_of(shard.url))
    local = urls.local_path(place) if is_local else os.path.join(folder, name)
    yield from (copy, copy + _INDEX, note_path(folder, copy), note_path(folder, local))
    for key_split in KEY_SPLITS:
        yield local_index_path(folder, local, key_split)
