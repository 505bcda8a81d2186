"""Which tars are scanned for their indexes, instead of finding one that was stored."""

from __future__ import annotations

from typing import Any

import pytest

from wids.shards import copied_shards, opening
from wids.shards.tars.index import index_tar


def log_scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the path of each tar is added that is scanned from now on."""
    scanned: list[str] = []

    def scan(data: Any, key_split: Any, path: str, **options: Any) -> Any:
        scanned.append(path)
        return index_tar(data, key_split, path, **options)

    for module in (opening, copied_shards):
        monkeypatch.setattr(module, "index_tar", scan)
    return scanned
