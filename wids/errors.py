"""The errors that wids raises on purpose, and helpers for their messages.

::

    WidsError
    ├── SpecError           (ValueError)         the JSON document, or the `shards` argument
    ├── ShardFormatError    (ValueError)         bytes that are not a complete, plain tar
    ├── MismatchError       (ValueError)         a shard that differs from its spec
    ├── FetchError          (OSError)            a URL or path that could not be read
    │   └── NotFoundError   (FileNotFoundError)  a URL or path that does not exist
    ├── UploadError         (OSError)            a URL that could not be written
    ├── JoinError           (ValueError)         samples that cannot be joined by their keys
    ├── StateError          (ValueError)         a state that does not fit the sampler
    ├── PackError           (ValueError)         files or samples that new shards cannot have
    ├── TableError          (ValueError)         a column that cannot be made, a stale table
    ├── LostTaskError       (RuntimeError)       a task that an executor lost
    └── SampleError         (ValueError)         one sample; names shard, key, field and index
        ├── DecodeError                          a field that is not what its extension says
        └── TransformError                       a transformation of the caller that raised

Every class is also the natural built-in, and can be built from one string. That is how torch
rebuilds an exception of a DataLoader worker in the main process, so its type survives.
"""

from __future__ import annotations

import collections
import os
import re
import sys
import warnings
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

MIN_SECRET: Final = 6
"""Minimum length of a part of a URL that is recognized on its own in other text."""

_MAX_URLS: Final = 128
"""URLs whose secrets are remembered: more than a process requests at a time."""

# By URL, the latest last; a callable until they are needed. Texts of a server may repeat a part of
# what it was asked for.
_secrets: Final[collections.OrderedDict[str, tuple[str, ...] | Callable[[], Iterable[str]]]] = (
    collections.OrderedDict()
)

# All of them by their first characters, longest first; under the URLs that they are of.
_starts: Final[dict[frozenset[str], dict[str, list[str]]]] = {}

_LIBRARIES: Final = tuple(os.path.dirname(file) + os.sep for file in (__file__, os.__file__))
_INSTALLED: Final = re.compile(r"[\\/](site|dist)-packages[\\/]|^<frozen")

Line: TypeAlias = "tuple[str, int]"
"""A file and the number of a line in it."""


def user_line() -> Line | None:
    """Return the line of the program that led here: the innermost one outside of libraries.

    In a forked process it is the line at which the fork began, such as that of the training loop.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, unlike any other way
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_LIBRARIES) and not _INSTALLED.search(path):
            return path, frame.f_lineno
        frame = frame.f_back
    return None


def warn(text: str, line: Line | None = None) -> None:
    """Warn at the line of the program that led here.

    Args:
        text: What is wrong, and what to do.
        line: The line to name in a thread, or in a process that was spawned.
    """
    place = user_line()
    if place is None or (line and place[0].startswith("<")):  # spawned processes begin in <string>
        place = line or ("wids", 1)
    warnings.warn_explicit(text, UserWarning, *place, registry=_warned)


_warned: Final[dict[str | tuple[str, type[Warning], int], int]] = {}


def message_of(error: BaseException) -> str:
    """Return the message of an error without what Python adds to it: quotes, an error number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename or repr('')}: {error.strerror}"
    # str() of a KeyError is the repr() of its message.
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    # A bare name, such as that of a missing key, would explain nothing.
    return text if " " in text else f"an unexpected error: {type(error).__name__} {text!r}"


def keep_secret(url: str, parts: Callable[[], Iterable[str]]) -> None:
    """Have `printable` and `without_quoted_secrets` remove parts of a URL from now on (SEC-4).

    Args:
        url: The URL.
        parts: Returns its parts, of at least `MIN_SECRET` characters.
    """
    _secrets.setdefault(url, parts)
    try:
        _secrets.move_to_end(url)  # one step, so that no other thread finds it gone meanwhile
    except KeyError:  # another thread has removed it as the oldest
        _secrets[url] = parts
    if len(_secrets) > _MAX_URLS:
        for oldest in list(_secrets)[:-_MAX_URLS]:
            _secrets.pop(oldest, None)  # another thread may do the same


def _by_start() -> dict[str, list[str]]:
    """Return all secrets by their first characters."""
    # Without a lock, which a forked process might find taken: each step is one operation.
    secrets = _secrets.copy()
    by_start = _starts.get(frozenset(secrets))
    if by_start is None:
        texts: set[str] = set()
        for url, parts in secrets.items():
            url_secrets = parts if isinstance(parts, tuple) else tuple(parts())
            if url in _secrets:
                _secrets[url] = url_secrets
            texts.update(url_secrets)
        by_start = {}
        for secret in sorted(texts, key=len, reverse=True):
            by_start.setdefault(secret[:MIN_SECRET], []).append(secret)
        _starts.clear()
        _starts[frozenset(secrets)] = by_start
    return by_start


def without_kept_secrets(text: str) -> str:
    """Return text without the secrets that were kept, also where a quotation cut them off."""
    if not _secrets:
        return text
    starts, pieces, num_done, at = _by_start(), [], 0, 0
    while at < len(text):
        for secret in starts.get(text[at : at + MIN_SECRET], ()):
            length = _num_shared(text[at : at + len(secret)], secret)
            # Messages quote the first characters of what was found.
            if length == len(secret) or text[at + length : at + length + 1] in "'\"…":
                pieces += [text[num_done:at], "…"]
                num_done = at + length
                break
        at = max(at + 1, num_done)
    return "".join(pieces) + text[num_done:]


