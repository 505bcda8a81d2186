"""Split, resolve, compare, redact and rewrite URLs as strings; no file is opened or fetched.

A *URL* is any name of a file in a spec: a local path, ``file:…``, ``scheme://…`` or
``pipe:COMMAND``. Text without ``://`` and without one of the prefixes ``file:`` and ``pipe:`` is a
path, so ``a:b.tar``, ``50%.tar`` and ``C#/0.tar`` are paths too.

``WDS_REWRITE`` holds rules ``regex=replacement;…``; ``AIS_ENDPOINT`` is the address of an AIStore
cluster, for ``ais:`` URLs and for the schemes listed in ``USE_AIS_FOR``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache, partial, wraps
from typing import Final, TypeVar
from urllib.parse import quote, unquote

from wids.errors import (
    MIN_SECRET,
    FetchError,
    SpecError,
    escaped_controls,
    keep_secret,
    without_quoted_secrets,
)

_T = TypeVar("_T")

KINDS: Final = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure",
    "abfss": "azure",
}  # fmt: skip
"""The kind of object store of each scheme; also the name of the extra that reads it."""

# Values that stand in messages anyway, such as `original` or `604800`.
_PLAIN_VALUE: Final = re.compile(r"[a-z]+|[0-9]{1,11}")

# Names without `..`, schemes, `~` or queries can be joined to a folder as they are.
_PLAIN = re.compile(r"(?:\w[\w.-]*/)*\w[\w.-]*")
# Also that of a chain of fsspec, `simplecache::https://…`, which is not a path (SEC-10).
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)(?:::[A-Za-z][A-Za-z0-9+.:-]*)?://")
# To the last `@`: a password may contain one, and its rest must not be shown (SEC-4).
_USER = re.compile(r"://[^/]*@")


def _kept(function: Callable[[str], _T]) -> Callable[[str], _T]:
    """Cache a function of URLs, since each sample asks the same of few; no secrets (SEC-61)."""
    kept = lru_cache(maxsize=4096)(function)

    @wraps(function)
    def find(url: str) -> _T:
        return function(url) if "?" in url or url.startswith("pipe:") else kept(url)

    return find


@_kept
def scheme(url: str) -> str:
    """Return the scheme in lower case: ``"https"``, ``"file"``, ``"pipe"``; ``""`` for a path."""
    # These two need no `//`; any other `word:` is a legal beginning of a file name.
    for opaque in ("file", "pipe"):
        if url[: len(opaque) + 1].lower() == opaque + ":":
            return opaque
    match = _SCHEME.match(url)
    return match[1].lower() if match else ""


def is_local(url: str) -> bool:
    """Return whether the URL names a local file."""
    return scheme(url) in ("", "file")


def local_path(url: str) -> str:
    """Return the path of a local URL: ``~`` expanded, ``file:`` removed and percent-decoded.

    Raises:
        SpecError: A ``file:`` URL names another host.
    """
    if scheme(url) != "file":
        return os.path.expanduser(url)
    rest = url[len("file:") :]
    if rest.startswith("//"):
        host, slash, rest = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise SpecError(f"{redact(url)}: expected a local file, found the host {host!r}")
        rest = slash + rest
    rest = unquote(rest)
    if os.path.splitdrive(rest[1:])[0]:  # on Windows, `file:///C:/data`
        rest = rest[1:]
    return os.path.expanduser(rest)


def with_slashes(path: str) -> str:
    """Return a local path with slashes between its parts, also on Windows, as URLs have them."""
    return path.replace(os.sep, "/")


def path_of(url: str) -> str:
    """Return the path part: without the query for a remote URL, all of it for a local one."""
    kind = scheme(url)
    if kind == "pipe":
        return ""
    return local_path(url) if kind in ("", "file") else split(url)[1]


def parent(url: str) -> str:
    """Return the folder that relative references in the document at ``url`` start from.

    The query stays, because a signature that opens the document opens its neighbours too.
    """
    if is_local(url):
        return os.path.dirname(local_path(url))
    origin, path, query = split(url)
    return f"{origin}{path.rpartition('/')[0]}/{query}"


def split(url: str) -> tuple[str, str, str]:
    """Split a remote URL into scheme and host, path, and query with its ``?``.

    Any text can be split: `urllib.parse` raises errors for some that servers accept.
    """
    stem, mark, query = url.partition("?")
    cut = stem.find("/", stem.find("://") + len("://"))
    origin, path = (stem, "") if cut < 0 else (stem[:cut], stem[cut:])
    return origin, path, mark + query


def join(base: str, reference: str) -> str:
    """Resolve a reference against a folder; see `joiner`."""
    return joiner(base)(reference)


def joiner(base: str, check: Callable[[str, str], object] | None = None) -> Callable[[str], str]:
    """Return the function that resolves references against a folder.

    The function returns absolute references (another URL, ``pipe:``, an absolute path next to a
    local base) unchanged. A reference without a query takes the query of a remote base. Local
    results are absolute paths. The base is parsed only once, since a dataset has up to 100,000
    references.

    Args:
        base: Path or URL of the folder.
        check: Called with each result and its reference, except for names of words, dots and
            slashes, which are always inside the folder.

    Raises:
        SpecError: The base is a command.
    """
    kind = scheme(base)
    if kind == "pipe":
        raise SpecError(f"{redact(base)}: expected a folder as base, found a pipe")
    if kind in ("", "file"):
        folder = os.path.abspath(local_path(base))
        prefix, suffix = with_slashes(folder).rstrip("/") + "/", ""

        def resolved(reference: str) -> str:
            if scheme(reference) not in ("", "file"):
                return reference
            return with_slashes(os.path.normpath(os.path.join(folder, local_path(reference))))

    else:
        origin, path, suffix = split(base)
        folder = path.rstrip("/")
        prefix = f"{origin}{folder}/"

        def resolved(reference: str) -> str:
            if scheme(reference):
                return reference
            if reference.startswith("//"):
                return f"{kind}:{reference}"
            path, own_mark, own_query = reference.partition("?")
            path = path if path.startswith("/") else f"{folder}/{path}"
            return origin + without_dots(path) + (own_mark + own_query or suffix)

    is_plain = _PLAIN.fullmatch

    def join(reference: str) -> str:
        if is_plain(reference):
            return prefix + reference + suffix
        url = resolved(reference)
        if check is not None:
            check(url, reference)
        return url

    return join


def is_plain(reference: str) -> bool:
    """Whether a reference is a name of words, dots and slashes, always inside its folder."""
    return _PLAIN.fullmatch(reference) is not None


def without_dots(path: str) -> str:
    """Resolve ``.`` and ``..``, and preserve empty parts: ``a//b`` and ``a/b`` differ on S3."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            # The first part is the empty one before the leading slash; `..` does not lead above it
            # (RFC 3986).
            del parts[max(1, len(parts) - 1) :]
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def is_within(path: str, folder: str) -> bool:
    """Return whether a local path is inside a local folder, judged by the two strings alone."""
    path, folder = os.path.abspath(path), os.path.abspath(folder)
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def relative(url: str, folder: str) -> str:
    """Return a URL relative to ``folder`` if it is inside; otherwise return it unchanged."""
    if not is_local(folder):
        prefix = folder.rstrip("/") + "/"
        name = url[len(prefix) :] if url.startswith(prefix) else ""
        # A query, `//` or `..` would be read back as something else.
        return name if _PLAIN.fullmatch(name) and "?" not in folder else url
    if not (is_local(url) and is_within(local_path(url), folder)):
        return url
    name = with_slashes(os.path.relpath(local_path(url), folder))
    # Without the "./" the name would be read back as a URL, a command or a home folder.
    return "./" + name if scheme(name) or name.startswith("~") else name


