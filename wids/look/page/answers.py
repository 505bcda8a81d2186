"""Make what a server sends (a status, a media type and a body), and turn errors into answers."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from typing import Any, Final

from wids.errors import WidsError, message_of, printable
from wids.look.field_facts import BusyError

_logger = logging.getLogger(__name__)


Query = dict[str, str]


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
Route = Callable[[str, Query], Answer | dict[str, Any]]
"""Takes the rest of the path, and the query; a dict becomes JSON."""


def error_answer(error: Exception, path: str) -> tuple[int, str, bytes]:
    """Return the answer to a request that failed, for a path."""
    text = message_of(error)
    if isinstance(error, BusyError):
        return _error(HTTPStatus.SERVICE_UNAVAILABLE, text)
    if isinstance(error, WidsError | OSError | ModuleNotFoundError):
        return _error(HTTPStatus.BAD_GATEWAY, text)
    if isinstance(error, ValueError | IndexError | KeyError):
        return _error(HTTPStatus.NOT_FOUND, text)
    _logger.info("%s could not be shown", printable(path), exc_info=error)
    return _error(HTTPStatus.INTERNAL_SERVER_ERROR, f"this could not be shown: {text}")


def number_in(query: Query, name: str, default: int) -> int:
    """Return a number that an address states, or another one if it does not state it."""
    return parsed_number(query.get(name, str(default)), name)


def parsed_number(text: str, name: str) -> int:
    """Return a number in an address.

    Raises:
        ValueError: It is not a number.
    """
    if re.fullmatch("-?[0-9]{1,18}", text) is None:
        raise ValueError(f"{name}: expected an integer, found {text!r:.40}")
    return int(text)


def _error(status: HTTPStatus, text: str) -> tuple[int, str, bytes]:
    return _json_answer(status, {"error": printable(text)})


def _json_answer(status: HTTPStatus, document: dict[str, Any]) -> tuple[int, str, bytes]:
    # ASCII escapes hold lone surrogates too, which names may have and UTF-8 cannot.
    return int(status), "application/json", json.dumps(document).encode("ascii")


def _static(name: str, kind: str) -> Route:
    def route(rest: str, _: Query) -> Answer:
        if rest:
            return _error(HTTPStatus.NOT_FOUND, "not found")
        body = resources.files("wids.look.page").joinpath(name).read_bytes()
        return 200, f"{kind}; charset=utf-8", body

    return route


STATIC_ROUTES: Final[dict[str, Route]] = {
    "": _static("page.html", "text/html"),
    "page.css": _static("page.css", "text/css"),
    **{
        name: _static(name, "text/javascript")
        for name in ("page.js", "address.js", "samples.js", "filters.js", "viewer.js", "shards.js")
    },
}
"""The page, its style sheet and its scripts, which are the same for all datasets."""


class Site:
    """The page and the answers at the paths of a server. Safe to use from any thread.

    Args:
        routes: Functions that answer without changing anything, by the beginning of a path.
        actions: Functions that change something, likewise.
    """

    def __init__(self, routes: Mapping[str, Route], actions: dict[str, Route]) -> None:
        self._routes = {**STATIC_ROUTES, **routes}
        self._actions = actions

    def answer(self, path: str, query: Query) -> Answer:
        """Return status, media type and body for a path. Every error becomes an answer."""
        return _routed(self._routes, path, query)

    def act(self, path: str, query: Query) -> Answer:
        """Perform the action of a path, and return the answer."""
        return _routed(self._actions, path, query)

    def close(self) -> None:
        """Stop what was started."""


def _routed(routes: Mapping[str, Route], path: str, query: Query) -> Answer:
    name, _, rest = path.partition("/")
    route = routes.get(name)
    if route is None:
        return _error(HTTPStatus.NOT_FOUND, "not found")
    try:
        found = route(rest, query)
        return _json_answer(HTTPStatus.OK, found) if isinstance(found, dict) else found
    except Exception as error:  # noqa: BLE001 - whatever it is, the page shows it
        return error_answer(error, path)


# Up to 18 digits, so that a hostile header cannot make the conversion to int slow.
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


def requested_span(header: str, nbytes: int) -> range | None:
    """Return the bytes that a header requests of a body of some length.

    Returns:
        The bytes; an empty range if the body has none of them (status 416); None for all of the
        body, because nothing is requested, or several ranges, or the header is invalid.
    """
    # RFC 9110 lets a server ignore a Range header. So several ranges, which need a multipart body,
    # and invalid headers get all of the body.
    match = _RANGE.fullmatch(header)
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:  # so many bytes at the end
        return range(max(nbytes - int(match[2]), 0), nbytes)
    first, last = int(match[1]), int(match[2] or nbytes)
    # RFC 9110, section 14.1.1: such a range is invalid, which differs from one that the body does
    # not have. Section 14.2 lets a server ignore it.
    if match[2] and last < first:
        return None
    return range(first, min(last + 1, nbytes))
