"""Shards on a server of this machine, and what tests of fetching ahead do with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conftest import sample_members, write_tar
from loopback import Server

NUM_SHARDS, LENGTH = 8, 25
NUM_SAMPLES = NUM_SHARDS * LENGTH


def serve_shards(folder: Path, server: Server, prefix: str = "") -> list[dict[str, Any]]:
    """Return eight shards of 25 samples, 51,200 bytes each, on a server."""
    found = []
    for number in range(NUM_SHARDS):
        members = sample_members(number * LENGTH, (number + 1) * LENGTH)
        body = write_tar(folder / f"{prefix}{number}.tar", members).read_bytes()
        url = server.page(f"/{prefix}{number}.tar", body)
        found.append({"url": url, "nsamples": LENGTH, "filesize": len(body)})
    return found


def identity(samples: list[Any]) -> list[Any]:
    """Return a batch as it is."""
    return samples