@_kept
def origin(url: str) -> str:
    """Return scheme and server of a remote URL in lower case: the unit that secrets belong to."""
    kind = scheme(url)
    if kind in ("", "file", "pipe"):
        return ""
    return f"{kind}://{_authority(url).rpartition('@')[2].lower()}"


def _authority(url: str) -> str:
    """Return the part of a remote URL between ``://`` and the path: user, server and port."""
    return split(url)[0].partition("://")[2]


@_kept
def check_server(url: str) -> None:
    """Raise `FetchError` for a remote URL whose server different parsers read differently.

    For some, ``https://a#@b/`` names the server ``a``, for others ``b``: a token for one of them
    could be sent to the other.
    """
    if re.search(r"[#\\\s]", _authority(url)):
        raise FetchError(
            f"{redact(url)}: expected a server name, found one with a #, a backslash or a space"
        )


def is_below(url: str, prefix: str) -> bool:
    """Return whether a remote URL has the prefix's scheme (``s3://``), or its server and path.

    Paths are compared by components after decoding: ``https://h/ab`` is not below ``https://h/a``.
    """
    if prefix.endswith("://"):
        return scheme(url) == scheme(prefix)
    path, top = (without_dots(unquote(path_of(u))).rstrip("/") for u in (url, prefix))
    return origin(url) == origin(prefix) and f"{path}/".startswith(f"{top}/")


