"""Find the transport for the scheme of a URL, and the caller's options for that URL.

`TRANSPORTS` is the only table of schemes. `Transports` holds what one `Fetcher` has made of it.

Option values are often secrets, so no message here shows one. Option names are not checked here:
the transports and the fsspec drivers define them.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, NamedTuple

from wids.storage import stages
from wids.storage.sizes import nbytes_text
from wids.storage.transport import local, retry, urls
from wids.storage.transport.stream import Entry, Stream, Transport

_logger = logging.getLogger(__name__)


VARIABLE: Final = "WIDS_STORAGE_OPTIONS"
WAITS: Final = {"retry_s": 300.0, "deadline_s": math.inf, "hedge": True}
"""Options of all reads, with their defaults: how many seconds to wait for a server, how many a read
may take in all, and whether late requests are sent twice. Variables such as ``WIDS_RETRY_S`` state
them too."""


def from_environment() -> dict[str, Any]:
    """Return the options that ``WIDS_STORAGE_OPTIONS`` states as JSON; none if it is not set.

    Raises:
        ValueError: It is not a JSON object.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return {}
    expected = f'{VARIABLE}: expected a JSON object such as {{"key": "…"}}, found'
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        # Without the parser's own words, and without a cause: they quote the text.
        place = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise ValueError(f"{expected} text that is not JSON{place}") from None
    if not isinstance(options, dict):  # the text is wrong, and not a type of the program
        raise ValueError(f"{expected} a {type(options).__name__}")  # noqa: TRY004
    return options


