"""The folder of what wids keeps on this machine: so far, the indexes of local shards.

Nothing here is an authority. Whatever is missing, damaged or not writable is done without.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from functools import lru_cache
from typing import Final

from wids import publish
from wids.index import TarIdentity
from wids.keys import KeySplit

_SETTLED_NS: Final = 2_000_000_000
"""Age at which a time of modification is believed to change with the file: the coarsest file
systems count in steps of two seconds, so a younger file could change again unnoticed."""


def default_folder() -> str:
    """Give ``$WIDS_CACHE``, or else the user's own cache folder."""
    stated = os.environ.get("WIDS_CACHE")
    if stated:
        return os.path.abspath(os.path.expanduser(stated))
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "wids")


@lru_cache(maxsize=4096)  # a shard that was closed is opened again by the same name
def index_path(folder: str, shard_path: str, key_split: KeySplit) -> str:
    """Give where the index of a local shard is kept: named by a hash of the shard's path."""
    path = os.path.abspath(shard_path)
    digest = hashlib.sha256(f"{key_split}\0{path}".encode("utf-8", "surrogateescape")).hexdigest()
    tail = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(path)[-60:])
    return os.path.join(folder, "indexes", f"{digest[:32]}-{tail}.index")


def is_settled(identity: TarIdentity) -> bool:
    """Tell whether a file's time of modification is old enough to be told by."""
    return time.time_ns() - identity.mtime_ns > _SETTLED_NS


def keep(path: str, data: bytes) -> bool:
    """Write a file of the cache, all at once; tell whether that was possible.

    Two processes that write the same file do not disturb each other: what they write is equal.
    """
    folder = os.path.dirname(path)
    try:
        for made in (os.path.dirname(folder), folder):  # the mode counts for the last part only
            os.makedirs(made, mode=0o700, exist_ok=True)
        # Checked whenever it is read, so it need not be waited for.
        with publish.replacing(path, mode=0o600, sync=False) as file:
            file.write(data)
    except OSError:  # read-only, full, or not ours
        return False
    return True
