"""Split, join, shorten and brace-expand URLs: strings only.

Nothing here opens, stats or fetches anything. A *URL* is what stands in a spec: a path of this
machine, ``file:…``, ``scheme://…``, or ``pipe:COMMAND``. Everything that has neither ``://`` nor
one of the two prefixes is a path, so that ``a:b.tar``, ``50%.tar`` and ``C#/0.tar`` are paths too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from urllib.parse import quote, unquote

from braceexpand import braceexpand

from wids.errors import SpecError

_PLAIN = re.compile(r"(?:\w[\w.-]*/)*\w[\w.-]*")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def scheme(url: str) -> str:
    """Give the scheme in lower case: ``""`` for a path, ``"file"``, ``"pipe"``, ``"https"``, …."""
    for opaque in ("file", "pipe"):
        if url[: len(opaque) + 1].lower() == opaque + ":":
            return opaque
    match = _SCHEME.match(url)
    return match[1].lower() if match else ""


def is_local(url: str) -> bool:
    """Tell whether the URL names a file of this machine."""
    return scheme(url) in ("", "file")


def local_path(url: str) -> str:
    """Give the path of a local URL: ``~`` expanded, ``file:`` taken off and percent-decoded."""
    if scheme(url) != "file":
        return os.path.expanduser(url)
    rest = url[len("file:") :]
    if rest.startswith("//"):
        host, slash, rest = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise SpecError(f"{url}: expected a file of this machine, found the host {host!r}")
        rest = slash + rest
    return os.path.expanduser(unquote(rest))


def path_of(url: str) -> str:
    """Give the path part: without query for remote URLs, all of it for local ones."""
    kind = scheme(url)
    if kind == "pipe":
        return ""
    return local_path(url) if kind in ("", "file") else _split(url)[1]


def parent(url: str) -> str:
    """Give the folder that relative references in the document at ``url`` start from.

    The query stays: a signature that opens the document opens its neighbours too.
    """
    if is_local(url):
        return os.path.dirname(local_path(url))
    origin, path, query = _split(url)
    return f"{origin}{path.rpartition('/')[0]}/{query}"


def _split(url: str) -> tuple[str, str, str]:
    """Split a remote URL into scheme and host, path, and query with its mark; for any text."""
    stem, mark, query = url.partition("?")
    cut = stem.find("/", stem.find("://") + len("://"))
    origin, path = (stem, "") if cut < 0 else (stem[:cut], stem[cut:])
    return origin, path, mark + query


def join(base: str, reference: str) -> str:
    """Resolve a reference against a folder; see `joiner`."""
    return joiner(base)(reference)


def joiner(base: str) -> Callable[[str], str]:
    """Give the function that resolves references against a folder.

    Absolute references (another URL, ``pipe:``, an absolute path beside a local base) come back
    unchanged. A reference without a query takes the query of a remote base. Local results are
    absolute. One function for many references, since a dataset has up to 100,000 of them.
    """
    kind = scheme(base)
    if kind == "pipe":
        raise SpecError(f"{redact(base)}: expected a folder as base, found a pipe")
    if kind in ("", "file"):
        folder = os.path.abspath(local_path(base))

        def from_local(reference: str) -> str:
            if _PLAIN.fullmatch(reference):
                return folder + os.sep + reference
            if scheme(reference) not in ("", "file"):
                return reference
            return os.path.normpath(os.path.join(folder, local_path(reference)))

        return from_local

    origin, path, query = _split(base)
    folder = path.rstrip("/")

    def from_remote(reference: str) -> str:
        if _PLAIN.fullmatch(reference):
            return f"{origin}{folder}/{reference}{query}"
        if scheme(reference):
            return reference
        if reference.startswith("//"):
            return f"{kind}:{reference}"
        path, own_mark, own_query = reference.partition("?")
        path = path if path.startswith("/") else f"{folder}/{path}"
        return origin + _without_dots(path) + (own_mark + own_query or query)

    return from_remote


def _without_dots(path: str) -> str:
    """Resolve ``.`` and ``..``; empty parts stay, since ``a//b`` is a name of its own on S3."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[max(1, len(parts) - 1) :]
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def is_within(path: str, folder: str) -> bool:
    """Tell whether a local path lies in a local folder, as far as the two strings can say."""
    path, folder = os.path.abspath(path), os.path.abspath(folder)
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def relative(url: str, folder: str) -> str:
    """Give a local URL relative to a local folder where it lies in it, else unchanged."""
    if not (is_local(url) and is_within(local_path(url), folder)):
        return url
    name = os.path.relpath(local_path(url), folder)
    # What would be read back as something else is marked as the path that it is.
    return "./" + name if scheme(name) or name.startswith("~") else name


