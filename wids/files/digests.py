"""The bytes of a local file → its digest, in hexadecimal digits."""

from __future__ import annotations

import hashlib


def file_digest(path: str, name: str) -> str:
    """Give the digest of a local file, ``"md5"`` or ``"sha256"``, in hexadecimal digits."""
    digest = hashlib.new(name, usedforsecurity=False)
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