def waits(options: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of `WAITS`: from the options, else the environment, else the defaults.

    Raises:
        ValueError: One is not a number of seconds, or neither true nor false.
    """
    return {name: _wait(name, options) for name in WAITS}


def _wait(name: str, options: Mapping[str, Any]) -> float:
    label, setting = f"storage_options: {name}", options.get(name)
    if setting is None:
        label = f"WIDS_{name.upper()}"
        setting = os.environ.get(label, "").strip() or WAITS[name]
    return _number(label, setting, is_switch=name == "hedge")


def _number(label: str, setting: Any, *, is_switch: bool = False) -> float:
    try:
        value = float(setting)
    except (TypeError, ValueError):
        value = -1.0
    if not (value in (0, 1) if is_switch else value >= 0):  # also refuses NaN
        expected = "true or false, or 1 or 0" if is_switch else "a number of seconds"
        raise ValueError(f"{label}: expected {expected}, found {setting!r:.40}")
    return value


TRANSPORTS: Final[Mapping[str, str]] = {
    "": "local",
    "file": "local",
    "pipe": "pipe",
    "http": "http",
    "https": "http",
    **dict.fromkeys(urls.KINDS, "object_store"),
}
"""Schemes in lower case, ``""`` for a path, and the modules beside this one that have their
transports: imported when a URL needs them, since a reader of local shards needs none. fsspec opens
all others. ``transport_for`` takes the caller's options for a URL, and the folder for temporary
files (None for the system's)."""


class Plan(NamedTuple):
    """How the parts of a file are read.

    Attributes:
        url: The file, after rewriting.
        transport: What reads it.
        timeouts: How long to wait for its server.
        may_hedge: Whether late requests are sent twice.
    """

    url: str
    transport: Transport
    timeouts: retry.Timeouts
    may_hedge: bool


class Transports:
    """The transports of one `Fetcher`, made when first needed; see there for the arguments.

    Threads can share it, and it can be pickled if the handlers can.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        handlers: Mapping[str, local.Opener] | None = None,
        scratch: str | None = None,
    ) -> None:
        self._options = by_prefix(storage_options)
        # Kept here, since options without a prefix are later restricted to one server.
        self._common = waits(self._options.get("", {}))
        self._handlers = {
            scheme.lower(): local.Handler(opener) for scheme, opener in (handlers or {}).items()
        }
        self._scratch = scratch
        self._whole_file_servers: set[str] = set()
        self._made: dict[tuple[str, str | None], Transport] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "answered": retry.answered(), "stages": stages.passed_stages()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A worker that is started in an outage has not met the servers itself.
        for server in state.pop("answered"):
            retry.note_answer(server)
        stages.join_stages(state.pop("stages"))
        self.__dict__.update(state)

    def open(self, url: str, start: int, stop: int | None, tag: str | None = None) -> Stream:
        """Open a URL that is not read by HTTP, after rewriting; see `stream.Transport`."""
        target, transport = self._rewritten(url)
        server = urls.origin(target)
        if not server:
            return transport.open(target, start, stop, tag)
        from wids.storage.transport.request_log import log_request, noted

        method, sent_s = "HEAD" if stop == 0 else "GET", time.monotonic()
        stages.count(stages.REQUESTS)
        try:
            with retry.waiting_for("a connection or a response"):
                stream = transport.open(target, start, stop, tag)
        except BaseException as error:
            log_request(method, target, sent_s, error=error)
            raise
        retry.note_answer(server)
        return noted(method, target, stream, sent_s)

    def plan(self, url: str) -> Plan:
        """Return how a URL is read."""
        target, transport = self._rewritten(url)
        found = waits(self._common | options_for(url, self._options))
        server = urls.origin(target)
        timeouts = retry.Timeouts(server, found["retry_s"], found["deadline_s"], url)
        return Plan(target, transport, timeouts, bool(found["hedge"]))

    def note_whole_files(self, url: str, nbytes: int | None) -> None:
        """Remember that a server sends whole files only; warn about it once.

        Args:
            url: A file of which a part was requested.
            nbytes: Length of the file, if it is known.
        """
        server = urls.origin(url)
        if not server or server in self._whole_file_servers:
            return
        self._whole_file_servers.add(server)
        _logger.warning(
            "%s: the server sends whole files only, without byte ranges: a single sample costs the "
            "download of its shard, such as %s of %s",
            urls.redact(server),
            "an unknown number of bytes" if nbytes is None else nbytes_text(nbytes),
            urls.redact(url),
        )

    def sends_parts(self, url: str) -> bool:
        """Return whether a URL's server may send parts; False once it has sent a whole file."""
        # Most datasets never meet such a server, and shards are opened often.
        return not self._whole_file_servers or urls.origin(url) not in self._whole_file_servers

    def states_nbytes(self, url: str) -> bool:
        """Return whether the length of a file can be asked without reading the file."""
        return self._rewritten(url)[1].states_nbytes

    def entries(self, folder: str) -> list[Entry]:
        """Return what is in a folder, after rewriting, by the transport of its scheme.

        Raises:
            NotFoundError: There is no such folder.
            FetchError: It cannot be listed.
        """
        target, transport = self._rewritten(folder)
        if not urls.origin(target):
            return transport.entries(target)
        from wids.storage.transport.request_log import logged

        with logged("LIST", target):
            return transport.entries(target)

    def bind_options(self, url: str) -> None:
        """Restrict options without a prefix to the server of ``url``, if it is remote.

        For the first document that is read: the URLs in it are not the caller's, so the caller's
        tokens must not go to the servers that it names.
        """
        # Only the first document finds the key: later ones cannot claim the options (SEC-9).
        if "" in self._options and urls.origin(url):
            self._options[urls.origin(url)] = self._options.pop("")

    def _rewritten(self, url: str) -> tuple[str, Transport]:
        """Return the URL to open, and its transport, which keeps connections for the next one."""
        target = urls.rewritten(url)
        if handler := self._handlers.get(urls.scheme(target)):
            return target, handler
        module = TRANSPORTS.get(urls.scheme(target), "fsspec")
        # The caller's prefixes refer to URLs as they are written, before rewriting.
        prefix = _matching_prefix(url, tuple(self._options))
        key = (module, prefix)
        if key not in self._made:
            options = {} if prefix is None else self._options[prefix]
            transport_for = import_module(f"wids.storage.transport.{module}").transport_for
            self._made[key] = transport_for(options, self._scratch)
            self._made[key].prefix = urls.rewritten(prefix or "")
        return target, self._made[key]


def by_prefix(options: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return options by the URL prefix that they are for; ``""`` is for all URLs.

    None stands for the options of the environment.
    """
    options = from_environment() if options is None else options
    is_prefix = ["://" in name for name in options]
    if not any(is_prefix):
        options = {"": options}
    elif not all(is_prefix):
        raise ValueError(
            "storage_options: expected options, or options by URL prefix, found both: "
            + ", ".join(map(urls.redact, options))
        )
    return {prefix: _checked(some) for prefix, some in options.items()}


def _checked(options: Any) -> dict[str, Any]:
    """Return options of which `headers` and `timeout` can be used.

    Raises:
        ValueError: They cannot; the error does not show the headers.
    """
    if not isinstance(options, Mapping):
        raise _no_dict_error("storage_options", options)
    headers, timeout = options.get("headers"), options.get("timeout")
    if not (headers is None or callable(headers) or isinstance(headers, Mapping)):
        raise _no_dict_error("storage_options: headers", headers)
    if timeout is None:
        return dict(options)
    return {**options, "timeout": _number("storage_options: timeout", timeout)}


def _no_dict_error(label: str, value: Any) -> ValueError:
    return ValueError(f"{label}: expected a dict, found a {type(value).__name__}")


def options_for(url: str, options: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the options of the prefix that matches a URL; none if no prefix does."""
    prefix = _matching_prefix(url, tuple(options))
    return {} if prefix is None else options[prefix]


@lru_cache(maxsize=4096)  # each sample asks
def _matching_prefix(url: str, prefixes: tuple[str, ...]) -> str | None:
    """Return the longest prefix of this URL, or None."""
    matching = (prefix for prefix in prefixes if not prefix or urls.is_below(url, prefix))
    # The longest prefix is the narrowest, and so the one that the caller meant for this URL.
    return max(matching, key=len, default=None)
