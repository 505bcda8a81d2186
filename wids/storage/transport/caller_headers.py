"""The headers that a caller has sent with each request: fixed, or returned by a callable.

A callable is for tokens that expire. It is called when a header is first needed, again shortly
before the time that it stated, and again if `http` reports a 401.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from wids.errors import FetchError
from wids.storage.transport.http_messages import check_headers
from wids.storage.transport.stream import TransientError

Returned: TypeAlias = "Mapping[str, str] | tuple[Mapping[str, str], float]"
"""Headers, or headers and the Unix time at which they expire."""

_MARGIN_S: Final = 60.0
"""How long before they expire headers are renewed; a tenth of the time that they last, at most."""


class CallerHeaders:
    """The headers of a caller, for one prefix of URLs.

    Threads can share it. It survives a fork, and pickling if the callable does.

    Args:
        given: The headers, a callable that returns them, or None.
    """

    def __init__(self, given: Mapping[str, str] | Callable[[], Returned] | None) -> None:
        self._given = given
        self._known = {} if callable(given) else dict(given or {})
        self._renew_s = float("-inf") if callable(given) else float("inf")
        self._lock, self._pid = threading.Lock(), os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self._given if callable(self._given) else self._known}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["given"])  # type: ignore[misc]

    def current(self) -> dict[str, str]:
        """Return the headers to send now.

        Raises:
            FetchError: They cannot be sent, or the callable failed.
        """
        if time.time() < self._renew_s:
            return self._known
        return self._renewed(self._known)

    def after_refusal(self, refused: Mapping[str, str]) -> dict[str, str] | None:
        """Return newer headers than those that a server refused; None if there are none.

        Raises:
            FetchError: As `current`.
        """
        return self._renewed(refused) if callable(self._given) else None

    def _renewed(self, old: Mapping[str, str]) -> dict[str, str]:
        """Call the callable, unless another thread has replaced these headers meanwhile."""
        if self._pid != os.getpid():  # a thread of the parent may hold the lock
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            if self._known is old or time.time() >= self._renew_s:
                self._known, self._renew_s = _called(self._given)
            return self._known


def _called(call: Any) -> tuple[dict[str, str], float]:
    """Return the headers of a callable, and the Unix time at which to call it again."""
    try:
        found: Returned = call()
    except OSError as error:  # perhaps its own server is away
        raise TransientError(_failure(error), is_outage=False) from error
    except Exception as error:
        raise FetchError(_failure(error)) from error
    headers, expires_s = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    is_time = expires_s is None or isinstance(expires_s, (int, float))
    if not isinstance(headers, Mapping) or not is_time:
        raise FetchError(
            "storage_options: expected headers, a callable, to return a dict, or a dict and the "
            f"time at which it expires, found a {type(found).__name__}"
        )
    try:
        check_headers(headers)
    except ValueError:
        raise FetchError(
            "storage_options: expected headers, a callable, to return names and values of one line "
            "of Latin-1 text each, found others"
        ) from None
    now_s = time.time()
    if expires_s is None:
        return dict(headers), float("inf")
    return dict(headers), expires_s - min(_MARGIN_S, max(0.0, expires_s - now_s) / 10)


def _failure(error: BaseException) -> str:
    # Without its text, which may quote the token.
    return (
        "storage_options: expected headers, a callable, to return the headers of a request, found "
        f"an error: {type(error).__name__}; its traceback says where"
    )
