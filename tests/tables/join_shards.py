"""Shards of two sides of a join, and what plain Python makes of them."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from conftest import write_tar

Contents = dict[str, dict[str, bytes]]
"""The fields of samples by key, in order."""


def write_side(folder: Path, prefix: str, keys: list[str], cuts: Iterable[int], field: str) -> Path:
    """Write samples with one field into shards that are cut anywhere; return their folder."""
    edges = [0, *sorted(cuts), len(keys)]
    for number, (start, stop) in enumerate(pairwise(edges)):
        members = [(f"{key}{field}", f"{field} of {key}".encode()) for key in keys[start:stop]]
        write_tar(folder / f"{prefix}-{number}.tar", members)
    return folder


def shards(folder: Path, prefix: str) -> list[str]:
    """Return the paths of the shards of a side."""
    return sorted(str(path) for path in folder.glob(f"{prefix}-*.tar"))


def contents(paths: list[str]) -> Contents:
    """Return the samples of shards, read with the standard library."""
    found: Contents = {}
    for path in paths:
        with tarfile.open(path) as tar:
            for member in tar:
                key, dot, field = member.name.partition(".")
                file = tar.extractfile(member)
                assert file is not None
                found.setdefault(key, {})[dot + field] = file.read()
    return found


def shuffled(items: Iterable[Any], seed: int = 0) -> list[Any]:
    """Return items in another order."""
    found = list(items)
    random.Random(seed).shuffle(found)
    return found


def fields(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample without its labels."""
    return {name: value for name, value in sample.items() if not name.startswith("__")}
