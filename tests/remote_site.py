"""A small dataset on a loopback server, for the tests of remote shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import sample_members, write_tar
from loopback import Server

import wids

LENGTHS = [8, 5, 7]
EXPECTED = [f"text {n}" for n in range(20)]


class Site:
    """Three shards and their spec on a server; a test chooses what is stated of them.

    Attributes:
        folder: The shards as local files.
        shards: Their entries in the spec.
        bodies: Their bytes.
    """

    def __init__(self, folder: Path, server: Server, lengths: list[int] = LENGTHS) -> None:
        self.folder = folder
        self.server = server
        self.shards: list[dict[str, Any]] = []
        self.bodies = []
        folder.mkdir()
        start = 0
        for number, length in enumerate(lengths):
            path = write_tar(folder / f"train-{number}.tar", sample_members(start, start + length))
            body = path.read_bytes()
            server.page(f"/{path.name}", body)
            self.bodies.append(body)
            self.shards.append({"url": path.name, "nsamples": length})
            start += length

    def state(self, **what: Callable[[bytes], Any]) -> None:
        """State something about each shard, computed from its bytes."""
        for shard, body in zip(self.shards, self.bodies, strict=True):
            shard.update({name: compute(body) for name, compute in what.items()})

    def dataset_index(self) -> None:
        """Publish the dataset index."""
        wids.build_spec(
            [str(self.folder / s["url"]) for s in self.shards],
            dataset_index=self.folder / "train.index",
        )
        self.server.page("/train.index", (self.folder / "train.index").read_bytes())

    def spec(self, **more: Any) -> str:
        """Publish the spec; return its URL."""
        document = {"wids_version": 1, "name": "train", "shardlist": self.shards, **more}
        return self.server.page("/train.json", document)

    def asked(self) -> list[str]:
        """Return the tars that were requested, in order."""
        return [path for path in self.server.requests if path.endswith(".tar")]


def texts(dataset: Any) -> list[str]:
    """Return the text of each sample."""
    return [sample[".txt"] for sample in dataset]
