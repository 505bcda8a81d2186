"""Rewrite the URL in a spec to the one to use on this machine, by two environment variables.

``WDS_REWRITE`` holds rules ``regex=replacement;…``; ``AIS_ENDPOINT`` is the address of an AIStore
cluster, for ``ais:`` URLs and for the schemes listed in ``USE_AIS_FOR``.
"""

from __future__ import annotations

import os
import re
from typing import Final

from wids.errors import SpecError
from wids.storage.transport import urls

# A shell takes each of these characters literally.
_HARMLESS: Final = re.compile(r"[\w./:@%+=,~-]+", re.ASCII)

_AIS_PROVIDERS: Final = {"gcs": "gs", "aws": "s3", "azure": "az"}
"""AIStore's names for schemes, where they differ, in http://host:port/provider/bucket/object."""


def rewritten(url: str) -> str:
    """Return the URL to open in place of ``url``, as ``WDS_REWRITE`` and ``AIS_ENDPOINT`` say.

    Raises:
        SpecError: A rule is malformed, or would turn parts of the URL into shell commands or lead
            out of a folder.
    """
    rules = os.environ.get("WDS_REWRITE")
    if rules:
        url = _by_rules(url, rules)
    endpoint = os.environ.get("AIS_ENDPOINT")
    return _by_aistore(url, endpoint) if endpoint else url


def _by_aistore(url: str, endpoint: str) -> str:
    scheme = urls.scheme(url)
    if scheme != "ais" and scheme not in os.environ.get("USE_AIS_FOR", "").split(":"):
        return url
    provider = _AIS_PROVIDERS.get(scheme, scheme)
    return f"{endpoint.rstrip('/')}/{provider}/{urls.quoted(url.partition('://')[2])}"


def _by_rules(url: str, rules: str) -> str:
    """Apply rules ``regex=replacement;…`` to a URL, one after the other."""
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
    shown = urls.without_secrets(rule)
    return SpecError(f"WDS_REWRITE: expected regex=replacement, found {shown!r}{reason}")


def _check_rewriting(url: str, result: str) -> None:
    """Refuse to let a URL, which a stranger may have written, run commands or leave a folder."""
    if urls.is_local(result) and not urls.is_local(url) and ".." in _components(url):
        raise SpecError(
            f"{urls.redact(url)}: expected a URL without .., because WDS_REWRITE turns it into a "
            "path, which could lead anywhere"
        )
    is_new_command = urls.scheme(result) == "pipe" and urls.scheme(url) != "pipe"
    if is_new_command and not _HARMLESS.fullmatch(url):
        raise SpecError(
            f"{urls.redact(url)}: expected a URL of plain characters, because WDS_REWRITE turns it "
            "into a command; found characters that a shell may interpret"
        )


def _components(url: str) -> list[str]:
    # Decoded first, because the path may be decoded later: `%2e%2e` is `..` too (SEC-11).
    return re.split(r"[/\\]", urls.unquoted(url))
