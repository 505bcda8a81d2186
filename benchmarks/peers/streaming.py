"""mosaicml-streaming: its own shards (MDS)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from peers.peer import BATCH_SIZE, PICTURES_AT_A_TIME, Data, Peer, pixels, tar_samples
from peers.states import load_json, save_json

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "report",
    "AWS_SECRET_ACCESS_KEY": "report",
    "AWS_DEFAULT_REGION": "us-east-1",
}
"""Of the bucket that this report serves."""


def _declare_operators() -> None:
    """Declare the operators whose absence keeps torchvision's Python part from being imported.

    torchvision from PyPI is built for CUDA, and cannot load its operators beside a CPU build of
    torch. streaming imports torchvision, but calls none of them.
    """
    import torch

    if not _kept and not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)


_kept: list[Any] = []


def _in_dict(samples: list[Any]) -> dict[str, list[Any]]:
    return {"samples": samples}


class Streaming(Peer):
    """A ``StreamingDataset`` of local shards, and of shards in a bucket."""

    modules = ("streaming",)

    def before_import(self) -> None:
        """Make the import possible where torchvision is broken."""
        os.environ |= CREDENTIALS
        _declare_operators()

    def write(self, data: Data, folder: str) -> None:
        from streaming import MDSWriter

        columns = {data.payload: "bytes", "cls": "int"}
        with MDSWriter(out=folder, columns=columns, size_limit=data.shard_nbytes) as writer:
            for _, fields in tar_samples(data.shards):
                writer.write({data.payload: fields[data.payload], "cls": int(fields["cls"])})

    def convert(self, data: Data) -> None:
        self.write(data, f"{data.folder}/mds")

    def dataset(self, data: Data, batch_size: int = BATCH_SIZE, **options: Any) -> Any:
        from streaming import StreamingDataset

        return StreamingDataset(local=f"{data.folder}/mds", batch_size=batch_size, **options)

    def reader(self, data: Data) -> Callable[[int], Any]:
        return self.dataset(data).__getitem__

    def loader(self, dataset: Any, num_workers: int) -> Any:
        from streaming import StreamingDataLoader

        # Its loader counts the values of a dict, for its states, but not the items of a list.
        return StreamingDataLoader(
            dataset, batch_size=BATCH_SIZE, num_workers=num_workers, collate_fn=_in_dict
        )

    def batches(self, loader: Any) -> Iterator[list[Any]]:
        return (batch["samples"] for batch in loader)

    def epoch(self, data: Data, num_workers: int) -> Iterator[list[Any]]:
        return self.batches(self.loader(self.dataset(data, shuffle=True), num_workers))

    def pictures(self, data: Data, num_workers: int) -> Iterator[Any]:
        from streaming import StreamingDataset
        from torch.utils.data import DataLoader

        class Pictures(StreamingDataset):
            def __getitem__(self, at: int) -> Any:
                return pixels(super().__getitem__(at)["jpg"])

        dataset = Pictures(local=f"{data.folder}/mds", batch_size=PICTURES_AT_A_TIME, shuffle=True)
        return iter(DataLoader(dataset, PICTURES_AT_A_TIME, num_workers=num_workers))

    def publish(self, data: Data, folder: str) -> None:
        self.write(data, f"{folder}/bucket/mds")

    def remote(self, url: str, cache: str, **options: Any) -> Any:
        from streaming import StreamingDataset

        # It reads no http: addresses; the server is a bucket too.
        os.environ["S3_ENDPOINT_URL"] = f"http://{urlsplit(url).netloc}"
        return StreamingDataset(
            remote="s3://bucket/mds", local=cache, batch_size=BATCH_SIZE, **options
        )

    def remote_epoch(self, data: Data, url: str, cache: str) -> Iterator[list[Any]]:
        return self.batches(self.loader(self.remote(url, cache, shuffle=True), 1))

    def remote_first(self, data: Data, url: str, cache: str) -> Any:
        return self.remote(url, cache)[data.num_samples // 2]

    def remote_reader(self, data: Data, url: str, cache: str) -> Callable[[list[int]], list[Any]]:
        dataset = self.remote(url, cache)
        return lambda indices: [dataset[index] for index in indices]

    def pause(self, data: Data, path: str, num_batches: int) -> list[Any]:
        loader = self.loader(self.dataset(data, shuffle=True), 2)
        batches = self.batches(loader)
        for _ in islice(batches, num_batches):
            pass
        save_json(path, loader.state_dict())
        return next(batches)

    def resume(self, data: Data, path: str) -> list[Any]:
        loader = self.loader(self.dataset(data, shuffle=True), 2)
        loader.load_state_dict(load_json(path))
        return next(self.batches(loader))


VARIANTS = {"": Streaming}
