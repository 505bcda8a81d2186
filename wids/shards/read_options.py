"""Check the caller's arguments for reading and caching, and hold them in frozen values.

Wrong arguments, and limits that cannot work, are reported here, before anything is opened or
fetched.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any, Final, Literal, get_args

import numpy as np

from wids.errors import warn
from wids.shards.specs.model import ShardSpec
from wids.shards.specs.shard_columns import columns_of
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import Repeated
from wids.shards.tars.raw_samples import Raw, check_raw
from wids.storage.cache.cache_names import default_folder
from wids.storage.sizes import parse_nbytes
from wids.storage.transport import urls

AccessMode = Literal["auto", "download", "range"]
Verify = Literal["auto", "always", "never"]


@dataclass(frozen=True, eq=False, repr=False)
class ReadOptions:
    """How shards are opened and samples are read.

    Attributes:
        access: ``"download"`` fetches whole shards, ``"range"`` reads only the bytes of samples,
            ``"auto"`` chooses between the two.
        fields: The only fields to read, or None for all.
        raw: The form of a field, as for `Shard`.
        key_split: Where member names are split; None for what the spec says.
        repeated: What members of one name are where a tar is indexed, as for `Shard`.
        lru_size: Most shards to keep open; None for `capacity.default_num_open`.
        verify: When to compare members with the checksums in the index of their shard: ``"auto"``
            if they will be decoded, ``"always"`` or ``"never"``.

    Raises:
        ValueError: ``access``, ``raw``, ``lru_size``, ``verify`` or ``repeated`` is invalid.
    """

    access: AccessMode = "auto"
    fields: frozenset[str] | None = None
    raw: Raw = "bytes"
    key_split: KeySplit | None = None
    lru_size: int | None = None
    verify: Verify = "auto"
    repeated: Repeated = "error"

    def __post_init__(self) -> None:
        check_raw(self.raw)
        if self.access not in get_args(AccessMode):
            raise ValueError(
                f'access: expected "auto", "download" or "range", found {self.access!r}'
            )
        if self.verify not in get_args(Verify):
            raise ValueError(f'verify: expected "auto", "always" or "never", found {self.verify!r}')
        if self.repeated not in get_args(Repeated):
            raise ValueError(f'repeated: expected "error" or "last", found {self.repeated!r}')
        size: Any = self.lru_size
        if size is not None and not (isinstance(size, Integral) and int(size) >= 1):
            raise ValueError(f"lru_size: expected at least 1, found {self.lru_size!r}")

    @property
    def may_fetch(self) -> bool:
        """Whether shards may be fetched for samples."""
        return self.access != "range"

    def only(self, fields: Collection[str] | None) -> ReadOptions:
        """Return options that read only these fields, as bytes, and never a whole shard.

        Args:
            fields: The fields; None for the fields of these options, in their form.
        """
        if fields is None:
            return replace(self, access="range")
        # Bytes, since the fields are shown or served undecoded.
        return replace(self, access="range", fields=field_set(fields), raw="bytes")


def field_set(fields: Collection[str] | None) -> frozenset[str] | None:
    """Return a collection of fields as a set, with their leading dots, and None as None.

    ``__key__`` and other labels are left out: every sample has them.

    Raises:
        TypeError: ``fields`` is a single string, which would be taken for a collection of letters,
            or contains something other than strings.
    """
    if isinstance(fields, str):
        raise TypeError(f"fields: expected a list of fields, found the text {fields!r}")
    if fields is None:
        return None
    if not isinstance(fields, Iterable):
        raise TypeError(f"fields: expected a list of fields, found {fields!r:.80}")
    fields = list(fields)
    if not all(isinstance(name, str) for name in fields):
        raise TypeError(f"fields: expected names of fields as texts, found {fields!r:.80}")
    names = (name for name in fields if not name.startswith("__"))
    return frozenset(name if name.startswith(".") else f".{name}" for name in names)


_LEAST_NBYTES: Final = 10_240
"""Length of the shortest tar that GNU tar writes; a smaller limit is a count of shards."""


def cache_folder(cache_dir: str | os.PathLike[str] | None) -> str:
    """Return the absolute path of the cache folder; None for the default one."""
    if cache_dir is None:
        return default_folder()
    # Absolute now: workers and later calls of `chdir` must find the same folder.
    return os.path.abspath(os.path.expanduser(os.fspath(cache_dir)))


def cache_limit(
    cache_size: int | str | None, *, keep: bool, shards: Sequence[ShardSpec]
) -> int | None:
    """Return the most bytes that may stay in the cache; None for no limit.

    Args:
        cache_size: Most bytes, or a text such as ``"200GB"``; None for ``$WIDS_CACHE_SIZE``.
        keep: Whether to keep every copy, whatever the limit.
        shards: The shards of the dataset.

    Raises:
        ValueError: The two largest shards do not fit.
    """
    if keep and cache_size is not None:
        warn(f"keep=True never deletes a copy, so cache_size={cache_size!r} has no effect")
    nbytes = parse_nbytes(os.environ.get("WIDS_CACHE_SIZE") if cache_size is None else cache_size)
    if nbytes is None or keep:
        return None
    columns = columns_of(shards)
    stated = np.nan_to_num(columns.remote_nbytes if columns.has_remote else np.zeros(0))
    remote_nbytes = np.sort(stated)[-2:].astype(np.int64).tolist()
    hint = ""
    if nbytes < _LEAST_NBYTES:
        hint = (
            f"; cache_size counts bytes, and {nbytes} looks like a number of shards: pass such as "
            '"200GB", or leave it out for no limit'
        )
    # One shard is read while the next is fetched, and neither can be evicted.
    if sum(remote_nbytes[-2:]) > nbytes:
        raise ValueError(
            f"cache_size: expected room for the two largest shards, {sum(remote_nbytes[-2:])} "
            f"bytes (one is read while the next one is fetched), found {nbytes}{hint}"
        )
    if remote_nbytes and hint:  # the spec does not say how long they are
        warn(f"cache_size: no shard fits into {nbytes} bytes{hint}")
    # A dataset that stores no copies has no reason to delete those of others.
    return nbytes if remote_nbytes else None


class PlacedNames(Container[str]):
    """The base names under which users have placed copies in the cache folder themselves.

    A name that two remote shards share is ambiguous, and left out. All names are compared only when
    a file of some name is there.

    Args:
        folder: The cache folder.
        shards: The shards.
    """

    def __init__(self, folder: str, shards: Sequence[ShardSpec]) -> None:
        self._folder, self._shards = folder, shards

    def __contains__(self, name: object) -> bool:
        path = os.path.join(self._folder, str(name))
        return os.path.exists(path) and name in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        remote = (urls.path_of(shard.url) for shard in self._shards if not urls.is_local(shard.url))
        counts = Counter(os.path.basename(path) for path in remote)
        return frozenset(name for name, count in counts.items() if count == 1 and name)

    def __reduce__(self) -> tuple[Any, ...]:
        return PlacedNames, (self._folder, self._shards)
