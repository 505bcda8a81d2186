"""Describe a dataset in one line, and have notebooks show its samples."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, Final

from wids.errors import WidsError, printable
from wids.storage.sizes import count_text
from wids.storage.transport import urls

_MAX_SHARDS: Final = 16
"""Shards that are asked whether they are open."""
_MAX_FIELDS: Final = 12


def dataset_repr(dataset: Any) -> str:
    """Describe a dataset or view: its name, samples, shards, fields and transformations.

    Reads nothing that is not at hand: fields are those of a shard that is open, or of a local
    dataset index.
    """
    name = f" {dataset.dataset_name!r}" if dataset.dataset_name else ""
    total = f"of {len(dataset.reader):,} " if dataset.is_view else ""
    samples = count_text(len(dataset), "sample").replace(" ", f" {total}", 1)
    parts = [samples, count_text(len(dataset.spec.shards), "shard")]
    fields = _fields_at_hand(dataset)
    if fields:
        more = " …" if len(fields) > _MAX_FIELDS else ""
        parts.append(f"fields {' '.join(fields[:_MAX_FIELDS])}{more}")
    if dataset.transformations:
        parts.append(f"through {', '.join(map(_step_name, dataset.transformations))}")
    return printable(f"<{type(dataset).__name__}{name}: {', '.join(parts)}>")


def _fields_at_hand(dataset: Any) -> list[str]:
    reader, spec = dataset.reader, dataset.spec
    if reader.fields is not None:
        return list(reader.field_names(sorted(reader.fields)))
    # An error of a shard is reported when it is read.
    with suppress(WidsError, OSError):
        for number in range(min(len(spec.shards), _MAX_SHARDS)):
            if reader.peek(number) is not None:
                return list(reader.field_names(reader.index(number).fields))
        if any(part.start == 0 and urls.is_local(part.url) for part in spec.all_dataset_indexes()):
            index = reader.known_index(0)
            return [] if index is None else list(reader.field_names(index.fields))
    return []


def _step_name(function: Any) -> str:
    """Return a callable as text: its name, its ``repr``, or the name of its type."""
    name = getattr(function, "__qualname__", None) or repr(function)
    return printable(type(function).__name__ if " at 0x" in name else name)


def show_in_notebooks(*dataset: Any) -> None:
    """Have IPython show samples, if the program runs it; see `wids.look.in_notebooks`."""
    if "IPython" in sys.modules:
        from wids.look import in_notebooks

        in_notebooks.show_in_notebooks(*dataset)
