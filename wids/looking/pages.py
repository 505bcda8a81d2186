"""A path and a query → the answer of the pages of `wids browse`: HTML, script, JSON or bytes.

This module knows nothing of HTTP connections, tokens or headers. It reads only what is shown: the
small fields of the samples on a page, the fields of one sample, or the one field that is requested.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from itertools import accumulate
from typing import Any, Final
from urllib.parse import quote

from wids.errors import WidsError, printable
from wids.files.sizes import nbytes_text
from wids.looking import field_search, preview
from wids.looking.field_stats import FieldStats, field_sizes, preview_fields
from wids.looking.html import STYLE, escaped, field_html, media_type
from wids.looking.preview import Browsable
from wids.looking.text import share_text, shortened
from wids.tars.names import to_bytes
from wids.transport import urls

_logger = logging.getLogger("wids")

MAX_PAGE: Final = 120
"""Maximum number of samples on a page."""
_MAX_SHOWN_NBYTES: Final = 30_000_000
_PICTURE_PIXELS: Final = 1200


@dataclass(frozen=True)
class FieldBytes:
    """A field that is read while it is sent.

    Attributes:
        nbytes: Its length.
        read: Returns the bytes from a start to a stop.
    """

    nbytes: int
    read: Callable[[int, int], bytes]


Answer = tuple[int, str, bytes | FieldBytes]
"""Status, media type and body."""
Route = Callable[[str, dict[str, str]], Answer]
"""Takes the rest of the path, and the query."""


class Pages:
    """The answers for a dataset. Safe to use from any thread.

    Args:
        dataset: The dataset, which is not a view.
        prefix: What the paths of its fields begin with, in links.
    """

    def __init__(self, dataset: Browsable, prefix: str = "") -> None:
        self._dataset = dataset
        self._prefix = prefix
        self._starts = [0, *accumulate(dataset.lengths)]
        self._stats: list[FieldStats] | None = None
        self._routes: dict[str, Route] = {
            **STATIC_ROUTES,
            "about": self._about,
            "samples": self._samples,
            "sample": self._sample,
            "find": self._find,
            "field": self._field,
        }

    def answer(self, path: str, query: dict[str, str]) -> Answer:
        """Return status, media type and body for a path. Every error becomes an answer."""
        return routed(self._routes, path, query)

    def act(self, path: str) -> Answer:
        """Return the answer to a request to do something: there is nothing to do."""
        return error_answer(KeyError(f"{path}: nothing to do"), path)

    @property
    def stats(self) -> list[FieldStats]:
        """The fields of the dataset, computed once."""
        # Two requests may both compute them at the start; the results are equal, so no lock is
        # needed.
        if self._stats is None:
            self._stats = preview.field_stats(self._dataset)
        return self._stats

    def _about(self, _: str, __: dict[str, str]) -> Answer:
        """Answer with the name, size and fields of the dataset."""
        shards = self._dataset.spec.shards
        nbytes = [shard.nbytes for shard in shards if shard.nbytes is not None]
        return json_answer(
            {
                "name": self._dataset.dataset_name or "dataset",
                "num_samples": len(self._dataset),
                "num_shards": len(shards),
                "size": nbytes_text(sum(nbytes)) if len(nbytes) == len(shards) else None,
                "fields": field_rows(self.stats),
            }
        )

    def _samples(self, _: str, query: dict[str, str]) -> Answer:
        """Answer with cards from a start on: of all samples, or of those that have a field."""
        start = max(int(query.get("start", "0")), 0)
        count = min(max(int(query.get("count", "24")), 1), MAX_PAGE)
        indices, next_start = self._page_of_samples(query.get("field", ""), start, count)
        cards = preview.cards(self._dataset, indices, preview_fields(self.stats))
        return json_answer(
            {
                "cards": [{"index": i, "html": c} for i, c in zip(indices, cards, strict=True)],
                "next": next_start,
                "previous": self._previous_start(query.get("field", ""), start, count),
            }
        )

    def _page_of_samples(self, field: str, start: int, count: int) -> tuple[list[int], int | None]:
        if field:
            return field_search.next_with_field(self._dataset, self._starts, field, start, count)
        total = len(self._dataset)
        next_start = start + count if start + count < total else None
        return list(range(start, min(start + count, total))), next_start

    def _previous_start(self, field: str, start: int, count: int) -> int | None:
        if not start:
            return None
        if field:
            return field_search.previous_start(self._dataset, self._starts, field, start, count)
        return max(0, start - count)

    def _sample(self, rest: str, _: dict[str, str]) -> Answer:
        """Answer with one sample: its small fields as HTML, and links to save any field."""
        index = self._index(rest)
        number, local_index = self._dataset.locate(index)
        shard_index = self._dataset.reader.index(number)
        if shard_index is None:
            raise ValueError(f"shard {number} has no index; `wids create` makes an index")
        sizes = field_sizes(shard_index, local_index)
        # Audio and video are left to the player, which requests the parts that it plays.
        shown = [f for f, n in sizes.items() if n <= _MAX_SHOWN_NBYTES and not media_type(f)]
        with self._dataset.only(shown) as selection:
            sample = selection[index]
        rows = "".join(
            _field_row(self._prefix, index, field, nbytes, sample.get(field))
            for field, nbytes in sizes.items()
        )
        shard = escaped(printable(urls.redact(self._dataset.spec.shards[number].url)))
        html = (
            f'{STYLE}<div class="wids"><table>{rows}</table>'
            f"<small>{shard}, position {local_index}</small></div>"
        )
        key = printable(shard_index.key(local_index))
        return json_answer({"index": index, "key": key, "html": html})

    def _find(self, _: str, query: dict[str, str]) -> Answer:
        """Answer with the index of a key."""
        return json_answer({"index": self._dataset.find_key(query.get("key", ""))})

    def _field(self, rest: str, query: dict[str, str]) -> Answer:
        """Answer with the bytes of a field: audio and video to play, all others to save."""
        digits, _, field = rest.partition("/")
        index = self._index(digits)
        number, local_index = self._dataset.locate(index)
        shard_index = self._dataset.reader.index(number)
        sizes = {} if shard_index is None else field_sizes(shard_index, local_index)
        if field not in sizes:
            raise KeyError(f"sample {index} has no field {field} to show")

        def read(start: int, stop: int) -> bytes:
            # Opened for each piece: a player can pause for minutes between two of them, and a copy
            # that is open cannot be evicted (CACHE-7).
            with self._dataset.only([field]) as selection:
                shard = selection.reader.open(number, local=False)
                return shard.read_part(local_index, field, start, stop)

        # Only audio and video get a type of their own. Anything else, HTML or SVG for example,
        # would be run by a browser under this origin (SEC-13).
        kind = None if "save" in query else media_type(field)
        return 200, kind or "application/octet-stream", FieldBytes(sizes[field], read)

    def _index(self, text: str) -> int:
        index = int(text)
        if not 0 <= index < len(self._dataset):
            raise IndexError(f"expected an index from 0 to {len(self._dataset) - 1}, found {index}")
        return index


def _field_row(prefix: str, index: int, field: str, nbytes: int, data: bytes | None) -> str:
    """Return a field as a row of a table: its name, its size, a link to save it, and its value."""
    # From the stored bytes, since `quote` refuses lone surrogates; and with no safe characters,
    # because a slash in a field would end the name.
    link = f"{prefix}field/{index}/{quote(to_bytes(field), safe='')}"
    kind = media_type(field)
    if kind is not None:
        tag = kind.partition("/")[0]
        body = f'<{tag} controls preload="none" src="{link}"></{tag}>'
    elif data is None:
        body = "<small>too large to show</small>"
    else:
        try:
            body = field_html(field, data, _PICTURE_PIXELS)
        except Exception as error:  # noqa: BLE001 - one odd field must not hide the others
            text = shortened(printable(repr(error)), 300)
            body = f'<span class="bad">{escaped(text)}</span>'
    return (
        f"<tr><th><code>{escaped(field)}</code><br><small>{nbytes_text(nbytes)}</small><br>"
        f'<a href="{link}?save=1" download>save</a></th><td>{body}</td></tr>'
    )


def _resource(name: str) -> bytes:
    return resources.files("wids.looking").joinpath(name).read_bytes()


def routed(routes: Mapping[str, Route], path: str, query: dict[str, str]) -> Answer:
    """Return the answer of the route for a path. Every error becomes an answer."""
    name, _, rest = path.partition("/")
    route = routes.get(name)
    if route is None:
        return _error(HTTPStatus.NOT_FOUND, "not found")
    try:
        return route(rest, query)
    except Exception as error:  # noqa: BLE001 - whatever it is, the page shows it
        return error_answer(error, path)


def _page(_: str, __: dict[str, str]) -> Answer:
    return 200, "text/html; charset=utf-8", _resource("browse.html")


def _script(_: str, __: dict[str, str]) -> Answer:
    return 200, "text/javascript; charset=utf-8", _resource("browse.js")


STATIC_ROUTES: Final[dict[str, Route]] = {"": _page, "app.js": _script}
"""The page and its script, which are the same for all datasets."""


def field_rows(stats: Iterable[FieldStats]) -> list[dict[str, str]]:
    """Return fields as the page lists them."""
    return [
        {
            "name": each.field,
            "share": share_text(each.share),
            "size": nbytes_text(each.median_nbytes),
        }
        for each in stats
    ]


def json_answer(value: Any) -> Answer:
    """Return a value as the answer to a request."""
    # ASCII escapes hold lone surrogates too, which names may have and UTF-8 cannot.
    return 200, "application/json", json.dumps(value).encode("ascii")


def error_answer(error: Exception, path: str) -> tuple[int, str, bytes]:
    """Return the answer to a request that failed, for a path."""
    if isinstance(error, WidsError | OSError):
        return _error(HTTPStatus.BAD_GATEWAY, str(error))
    if isinstance(error, ValueError | IndexError | KeyError):
        return _error(HTTPStatus.NOT_FOUND, str(error.args[0]) if error.args else "not found")
    _logger.info("%s could not be shown", printable(path), exc_info=error)
    return _error(HTTPStatus.INTERNAL_SERVER_ERROR, repr(error))


def _error(status: HTTPStatus, text: str) -> tuple[int, str, bytes]:
    document = {"error": printable(text)}
    return int(status), "application/json", json.dumps(document).encode("ascii")
