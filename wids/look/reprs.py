"""Describe a dataset in one line, for an interpreter, a debugger or a log.

Reads nothing that is not at hand: fields are those of a shard that is open, or of a local pack.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from wids.errors import WidsError, printable
from wids.storage.sizes import count_text
from wids.storage.transport import urls

_MAX_SHARDS: Final = 16
"""Shards that are asked whether they are open."""
_MAX_FIELDS: Final = 12


def dataset_repr(dataset: Any) -> str:
    """Describe a dataset or view: its name, samples, shards, fields and transformations."""
    name = f" {dataset.dataset_name!r}" if dataset.dataset_name else ""
    total = f"of {len(dataset.reader):,} " if dataset.is_view else ""
    samples = count_text(len(dataset), "sample").replace(" ", f" {total}", 1)
    parts = [samples, count_text(len(dataset.spec.shards), "shard")]
    fields = _known_fields(dataset)
    if fields:
        more = " …" if len(fields) > _MAX_FIELDS else ""
        parts.append(f"fields {' '.join(fields[:_MAX_FIELDS])}{more}")
    if dataset.transformations:
        parts.append(f"through {', '.join(map(_name, dataset.transformations))}")
    return printable(f"<{type(dataset).__name__}{name}: {', '.join(parts)}>")


def _known_fields(dataset: Any) -> list[str]:
    reader, spec = dataset.reader, dataset.spec
    if reader.fields is not None:
        return list(reader.field_names(sorted(reader.fields)))
    # An error of a shard is reported when it is read.
    with suppress(WidsError, OSError):
        for number in range(min(len(spec.shards), _MAX_SHARDS)):
            if reader.pool.peek(number) is not None:
                return list(reader.field_names(reader.index(number).fields))
        if any(pack.start == 0 and urls.is_local(pack.url) for pack in spec.all_packs()):
            index = reader.known_index(0)
            return [] if index is None else list(reader.field_names(index.fields))
    return []


def _name(function: Any) -> str:
    """Return a callable as text: its name, its ``repr``, or the name of its type."""
    name = getattr(function, "__qualname__", None) or repr(function)
    return printable(type(function).__name__ if " at 0x" in name else name)
