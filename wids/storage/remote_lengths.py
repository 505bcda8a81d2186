"""Ask servers for the lengths of files.

If some of the files do not exist, the error also names those that do: a pattern may have a wrong
bound.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TypeAlias

from wids.errors import NotFoundError, local_error
from wids.storage.fetch import Fetcher
from wids.storage.reading_threads import in_threads
from wids.storage.sizes import first_of
from wids.storage.transport import urls

Answer: TypeAlias = "int | NotFoundError | None"
"""The length of a file; None if it is not known; or the error if there is no such file."""


def known_lengths(
    fetcher: Fetcher, stated: Mapping[str, int | None], *, is_tolerant: bool = False
) -> dict[str, int | None]:
    """Return the lengths of files by their URLs, after asking for those that are not stated.

    Args:
        fetcher: Asks the servers.
        stated: The lengths as far as they are stated.
        is_tolerant: Whether the work continues if files are missing. Such a file has no bytes;
            None stands for one that cannot be asked for.

    Raises:
        NotFoundError: One does not exist; the error names those that do.
        FetchError: A server cannot be asked.
    """
    unstated = [url for url, nbytes in stated.items() if nbytes is None]
    answers = ask_lengths(fetcher, unstated, is_tolerant=is_tolerant)
    found = {**stated, **dict(zip(unstated, answers, strict=True))}
    if not is_tolerant:
        check_found(list(found), list(found.values()))
    return {url: 0 if isinstance(a, NotFoundError) else a for url, a in found.items()}


def known_sum(lengths: Iterable[int | None]) -> int | None:
    """Return the sum of lengths; None if one is not known."""
    known = list(lengths)
    return None if None in known else sum(filter(None, known))


def ask_lengths(
    fetcher: Fetcher, names: Sequence[str], *, is_tolerant: bool = False
) -> list[Answer]:
    """Return the length of each file, many of them at a time.

    Args:
        fetcher: Asks the servers.
        names: Paths and URLs.
        is_tolerant: Whether the length of a file that cannot be asked for is None.

    Raises:
        FetchError: One cannot be asked for.
    """

    def ask(url: str) -> Answer:
        try:
            if urls.is_local(url):  # a path has no server to wait for
                return os.path.getsize(urls.local_path(url))
            return fetcher.nbytes(url)
        except NotFoundError as error:
            return error
        except FileNotFoundError as error:
            return NotFoundError(str(local_error(urls.local_path(url), error)))
        except OSError:
            if is_tolerant or urls.is_local(url):  # opening it reports what is wrong
                return None
            raise

    if all(map(urls.is_local, names)):
        return list(map(ask, names))
    return in_threads([partial(ask, name) for name in names], "wids-lengths")


def check_found(names: Sequence[str], answers: Sequence[Answer]) -> None:
    """Raise an error for the files that are missing; it also names those that exist.

    Raises:
        NotFoundError: There is no such file.
    """
    missing = [isinstance(answer, NotFoundError) for answer in answers]
    if not any(missing):
        return
    if len(names) == 1 or all(missing):
        more = f", and {len(names) - 1:,} more do not exist" if len(names) > 1 else ""
        raise NotFoundError(f"{answers[0]}{more}")
    numbers = _numbers(names)
    if numbers is None:
        gone = [urls.redact(name) for name, is_gone in zip(names, missing, strict=True) if is_gone]
        found = f"{len(names) - len(gone):,} of {len(names):,} exist, {first_of(gone)} not"
        raise NotFoundError(f"expected {len(names):,} files: {found}")
    start, texts, end = numbers
    path, mark, _ = end.partition("?")  # a query may be a secret
    pattern = f"{{{texts[0]}..{texts[-1]}}}{path}{mark and '?…'}"
    groups = groupby(zip(missing, texts, strict=True), key=itemgetter(0))
    runs = [[text for _, text in run] for is_gone, run in groups if not is_gone]
    exist = [run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    gone = [text for text, is_gone in zip(texts, missing, strict=True) if is_gone]
    more = f" and {len(gone) - 1:,} more do" if len(gone) > 1 else " does"
    verb = "exists" if len(texts) - len(gone) == 1 else "exist"
    raise NotFoundError(
        f"expected {urls.redact(start)}{pattern}; {first_of(exist)} {verb}, {gone[0]}{more} not"
    )


def _numbers(names: Sequence[str]) -> tuple[str, list[str], str] | None:
    """Return the common start of names, the numbers in which they differ, and their end.

    Return None if they differ in anything but one ascending number.
    """
    split = [re.split("([0-9]+)", name) for name in names]
    if len(set(map(len, split))) > 1:
        return None
    columns = list(zip(*split, strict=True))
    differing = [at for at, column in enumerate(columns) if len(set(column)) > 1]
    if len(differing) != 1 or differing[0] % 2 == 0:  # the others are what is between numbers
        return None
    (at,), texts = differing, list(columns[differing[0]])
    is_ascending = all(int(b) > int(a) for a, b in pairwise(texts))
    return ("".join(split[0][:at]), texts, "".join(split[0][at + 1 :])) if is_ascending else None
