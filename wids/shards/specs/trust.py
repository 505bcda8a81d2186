"""Decide by its origin what the references of a document start from, and what they may name.

The rules are in specs/shard-spec.md (SPEC-6, SPEC-11 to SPEC-13).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from wids.errors import SpecError
from wids.shards.specs.entries import reference
from wids.storage.transport import urls

MAX_DEPTH: Final = 8
"""Most documents in a chain of references, and most levels of nested inline datasets."""


@dataclass(frozen=True)
class Context:
    """What a document's references start from, and what the document may name.

    Attributes:
        name: The document in messages.
        base: The folder that its references start from.
        is_based: Whether the base is the caller's, which the document cannot change.
        is_trusted: Whether the document is a local file, and so may name local files.
        mirror: The caller's local folder in which any document may name files.
        depth: Number of inline datasets around this one.
        chain: URLs of the documents that led here, with its own last.
        allow_pipe: Whether it may name commands.
    """

    name: str
    base: str
    is_based: bool = False
    is_trusted: bool = True
    mirror: str | None = None
    depth: int = 0
    chain: tuple[str, ...] = ()
    allow_pipe: bool = False

    @classmethod
    def at(cls, name: str, folder: str, base: str | None, *, allow_pipe: bool) -> Context:
        """Return the context of a document in ``folder``, or at the caller's base if given."""
        if base is None:
            return cls(name, folder, allow_pipe=allow_pipe)
        base = urls.join(os.getcwd(), base)
        mirror = urls.local_path(base) if urls.is_local(base) else None
        return cls(name, base, is_based=True, mirror=mirror, allow_pipe=allow_pipe)

    def of(self, document: Mapping[str, Any]) -> Context:
        """Return the same context with the base that the document states.

        Raises:
            SpecError: The document must not name the folder.
        """
        stated = reference(document, "base", self.name)
        stated = stated or reference(document, "base_path", self.name)
        if self.is_based or not stated:
            return self
        base = urls.join(self.base, stated)
        self._check_local(urls.join(base, "x"), stated)
        return replace(self, base=base)

    def inside(self, number: int) -> Context:
        """Return the context of a dataset inside this one."""
        name = f"{self.name}: datasets[{number}]"
        if self.depth >= MAX_DEPTH:
            raise SpecError(
                f"{name}: expected at most {MAX_DEPTH} datasets inside one another, found more"
            )
        # The caller's base replaces that of the outermost document only (SPEC-6).
        return replace(self, name=name, is_based=False, depth=self.depth + 1)

    @cached_property
    def join(self) -> Callable[[str], str]:
        """Resolves a reference to an absolute path or URL, or raises `SpecError`."""
        return urls.joiner(self.base, self._check)

    def _check(self, url: str, name: str) -> None:
        """Reject what a document may not name (SPEC-12, SPEC-13)."""
        if urls.scheme(url) == "pipe" and not self.allow_pipe:
            raise SpecError(
                f"{self.name}: names the command {urls.redact(url)}; commands in a document "
                "run only with allow_pipe=True"
            )
        self._check_local(url, name)

    def _check_local(self, url: str, name: str) -> None:
        """Reject a local file in a remote document, unless it is in the caller's mirror."""
        if self.is_trusted or not urls.is_local(url):
            return
        if self.mirror is None or not urls.is_within(urls.local_path(url), self.mirror):
            raise SpecError(
                f"{self.name}: names {urls.redact(name)!r}, a local file; a remote document must "
                "not do that: if you trust it, download it first or pass `base`"
            )

    def __getstate__(self) -> dict[str, Any]:  # without the function
        return {key: value for key, value in vars(self).items() if key != "join"}
