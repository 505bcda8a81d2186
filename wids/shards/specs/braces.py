"""Expand a brace pattern to names, up to a limit.

The names are counted before they are made: ``{0..9999999999}``, or thirty pairs ``{a,b}`` in a row,
are a few bytes of text and more names than fit in memory.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from wids.errors import SpecError
from wids.storage.transport import urls

MAX_NAMES: Final = 10_000_000
"""Most names of one pattern; the largest public datasets have about a hundredth as many shards."""
MAX_NAMES_NBYTES: Final = 1 << 30
"""Most characters of all the names of one pattern."""
MAX_BRACES_DEPTH: Final = 16
"""Most levels of nested braces, so that neither counting nor expanding exhausts the stack."""

_RANGE: Final = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
_LETTERS: Final = re.compile(r"[A-Za-z]\.\.[A-Za-z](?:\.\.-?\d+)?")


def expand(pattern: str) -> list[str]:
    """Expand ``{000..146}`` and ``{a,b}`` as a shell does; other braces stay as they are.

    Raises:
        SpecError: The braces are unbalanced, or stand for too many names.
    """
    if "{" not in pattern and "}" not in pattern:  # called for each of up to 100,000 names
        return [pattern]
    try:
        _check(_size_of_pattern(pattern, 0), pattern)
        from braceexpand import braceexpand  # most datasets have no pattern

        # Here a backslash is an ordinary character, not an escape as in a shell.
        return list(braceexpand(pattern, escape=False))
    except ValueError as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(
            f"{_shown(pattern)}: the braces are not balanced; write {{000..146}} or {{a,b}}, "
            "or pass the names as a list of dicts"
        ) from error


class Size(NamedTuple):
    """At most how many names a pattern stands for, and how many characters they have in total."""

    num_names: int
    nbytes: int


def _size_of_pattern(pattern: str, depth: int) -> Size:
    """Return the size of the product of texts and braces, parsed as `braceexpand` parses them."""
    sizes, start, level = [], 0, 0
    for position, character in enumerate(pattern):
        if character == "{":
            if level == 0:
                sizes.append(Size(1, position - start))
                start = position
            level += 1
        elif character == "}":
            level -= 1
            if level == 0:
                sizes.append(_size_of_braces(pattern[start + 1 : position], depth + 1))
                start = position + 1
    sizes.append(Size(1, len(pattern) - start))
    num_names = math.prod(size.num_names for size in sizes)
    return Size(num_names, sum(size.nbytes * (num_names // size.num_names) for size in sizes))


def _size_of_braces(text: str, depth: int) -> Size:
    """Return the size of the text between two braces: a range, a list, or a part of a name."""
    if depth > MAX_BRACES_DEPTH:
        raise SpecError(
            f"{{{_shown(text)}: expected at most {MAX_BRACES_DEPTH} braces inside one another, "
            "found more"
        )
    match = _RANGE.fullmatch(text)
    if match is not None:
        first, last, step = int(match[1]), int(match[2]), int(match[3] or 1) or 1
        num_names = abs(last - first) // step + 1
        return Size(num_names, num_names * max(len(match[1]), len(match[2])))
    if _LETTERS.fullmatch(text):
        return Size(52, 52)  # at most
    sizes, start, level = [], 0, 0
    for position, character in enumerate(text):
        level += (character == "{") - (character == "}")
        if character == "," and level == 0:
            sizes.append(_size_of_pattern(text[start:position], depth))
            start = position + 1
    sizes.append(_size_of_pattern(text[start:], depth))
    if len(sizes) == 1:  # `{local}`, with its braces
        return Size(sizes[0].num_names, sizes[0].nbytes + 2 * sizes[0].num_names)
    return Size(sum(size.num_names for size in sizes), sum(size.nbytes for size in sizes))


def _check(size: Size, pattern: str) -> None:
    if size.num_names > MAX_NAMES or size.nbytes > MAX_NAMES_NBYTES:
        raise SpecError(
            f"{_shown(pattern)}: expected a pattern of at most {MAX_NAMES} names and "
            f"{MAX_NAMES_NBYTES} characters, found {_number(size.num_names)} names and "
            f"{_number(size.nbytes)} characters"
        )


def _number(value: int) -> str:
    # Python refuses to print thousands of digits.
    return str(value) if value < 10**18 else "more than 10**18"


def _shown(pattern: str) -> str:
    return f"{urls.redact(pattern):.200}"
