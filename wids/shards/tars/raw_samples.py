"""Define raw samples: the forms of their fields, their labels, and the errors of reading them.

Local and remote shards share these definitions.
"""

from __future__ import annotations

import io
import operator
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

from wids.errors import ShardFormatError, printable

Raw = Literal["stream", "bytes", "view"]
RawSample: TypeAlias = dict[str, Any]
"""The fields of a sample by their names with the leading dot, and its key under ``"__key__"``."""
Labels: TypeAlias = tuple[int, str, str]
"""What a dataset adds to the samples of a shard: the position of the first sample in the dataset,
the path or URL of the shard, and the name of the dataset."""
ReadRange: TypeAlias = Callable[[int, int], "bytes | memoryview"]
"""Returns the bytes from a start to a stop."""

WRAP: Final[dict[str, Callable[[Any], Any] | None]] = {
    "bytes": None,
    "view": None,
    "stream": io.BytesIO,
}
"""Converts the bytes or the view of a field to its form; None if no conversion is needed."""


def label(sample: RawSample, local_index: int, labels: Labels) -> None:
    """Add labels to a sample that say where it is."""
    start, shard, dataset = labels
    sample["__index__"] = start + local_index
    sample["__shard__"] = shard
    sample["__shardindex__"] = local_index
    sample["__dataset__"] = dataset


def check_raw(raw: str) -> None:
    """Raise `ValueError` for an unknown value of ``raw``."""
    if raw not in WRAP:
        raise ValueError(f'raw: expected "stream", "bytes" or "view", found {raw!r}')


def position(local_index: int, length: int, name: str) -> int:
    """Return an index counted from the start; a negative one counts from the end.

    Args:
        local_index: The index.
        length: Number of samples in the shard.
        name: The name of the shard in messages.
    """
    try:
        at = operator.index(local_index)
    except TypeError:
        kind = type(local_index).__name__
        text = f"{name}: expected an index, found {kind} {local_index!r:.80}"
        raise TypeError(printable(text)) from None
    if not -length <= at < length:
        text = f"{name}: index {local_index} is out of range for {length} samples"
        raise IndexError(printable(text))
    return at % length


def missing_field_error(name: str, key: str, field: str) -> KeyError:
    """Return the error for a field that a sample of a shard does not have."""
    return KeyError(f"{name}: the sample {key!r} has no field {field}")


def changed_header_error(name: str, at: int, field: str) -> ShardFormatError:
    """Return the error for a header, at a byte of a shard, that differs from its index."""
    return ShardFormatError(
        f"{name}: at byte {at}: expected the header of a {field} as in the published index, found "
        "another; the tar was written again after its index: rebuild the index too, or remove it"
    )


def changed_payload_error(name: str, member: str) -> ShardFormatError:
    """Return the error for a member whose bytes differ from the indexed ones."""
    return ShardFormatError(
        f'{name}: member "{member}": expected bytes with the checksum that the index of the shard '
        "states, found others; they were damaged after they were indexed: restore the file from "
        "where it came (or, if it was written again on purpose, rebuild its index)"
    )


def changed_index_error(name: str) -> ShardFormatError:
    """Return the error for a mapped index that changed while its shard was open."""
    return ShardFormatError(
        f"{name}: expected its index as when it was opened, found one of another length; it was "
        "changed in place: open the dataset again, and replace files by renaming"
    )
