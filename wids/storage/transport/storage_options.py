"""Parse ``storage_options`` from the environment or a command line.

The values are often secrets, so no message here shows one. Names of options are not checked here:
the transports and the fsspec drivers define them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

VARIABLE: Final = "WIDS_STORAGE_OPTIONS"
RETRY_VARIABLE: Final = "WIDS_RETRY_S"
DEADLINE_VARIABLE: Final = "WIDS_DEADLINE_S"
RETRY_S: Final = 300.0
"""Seconds that a read waits for a server by default."""

Assignment: TypeAlias = "tuple[tuple[str, ...], Any]"
"""The names that lead to an option, and its value."""


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


def retry_s(options: Mapping[str, Any]) -> float:
    """Return how long a read waits for a server: from the options, the environment or the default.

    Raises:
        ValueError: The value is not a number of seconds.
    """
    return _seconds(options, "retry_s", RETRY_VARIABLE, RETRY_S)


def deadline_s(options: Mapping[str, Any]) -> float:
    """Return how long a read may take in all, from the options or the environment; else infinity.

    Raises:
        ValueError: The value is not a number of seconds.
    """
    return _seconds(options, "deadline_s", DEADLINE_VARIABLE, math.inf)


def _seconds(options: Mapping[str, Any], name: str, variable: str, default: float) -> float:
    label, stated = f"storage_options: {name}", options.get(name)
    if stated is None:
        label, stated = variable, os.environ.get(variable, "").strip() or default
    try:
        seconds = float(stated)
    except (TypeError, ValueError):
        seconds = -1.0
    if not seconds >= 0:  # and no NaN
        raise ValueError(f"{label}: expected a number of seconds, found {stated!r:.40}")
    return seconds


def header(text: str) -> Assignment:
    """Return the option for an HTTP header, which is written as ``Name: value``.

    Raises:
        ValueError: It has no name, or no colon.
    """
    name, colon, value = text.partition(":")
    if not name.strip() or not colon:
        raise ValueError("expected 'Name: value', found a text without a name or a colon")
    return ("headers", name.strip()), value.strip()


def assignment(text: str) -> Assignment:
    """Return the option that ``KEY=VALUE`` states: a value that is JSON is parsed, else it is text.

    A dot in a key leads into an option that is itself a dict, such as
    ``client_kwargs.region_name=eu-west-1``. A key that contains ``://`` is a URL prefix, and its
    value a JSON object.

    Raises:
        ValueError: It has no key, or no equals sign.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError("expected KEY=VALUE, found a text without a key or an equals sign")
    if "://" in key:
        return (key,), _parsed(value)
    if key.startswith("headers."):  # names of headers may have dots, and their values are text
        return ("headers", key.partition(".")[2]), value
    return tuple(key.split(".")), _parsed(value)


def merged(options: Mapping[str, Any], assignments: Iterable[Assignment]) -> dict[str, Any]:
    """Return options with others added, which take precedence; the first are not modified.

    Raises:
        ValueError: An option leads into one that is not a dict.
    """
    result = dict(options)
    for path, value in assignments:
        _set(result, path, value)
    return result


def _set(options: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set an option, which may be inside others; what is inside is copied and not modified."""
    name, *rest = path
    if not rest:
        options[name] = value
        return
    inner = options.get(name, {})
    if not isinstance(inner, Mapping):
        raise ValueError(  # noqa: TRY004 - the text is wrong, and not a type of the program
            f"{'.'.join(path)}: expected {name} to be a dict of options, "
            f"found a {type(inner).__name__}"
        )
    # Names of headers have no case: the one that was passed last is the only one.
    hidden = rest[0].lower() if name == "headers" else None
    options[name] = {key: other for key, other in inner.items() if key.lower() != hidden}
    _set(options[name], tuple(rest), value)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
