"""A dataset as pages for a browser on this machine: a grid to page through, and every sample.

The server listens on loopback only, under an address with a random token in it, so that other users
of the machine cannot read along, and answers to no other name, so that no page from elsewhere can.
It reads what is shown: of a page the small fields of its samples, of a sample the field that is
asked for. What comes from the dataset is never served as something that a browser would run.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from bisect import bisect_left
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from itertools import accumulate, islice
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote

from wids.errors import WidsError
from wids.files.sizes import nbytes_text
from wids.looking import preview
from wids.looking.field_stats import FieldStats, field_sizes, preview_fields, samples_with_field
from wids.looking.html import STYLE, escaped, field_html, media_type
from wids.looking.preview import Browsable
from wids.looking.text import printable, shortened
from wids.tars.names import to_bytes
from wids.transport import urls

_logger = logging.getLogger("wids")

_RANGE: Final = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")

MAX_PAGE: Final = 120
_MAX_FIELD_NBYTES: Final = 1 << 30
_MAX_SHOWN_NBYTES: Final = 30_000_000
_PICTURE_SIZE: Final = 1200
_MAX_SEARCHED: Final = 500_000
"""Members that are searched for a field at a time, since indexes may have to be fetched."""

Answer = tuple[int, str, bytes]


class Browser:
    """A dataset behind a loopback address.

    Args:
        dataset: The dataset, all of it and no view; stays open.
        port: Port to listen on; 0 for one that is free.

    Attributes:
        url: The address of its page, with the token.

    Raises:
        ValueError: The dataset is a view.
    """

    def __init__(self, dataset: Browsable, port: int = 0) -> None:
        if dataset.is_view:
            raise ValueError("dataset: expected all of a dataset, found a view; use its show()")
        self._pages = _Pages(dataset)
        self._token = secrets.token_urlsafe(16)
        self._server = _Server(("127.0.0.1", port), self._handler())
        self._is_serving = False
        self.url = f"http://127.0.0.1:{self._server.server_port}/{self._token}/"

    def serve(self) -> None:
        """Answer requests until `close` is called from another thread, or Ctrl-C."""
        self._is_serving = True
        try:
            self._server.serve_forever(poll_interval=0.1)
        finally:
            self._is_serving = False

    def close(self) -> None:
        """Stop answering."""
        if self._is_serving:
            self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        pages, token, hosts = self._pages, self._token, self._hosts

        class Handler(BaseHTTPRequestHandler):
            server_version, sys_version = "wids", ""

            def do_GET(self) -> None:
                path, _, asked = self.path.partition("?")
                given, _, rest = path.removeprefix("/").partition("/")
                is_known = secrets.compare_digest(given.encode(), token.encode())
                if not is_known or self.headers.get("Host") not in hosts():
                    answer = 404, "text/plain", b"there is nothing here\n"
                else:
                    query = {k: v[0] for k, v in parse_qs(asked).items()}
                    answer = pages.answer(unquote(rest, errors="surrogateescape"), query)
                status, kind, body = answer
                part = _part(self.headers.get("Range", ""), body) if status == 200 else None
                if part is not None:  # a player that goes to and fro
                    status, (where, body) = 206, part
                self.send_response(status)
                if part is not None:
                    self.send_header("Content-Range", where)
                for name, value in _HEADERS.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing: the address has the token in it."""

        return Handler

    def _hosts(self) -> list[str]:
        return [f"{name}:{self._server.server_port}" for name in ("127.0.0.1", "localhost")]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Note what went wrong; mostly that somebody has closed the page meanwhile."""
        _logger.info("a request ended early", exc_info=True)  # noqa: LOG014 - called in a handler


# No page from elsewhere may frame or read this one, and it loads nothing from elsewhere.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; media-src 'self' data:; "
    "style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class _Pages:
    """What each address under the token answers with. Safe to use from any thread."""

    def __init__(self, dataset: Browsable) -> None:
        self._dataset = dataset
        self._starts = [0, *accumulate(dataset.lengths)]
        self._stats: list[FieldStats] | None = None

    def answer(self, path: str, query: dict[str, str]) -> Answer:
        """Give status, media type and body for a path."""
        name, _, rest = path.partition("/")
        routes: dict[str, Callable[[str, dict[str, str]], Answer]] = {
            "": self._page,
            "app.js": self._script,
            "about": self._about,
            "samples": self._samples,
            "sample": self._sample,
            "find": self._find,
            "field": self._field,
        }
        route = routes.get(name)
        if route is None:
            return _error(HTTPStatus.NOT_FOUND, "there is nothing here")
        try:
            return route(rest, query)
        except (WidsError, OSError) as error:
            return _error(HTTPStatus.BAD_GATEWAY, printable(str(error)))
        except (ValueError, IndexError, KeyError) as error:
            text = str(error.args[0]) if error.args else "not found"
            return _error(HTTPStatus.NOT_FOUND, printable(text))
        except Exception as error:
            _logger.info("%s could not be shown", path, exc_info=True)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, printable(repr(error)))

    def _page(self, _: str, __: dict[str, str]) -> Answer:
        return 200, "text/html; charset=utf-8", _file("browse.html")

    def _script(self, _: str, __: dict[str, str]) -> Answer:
        return 200, "text/javascript; charset=utf-8", _file("browse.js")

    @property
    def stats(self) -> list[FieldStats]:
        """The fields of the dataset, looked up once."""
        if self._stats is None:
            self._stats = preview.field_stats(self._dataset)
        return self._stats

    def _about(self, _: str, __: dict[str, str]) -> Answer:
        nbytes = [shard.nbytes for shard in self._dataset.spec.shards]
        size = None if None in nbytes else sum(n or 0 for n in nbytes)
        return _json(
            {
                "name": self._dataset.dataset_name or "dataset",
                "num_samples": len(self._dataset),
                "num_shards": len(self._dataset.spec.shards),
                "size": None if size is None else nbytes_text(size),
                "fields": [
                    {
                        "name": about.field,
                        "share": f"{about.share:.0%}",
                        "size": nbytes_text(about.median_nbytes),
                    }
                    for about in self.stats
                ],
            }
        )

    def _samples(self, _: str, query: dict[str, str]) -> Answer:
        """Give cards from a start on, of all samples or of those that have a field."""
        start = max(int(query.get("start", "0")), 0)
        count = min(max(int(query.get("count", "24")), 1), MAX_PAGE)
        field = query.get("field", "")
        total = len(self._dataset)
        if field:
            found, following = self._with_field(field, start, count)
        else:
            found = list(range(start, min(start + count, total)))
            following = start + count if start + count < total else None
        fields = preview_fields(self.stats)
        cards = preview.cards(self._dataset, found, fields)
        return _json(
            {
                "cards": [{"index": i, "html": c} for i, c in zip(found, cards, strict=True)],
                "next": following,
                "previous": self._before(field, start, count) if start else None,
            }
        )

    def _before(self, field: str, start: int, count: int) -> int:
        """Give where the page before begins: so many samples back, of those that have a field."""
        if not field:
            return max(0, start - count)
        found: list[int] = []
        num_searched = 0
        for number in range(bisect_left(self._starts, start) - 1, -1, -1):
            index = self._dataset.shard_index(number)
            if index is None or num_searched > _MAX_SEARCHED:
                return self._starts[number + 1] if not found else found[0]
            num_searched += len(index.sizes)
            begin = self._starts[number]
            here = [begin + at for at in samples_with_field(index, field) if begin + at < start]
            found = [*here, *found]
            if len(found) >= count:
                return found[-count]
        return 0

    def _with_field(self, field: str, start: int, count: int) -> tuple[list[int], int | None]:
        """Give samples that have a field, by indexes alone, and where to look on."""
        found: list[int] = []
        first = max(bisect_left(self._starts, start + 1) - 1, 0)
        last = len(self._starts) - 1
        num_searched = 0
        for number in range(first, last):
            if num_searched > _MAX_SEARCHED:
                return found, self._starts[number]
            index = self._dataset.shard_index(number)
            if index is None:
                raise ValueError(f"shard {number} has no index to search; wids create makes one")
            num_searched += len(index.sizes)
            begin = self._starts[number]
            matches = samples_with_field(index, field, max(start - begin, 0))
            found += [begin + at for at in islice(matches, count - len(found))]
            if len(found) == count:
                return found, found[-1] + 1 if found[-1] + 1 < self._starts[-1] else None
        return found, None

    def _sample(self, rest: str, _: dict[str, str]) -> Answer:
        """Give one sample: its small fields as HTML, and links to the others."""
        index = self._index(rest)
        number, local_index = self._dataset.locate(index)
        known = self._dataset.shard_index(number)
        if known is None:
            raise ValueError(f"shard {number} has no index; wids create makes one")
        members = field_sizes(known, local_index)
        shard = escaped(printable(_shown_url(self._dataset, number)))
        shown = [f for f, n in members.items() if n <= _MAX_SHOWN_NBYTES and not media_type(f)]
        with self._dataset.only(shown) as small:
            sample = small[index]
        rows = "".join(
            self._row(index, field, nbytes, sample.get(field)) for field, nbytes in members.items()
        )
        key = known.key(local_index)
        html = (
            f'{STYLE}<div class="wids"><table>{rows}</table><small>{shard}, its number '
            f"{local_index}</small></div>"
        )
        return _json({"index": index, "key": printable(key), "html": html})

    def _row(self, index: int, field: str, nbytes: int, data: bytes | None) -> str:
        link = f"field/{index}/{quote(to_bytes(field), safe='')}"
        size = nbytes_text(nbytes)
        media = media_type(field)
        if media is not None:
            tag = media.partition("/")[0]
            body = f'<{tag} controls preload="none" src="{link}"></{tag}>'
        elif data is None:
            body = "<small>too large to show</small>"
        else:
            try:
                body = field_html(field, data, _PICTURE_SIZE)
            except Exception as error:  # noqa: BLE001 - one field, and the others are shown
                text = shortened(printable(repr(error)), 300)
                body = f'<span class="bad">{escaped(text)}</span>'
        name = escaped(field)
        return (
            f"<tr><th><code>{name}</code><br><small>{size}</small><br>"
            f'<a href="{link}?save=1" download>save</a></th><td>{body}</td></tr>'
        )

    def _find(self, _: str, query: dict[str, str]) -> Answer:
        """Give the index of a key."""
        return _json({"index": self._dataset.find_key(query.get("key", ""))})

    def _field(self, rest: str, query: dict[str, str]) -> Answer:
        """Give the bytes of a field: sound and film to be played, others to be saved."""
        at, _, field = rest.partition("/")
        data = self._read(self._index(at), field)
        media = None if "save" in query else media_type(field)
        return 200, media or "application/octet-stream", data

    def _read(self, index: int, field: str) -> bytes:
        number, local_index = self._dataset.locate(index)
        known = self._dataset.shard_index(number)
        nbytes = {} if known is None else field_sizes(known, local_index)
        if field not in nbytes or nbytes[field] > _MAX_FIELD_NBYTES:
            raise KeyError(f"sample {index} has no field {field} to show")
        with self._dataset.only([field]) as small:
            data: bytes = small[index][field]
            return data

    def _index(self, text: str) -> int:
        index = int(text)
        if not 0 <= index < len(self._dataset):
            raise IndexError(f"there are samples 0 to {len(self._dataset) - 1}")
        return index


def _part(asked: str, body: bytes) -> tuple[str, bytes] | None:
    """Give the part of a body that a Range header asks for, and where it is; None for the whole."""
    span = _RANGE.fullmatch(asked)
    if span is None or int(span[1]) >= len(body):
        return None
    start, stop = int(span[1]), min(int(span[2] or len(body)) + 1, len(body))
    return f"bytes {start}-{stop - 1}/{len(body)}", body[start:stop]


def _file(name: str) -> bytes:
    return resources.files("wids.looking").joinpath(name).read_bytes()


def _shown_url(dataset: Browsable, number: int) -> str:
    return urls.redact(dataset.spec.shards[number].url)


def _json(value: Any) -> Answer:
    return 200, "application/json", json.dumps(value).encode("ascii")


def _error(status: HTTPStatus, text: str) -> Answer:
    return int(status), "application/json", json.dumps({"error": text}).encode("ascii")