def expand(pattern: str) -> list[str]:
    """Expand ``{000..146}`` and ``{a,b}`` as a shell does; other braces stay as they are."""
    try:
        return list(braceexpand(pattern, escape=False))
    except ValueError as error:
        raise SpecError(
            f"{redact(pattern)}: the braces are not balanced; write {{000..146}} or {{a,b}}, "
            "or pass the names as a list of dicts"
        ) from error


def origin(url: str) -> str:
    """Give scheme and server of a remote URL, in lower case: what a secret may be sent to."""
    kind = scheme(url)
    if kind in ("", "file", "pipe"):
        return ""
    return f"{kind}://{authority(url).rpartition('@')[2].lower()}"


def authority(url: str) -> str:
    """Give what stands between ``://`` and the path of a remote URL: user, server and port."""
    return _split(url)[0].partition("://")[2]


def is_below(url: str, prefix: str) -> bool:
    """Tell whether a remote URL is of a scheme (``s3://``), or of a server and below a path."""
    if prefix.endswith("://"):
        return scheme(url) == scheme(prefix)
    path, top = (_without_dots(unquote(path_of(u))).rstrip("/") for u in (url, prefix))
    return origin(url) == origin(prefix) and f"{path}/".startswith(f"{top}/")


def quoted(path: str) -> str:
    """Encode what may not stand in the path of a URL."""
    return quote(path)


def unquoted(text: str) -> str:
    """Decode ``%20`` and the like."""
    return unquote(text)


def rewrite(url: str, rules: str) -> str:
    """Apply rules ``regex=replacement;…`` to a URL, one after the other.

    A command that a rule makes of a URL may have nothing in it from the URL that a shell could take
    for anything but a name, since the URL may be somebody else's.
    """
    rewritten = url
    for rule in rules.split(";"):
        pattern, equals, replacement = rule.partition("=")
        if not rule.strip():
            continue
        if not equals:
            raise SpecError(f"WDS_REWRITE: expected regex=replacement, found {rule!r}")
        try:
            rewritten = re.sub(pattern, replacement, rewritten)
        except (re.error, IndexError) as error:
            raise SpecError(f"WDS_REWRITE: {rule!r} is no rule: {error}") from error
    if is_local(rewritten) and not is_local(url) and ".." in re.split(r"[/\\\\]", unquote(url)):
        raise SpecError(
            f"{redact(url)}: expected a URL without .., since WDS_REWRITE makes a path of it; it "
            "could lead anywhere"
        )
    if scheme(rewritten) == "pipe" and scheme(url) != "pipe" and not _HARMLESS.fullmatch(url):
        raise SpecError(
            f"{redact(url)}: expected a URL of plain characters, since WDS_REWRITE makes a command "
            "of it; found others, which a shell could take for commands"
        )
    return rewritten


_HARMLESS = re.compile(r"[\w./:@%+=,~-]+", re.ASCII)


def redact(url: str) -> str:
    """Give the URL for a message: without user, password, query or arguments of a command."""
    kind = scheme(url)
    if kind in ("", "file"):
        return url
    if kind == "pipe":
        words = url[len("pipe:") :].split(maxsplit=1)
        # Not TOKEN=… before the command, either.
        first = words[0] if words and re.fullmatch(r"[\w./-]+", words[0]) else "…"
        return f"pipe:{first}{' …' if len(words) > 1 and first != '…' else ''}"
    origin, path, query = _split(url)
    host = origin.partition("://")[2].rpartition("@")[2]
    return f"{kind}://{host}{path}{'?…' if query else ''}"