def _num_shared(first: str, second: str) -> int:
    """Return how many characters two texts share at their beginning."""
    at = 0
    while at < len(first) and first[at] == second[at]:
        at += 1
    return at


def printable(text: str) -> str:
    """Return text on one line, with control characters escaped.

    All text that comes from elsewhere passes through here before it is shown. What it repeats of
    the secrets of URLs that were requested or named lately is removed.
    """
    return escaped_controls(without_kept_secrets(text))


def escaped_controls(text: str) -> str:
    """Return text on one line, with control characters escaped, whatever it has."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def without_quoted_secrets(text: str) -> str:
    """Return text without the users, passwords and queries of the URLs that it quotes (SEC-4)."""
    # Word by word, which takes linear time: a server may have written the text. In a normalized
    # path, `://` has only one slash.
    shown = re.sub(r"[^\s'\"]+", _without_secrets, text) if ":/" in text else text
    return without_kept_secrets(shown)


def _without_secrets(word: re.Match[str]) -> str:
    stem, mark, query = word[0].partition("?")
    if ":/" not in stem:
        return word[0]
    return re.sub(r"(\w:/{1,2})[^/]*@", r"\1", stem) + mark + (query and "…")


class WidsError(Exception):
    """Any error that wids raises on purpose.

    Its message is printable: members, specs and servers choose names that a terminal would obey.

    Attributes:
        is_of_shard: Whether a shard as a whole is at fault, and ``on_error`` passes over it.

    Example:
        >>> import wids
        >>> try:
        ...     wids.ShardListDataset("missing.json")
        ... except wids.WidsError as error:  # or FileNotFoundError
        ...     print(type(error).__name__)
        NotFoundError
    """

    is_of_shard: bool = False

    def __init__(self, *args: object) -> None:
        super().__init__(*(self._printable(arg) if isinstance(arg, str) else arg for arg in args))

    def _printable(self, message: str) -> str:
        # torch rebuilds the error of a DataLoader's worker from a text that begins so, and that
        # has the worker's traceback on its other lines.
        if message.startswith(f"Caught {type(self).__name__} in "):
            return "\n".join(map(printable, message.split("\n")))
        return printable(message)


class SpecError(WidsError, ValueError):
    """A JSON spec, or another form of ``shards``, that cannot be understood or trusted."""


class ShardFormatError(WidsError, ValueError):
    """Bytes that are not a complete, plain tar, as every shard has to be."""


class MismatchError(WidsError, ValueError):
    """A shard that differs from its spec."""


class FetchError(WidsError, OSError):
    """A URL or path that could not be read."""


class NotFoundError(FetchError, FileNotFoundError):
    """A URL or path that does not exist."""


class UploadError(WidsError, OSError):
    """A URL that could not be written; what was there before is unchanged."""


class JoinError(WidsError, ValueError):
    """Datasets, tables or files whose samples cannot be joined by their keys."""


class StateError(WidsError, ValueError):
    """A saved state that cannot be restored into this sampler."""


class PackError(WidsError, ValueError):
    """Files, or samples of other shards, that cannot become the samples of new shards."""


RewriteError = PackError
"""The former name of `PackError` for errors of `rewrite`."""


class TableError(WidsError, ValueError):
    """A column that cannot be made of the samples, or a saved table that belongs to others."""


class LostTaskError(WidsError, RuntimeError):
    """A task whose result an executor lost, such as when the worker was killed."""


class SampleError(WidsError, ValueError):
    """A sample that could not be read, decoded or transformed.

    Attributes:
        shard: URL of the shard, or None if it is not known.
        key: Key of the sample, or None if it is not known.
        field: Field with its leading dot, or None if the error is not about one field.
        index: Index in the full dataset, or None if it is not known.

    Example:
        >>> import wids
        >>> with wids.TarWriter("bad.tar") as writer:
        ...     _ = writer.write({"__key__": "000017", "jpg": b"no picture"})
        >>> try:
        ...     wids.ShardListDataset("bad.tar")[0]
        ... except wids.SampleError as error:
        ...     print(type(error).__name__, error.key, error.field, error.index)
        DecodeError 000017 .jpg 0
    """

    def __init__(
        self,
        message: str,
        *,
        shard: str | None = None,
        key: str | None = None,
        field: str | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(message)
        self.shard = shard
        self.key = key
        self.field = field
        self.index = index


class DecodeError(SampleError):
    """A field whose bytes do not match its extension."""


class TransformError(SampleError):
    """A transformation of the caller that raised; the original error is the ``__cause__``."""


def local_error(path: str, error: OSError) -> FetchError:
    """Return the `FetchError` for a local path that could not be opened."""
    name = without_quoted_secrets(path)  # it may be a URL that was taken for a path
    if isinstance(error, FileNotFoundError):
        return NotFoundError(
            f"{name}: no such file (the current folder is {os.getcwd()}); check the path, or `base`"
        )
    found = "a folder" if os.path.isdir(path) else error.strerror or error
    return FetchError(f"{name}: expected a readable file, found: {found}")


def missing_attribute(owner: object, name: str, advice: dict[str, str]) -> AttributeError:
    """Return the error for a missing attribute; ``advice`` has what to use instead of some."""
    message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name in advice:
        message += f"; use {advice[name]}"
    return AttributeError(message, name=name, obj=owner)
