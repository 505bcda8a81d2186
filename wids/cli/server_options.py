"""Turn the arguments for servers into options: headers, and what drivers of schemes take.

Option values are often secrets, so no message here shows one. Names are not checked here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

Parsed = TypeVar("Parsed")

Assignment: TypeAlias = "tuple[tuple[str, ...], Any]"
"""The names that lead to an option, and its value."""


def add_storage(parser: argparse.ArgumentParser) -> None:
    """Add the options for servers: headers and what drivers take; see `storage_options`."""
    group = parser.add_argument_group(
        "servers", "Other users can see a command line: WIDS_STORAGE_OPTIONS keeps secrets out."
    )
    group.add_argument(
        "--header",
        metavar="'NAME: VALUE'",
        action="append",
        default=[],
        type=partial(without_quoting, header),
        help="send this HTTP header; can be repeated",
    )
    group.add_argument(
        "--storage-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=partial(without_quoting, assignment),
        help="pass this to the driver of a scheme; can be repeated; a dot leads into a dict: "
        "client_kwargs.region_name=eu-west-1 (default: the JSON in $WIDS_STORAGE_OPTIONS)",
    )


def storage_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options for servers, from the environment and the arguments of `add_storage`."""
    from wids.storage.transport.schemes import from_environment

    return merged(from_environment(), [*options.storage_option, *options.header])


def without_quoting(parse: Callable[[str], Parsed], text: str) -> Parsed:
    """Parse an argument; after a plain ValueError, argparse would quote it with its secrets."""
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
        inner = result
        for outer, name in pairwise(path):  # what is inside is copied
            found = inner.get(outer, {})
            if not isinstance(found, Mapping):
                raise ValueError(  # noqa: TRY004 - the text is wrong, and not a type of the program
                    f"{'.'.join(path)}: expected {outer} to be a dict of options, "
                    f"found a {type(found).__name__}"
                )
            # Names of headers have no case: the one that was passed last is the only one.
            hidden = name.lower() if outer == "headers" else None
            inner[outer] = inner = {n: each for n, each in found.items() if n.lower() != hidden}
        inner[path[-1]] = value
    return result


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
