"""Write a JSON document, however many shards it has."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import IO, Any, Final

from wids.storage import upload
from wids.storage.arrays import LazySequence
from wids.storage.transport import urls

_NUM_PIECES: Final = 1000
"""Pieces of JSON text that are written at once."""
_NUM_ENTRIES: Final = 20
"""Entries of a shardlist in one of these pieces."""


def private_mode(names: Iterable[str]) -> int:
    """Return the permissions of a new file with these URLs: the owner's alone if one has secrets.

    As those of `upload.publishing`, they are less what the process's umask removes.
    """
    return 0o600 if any(map(urls.has_secrets, names)) else 0o666


def save_document(
    path: str | os.PathLike[str],
    document: Mapping[str, Any],
    mode: int = 0o666,
    *,
    replaces: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Write a JSON document atomically, to a path or URL; see `upload.publishing`.

    One that is replaced keeps its permissions.
    """
    with suppress(OSError):
        if upload.is_local(os.fspath(path)):
            mode = os.stat(path).st_mode & 0o777
    with upload.publishing(path, mode, replaces=replaces, storage_options=storage_options) as file:
        try:
            _write_json(file, document, "utf-8")
        except UnicodeEncodeError:  # file names need not be UTF-8
            file.seek(0)
            file.truncate()
            _write_json(file, document, "ascii")


def _write_json(file: IO[bytes], document: Mapping[str, Any], encoding: str) -> None:
    """Write a document, whose text may be too long for memory."""
    pieces = _json_pieces(document, json.JSONEncoder(indent=1, ensure_ascii=encoding == "ascii"))
    while text := "".join(islice(pieces, _NUM_PIECES)):
        file.write(text.encode(encoding))


def _json_pieces(document: Mapping[str, Any], encoder: json.JSONEncoder) -> Iterator[str]:
    start = "{"
    for key, value in document.items():
        yield f"{start}\n {encoder.encode(str(key))}: "
        start = ","
        is_lazy = isinstance(value, LazySequence)
        pieces = _list_pieces(value, encoder) if is_lazy else encoder.iterencode(value)
        yield from (piece.replace("\n", "\n ") for piece in pieces)
    yield "\n}\n"


def _list_pieces(entries: Sequence[Any], encoder: json.JSONEncoder) -> Iterator[str]:
    start = "["
    for at in range(0, len(entries), _NUM_ENTRIES):
        # Without the brackets of this part of the list.
        yield start + encoder.encode([*entries[at : at + _NUM_ENTRIES]])[1:-2]
        start = ","
    yield "\n]" if entries else "[]"
