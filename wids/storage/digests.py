"""Compute the MD5 and SHA-256 digests of local files."""

from __future__ import annotations

import hashlib


def file_digest(path: str, name: str) -> str:
    """Return the digest ``"md5"`` or ``"sha256"`` of a local file, in hexadecimal digits."""
    # Builds of OpenSSL in FIPS mode refuse MD5 otherwise.
    digest = hashlib.new(name, usedforsecurity=False)
    # hashlib.file_digest needs Python 3.11.
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