def unquoted(text: str) -> str:
    """Decode ``%20`` and other percent-encoded characters."""
    return unquote(text)


def redact(url: str) -> str:
    """Return a URL for a message: printable, without user, password, query and arguments.

    All messages and commands show URLs, and texts that may be URLs, in this form (SEC-4). What is
    left out here is removed from everything that is shown later, too.
    """
    keep_secrets(url)
    return escaped_controls(_without_secrets(url))


def has_secrets(url: str) -> bool:
    """Return whether messages show only a part of a URL: it has a user, a query or arguments."""
    return _without_secrets(url) != url


def _without_secrets(url: str) -> str:
    kind = scheme(url)
    if kind == "":
        return without_quoted_secrets(url)  # a URL may have been joined to a folder
    if kind == "pipe":
        words = url[len("pipe:") :].split(maxsplit=1)
        # A shell accepts TOKEN=… in front of the command, so only a plain word is shown.
        first = words[0] if words and re.fullmatch(r"[\w./-]+", words[0]) else "…"
        return f"pipe:{first}{' …' if len(words) > 1 and first != '…' else ''}"
    stem, mark, _ = url.partition("?")
    return _USER.sub("://", stem) + (mark and "?…")


def without_secrets(text: str, *known: str) -> str:
    """Return text of another library without the secrets of URLs.

    Args:
        text: The text, such as the message of a driver's error.
        known: URLs that the library had; it may quote a part of them. The secrets of all other URLs
            in the text, such as those that redirects led to, are left out too.
    """
    for url in known:
        text = text.replace(url, redact(url))
    return without_quoted_secrets(text)


def unsigned(url: str, location: str) -> str:
    """Return where a redirect leads, without the signature of what was requested, if it has that.

    Args:
        url: Where it leads, on another server.
        location: What was requested.
    """
    (origin, path, query), ours = split(url), split(location)[2][1:].split("&")
    pairs = query[1:].split("&")
    if not any(pair.lower().startswith("x-amz-signature=") and pair in ours for pair in pairs):
        return url
    left = "&".join(p for p in pairs if not p.lower().startswith("x-amz-"))
    return origin + path + (left and f"?{left}")


def keep_secrets(url: str, named: str | None = None) -> None:
    """Note a URL before it is requested, so that nothing shown repeats its secrets (SEC-38).

    Args:
        url: The URL.
        named: The URL that messages name in its place, if a server has led to this one; then parts
            of the path are secrets too.
    """
    if "?" in url or "@" in url or named is not None:
        keep_secret(url, lambda: _secrets(url, named))


