"""The shards that a command names → a look at them, if some have no index.

Without an index, a dataset could only be opened by downloading whole shards.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from wids.cli.arguments import loaded_spec, storage_options

if TYPE_CHECKING:
    from wids.peeking import Peek
    from wids.specs.model import DatasetSpec

_MAX_NBYTES: Final = 100_000_000
"""Bytes to read for one sample; it is far inside the dataset then, and an index is worth making."""


def spec_and_peek(
    options: argparse.Namespace, *, wanted: bool = False
) -> tuple[DatasetSpec, Peek | None]:
    """Load the spec that a command names; return it, and a look at its shards.

    Args:
        options: The arguments of the command.
        wanted: Whether to look at the shards in any case; otherwise None is returned if a dataset
            can be opened without downloading a shard.
    """
    from wids.peeking import create_command, peek

    spec = loaded_spec(options.spec, options)
    # Packs are believed in, so that the command opens them once.
    num_packed = sum(pack.stop - pack.start for pack in spec.all_packs())
    if num_packed == len(spec.shards) and not wanted:
        return spec, None
    shards = peek(
        spec,
        transformations=None,
        allow_pipe=options.allow_pipe,
        storage_options=storage_options(options),
    )
    shards.create_command = create_command(options.spec, spec)
    return spec, shards if wanted or not shards.has_all_indexes else None


def find_sample(shards: Peek, index: int, key: str | None, shard: int | None) -> tuple[Peek, int]:
    """Return the shard of a sample and its position there.

    Shards before it are counted by their headers, unless the spec states their counts.

    Args:
        shards: A look at the shards.
        index: The number of the sample, from 0 on.
        key: The key of the sample instead, or None.
        shard: The number of the only shard to look in; None for all, or for the first one if the
            sample is named by its key.

    Raises:
        IndexError: There is no such sample, or it is too far from the beginning.
        KeyError: No sample that was found has the key.
    """
    if key is not None:
        here = shards.shard(shard or 0)
        return here, here.find_key(key)
    if index < 0:
        raise _error(shards, f"expected a number from 0 on, found {index}")
    local_index, read_nbytes = index, 0
    for number in range(shards.num_shards) if shard is None else [shard]:
        here = shards.shard(number)
        stated = here.spec.shards[0].num_samples
        if shard is None and stated is not None and local_index >= stated:
            local_index -= stated
            continue
        read_nbytes += _read_to(here, local_index, _MAX_NBYTES - read_nbytes)
        if local_index < len(here):
            return here, local_index
        local_index -= len(here)
    raise IndexError(f"{shards.title}: index {index} is out of range")


def _read_to(here: Peek, local_index: int, limit_nbytes: int) -> int:
    """Read headers until a sample is known or the shard ends; return how many bytes were read."""
    while here.read_on(local_index + 1) <= local_index and not here.is_complete:
        glimpse = here.glimpse
        if glimpse is None or not glimpse.can_continue:
            raise _error(here, "" if glimpse is None else glimpse.remark())
        if glimpse.num_read_nbytes > limit_nbytes:
            raise _error(here, "the sample is too far from the beginning")
    return 0 if here.glimpse is None else here.glimpse.num_read_nbytes


def _error(shards: Peek, reason: str) -> IndexError:
    return IndexError(
        f"{shards.title}: {reason}; the samples are not counted yet: {shards.create_command} makes "
        "an index"
    )


def shown_fields(here: Peek, local_index: int) -> tuple[list[str], dict[str, int]]:
    """Return the fields of a sample that are read to be shown, and the lengths of the others."""
    from wids.looking.field_stats import field_sizes
    from wids.looking.text import MAX_SHOWN_NBYTES

    sizes = field_sizes(here.reader.index(), local_index)
    shown = [field for field, size in sizes.items() if size <= MAX_SHOWN_NBYTES]
    return shown, {field: size for field, size in sizes.items() if field not in shown}
