"""Check the caller's arguments for reading, and hold them in one frozen value.

Wrong arguments are reported here, before anything is opened or fetched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal, get_args

from wids.shards.tars.index import Repeated
from wids.shards.tars.member_names import KeySplit
from wids.shards.tars.raw_samples import Raw, check_raw

AccessMode = Literal["auto", "download", "range"]
Verify = Literal["auto", "always", "never"]


@dataclass(frozen=True)
class ReadOptions:
    """How shards are opened and samples are read.

    Attributes:
        access: ``"download"`` fetches whole shards, ``"range"`` reads only the bytes of samples,
            ``"auto"`` chooses between the two.
        fields: The only fields to read, or None for all.
        raw: The form of a field, as for `Shard`.
        key_split: Where member names are split; None for what the spec says.
        repeated: What members of one name are where a tar is indexed, as for `Shard`.
        lru_size: Most shards to keep open; None for `shard_pool.default_size`.
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
