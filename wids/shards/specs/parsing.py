"""Parse a JSON document, within the memory that a spec may take."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from wids.errors import SpecError

MAX_DOCUMENT_NBYTES: Final = 256 << 20
MAX_VALUES: Final = 10_000_000
"""Most values in all documents of one spec. Python needs up to 300 bytes for a value of three bytes
of text, such as ``{},``; a shard with seven keys has eight values."""


def num_values(document: str | bytes) -> int:
    """Return how many values a document has, or a few more: separators in strings count too."""
    if isinstance(document, str):
        return sum(map(document.count, ",[{"))
    return sum(map(document.count, (b",", b"[", b"{")))


def parse(document: str | bytes, name: str) -> Any:
    """Return the values of a document; messages begin with ``name``.

    Raises:
        SpecError: It is not JSON, or nested too deeply.
    """
    try:
        return json.loads(document)
    # The scanner of json is recursive, so enough `[` in a row exhaust the stack (SEC-39).
    except (ValueError, RecursionError) as error:
        head = document[:40] if isinstance(document, str) else document[:40].decode("latin-1")
        raise SpecError(
            f"{name}: expected a JSON document, found text that begins with {head!r} ({error})"
        ) from error


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable the search for unreachable cycles inside the block.

    Python would traverse all objects each time their number has grown by a quarter: a seventh of
    the time to load a spec of 100,000 shards, which has no cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