def _secrets(url: str, named: str | None) -> set[str]:
    """Return the parts of a remote URL that nothing may show: as is, decoded and encoded."""
    if scheme(url) in ("", "file", "pipe"):
        return set()
    origin, path, query = split(url)
    user, query = origin.partition("://")[2].rpartition("@")[0], query[1:]
    pairs = query.split("&")
    values = [*(pair.partition("=")[2] for pair in pairs), *(path.split("/") if named else ())]
    shown = _without_secrets(named or url)
    parts = {user, query, user.partition(":")[2], *pairs}
    hidden = (value for value in values if not (value in shown or unquote(value) in shown))
    parts |= {value for value in hidden if not _PLAIN_VALUE.fullmatch(value)}
    # With a mark for short ones. Even shorter ones would be found in other words and numbers.
    parts.update(text for text in (f"{user}@", f"?{query}") if len(text) == MIN_SECRET)
    long = {part for part in parts if len(part) >= MIN_SECRET}
    forms = (unquote, quote, partial(quote, safe=""), lambda part: part.replace("&", "&amp;"))
    found = long.union(form(part) for form in forms for part in long)
    return {part for part in found if len(part) >= MIN_SECRET}


# A shell takes each of these characters literally.
_HARMLESS: Final = re.compile(r"[\w./:@%+=,~-]+", re.ASCII)

_AIS_PROVIDERS: Final = {"gcs": "gs", "aws": "s3", "azure": "az"}
"""AIStore's names for schemes, where they differ, in http://host:port/provider/bucket/object."""


def rewriter() -> Callable[[str], str]:
    """Return what `rewritten` does, by the environment of now; for many URLs."""
    rules, endpoint = os.environ.get("WDS_REWRITE"), os.environ.get("AIS_ENDPOINT")
    if not rules and not endpoint:
        return str

    def rewrite(url: str) -> str:
        url = _by_rules(url, rules) if rules else url
        return _by_aistore(url, endpoint) if endpoint else url

    return rewrite


def rewritten(url: str) -> str:
    """Return the URL to open in place of ``url``, as ``WDS_REWRITE`` and ``AIS_ENDPOINT`` say.

    Raises:
        SpecError: A rule is malformed, or would turn parts of the URL into shell commands or lead
            out of a folder.
    """
    return rewriter()(url)


def local_place(url: str, rewrite: Callable[[str], str] = rewritten) -> str | None:
    """Return the path of the local file that is opened in place of ``url``; None for others.

    Args:
        url: The URL.
        rewrite: `rewritten`, or what `rewriter` returned.
    """
    place = rewrite(url)
    return local_path(place) if is_local(place) else None


def _by_aistore(url: str, endpoint: str) -> str:
    name = scheme(url)
    if name != "ais" and name not in os.environ.get("USE_AIS_FOR", "").split(":"):
        return url
    provider = _AIS_PROVIDERS.get(name, name)
    return f"{endpoint.rstrip('/')}/{provider}/{quote(url.partition('://')[2])}"


def _by_rules(url: str, rules: str) -> str:
    """Apply rules ``regex=replacement;…`` to a URL, in sequence."""
    result = url
    for rule in rules.split(";"):
        pattern, equals, replacement = rule.partition("=")
        if not rule.strip():
            continue
        if not equals:
            raise _rule_error(rule)
        try:
            result = re.sub(pattern, replacement, result)
        except (re.error, IndexError) as error:
            raise _rule_error(rule, f": {error}") from error
    _check_rewriting(url, result)
    return result


def _rule_error(rule: str, reason: str = "") -> SpecError:
    shown = without_secrets(rule)
    return SpecError(f"WDS_REWRITE: expected regex=replacement, found {shown!r}{reason}")


def _check_rewriting(url: str, result: str) -> None:
    """Refuse to let a URL, which a stranger may have written, run commands or leave a folder."""
    # Decoded first, because the path may be decoded later: `%2e%2e` is `..` too (SEC-11).
    parts = re.split(r"[/\\]", unquote(url))
    if is_local(result) and not is_local(url) and ".." in parts:
        raise SpecError(
            f"{redact(url)}: expected a URL without .., because WDS_REWRITE turns it into a "
            "path, which could lead anywhere"
        )
    is_new_command = scheme(result) == "pipe" and scheme(url) != "pipe"
    if is_new_command and not _HARMLESS.fullmatch(url):
        raise SpecError(
            f"{redact(url)}: expected a URL of plain characters, because WDS_REWRITE turns it "
            "into a command; found characters that a shell may interpret"
        )
