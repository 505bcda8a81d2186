"""Hugging Face datasets: tars are converted to Arrow files, or streamed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from peers import states
from peers.peer import BATCH_SIZE, PICTURES_AT_A_TIME, SHUFFLED, Data, Peer


class Datasets(Peer):
    """``load_dataset("webdataset")``; map-style for single samples, iterable for epochs."""

    modules = ("datasets",)

    def before_import(self) -> None:
        os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}

    def convert(self, data: Data) -> None:
        self.dataset(data)

    def dataset(self, data: Data) -> Any:
        import datasets

        return datasets.load_dataset(
            "webdataset",
            data_files={"train": list(data.shards)},
            split="train",
            cache_dir=data.folder,
        )

    def reader(self, data: Data) -> Callable[[int], Any]:
        return self.dataset(data).__getitem__

    def batch_reader(self, data: Data) -> Callable[[list[int]], list[Any]]:
        return self.dataset(data).__getitems__

    def iterable(self, data: Data) -> Any:
        dataset = self.dataset(data).to_iterable_dataset(num_shards=len(data.shards))
        return dataset.shuffle(seed=0, buffer_size=SHUFFLED)

    def batches(self, dataset: Any, num_workers: int) -> Iterator[list[Any]]:
        from torch.utils.data import DataLoader

        return iter(DataLoader(dataset, BATCH_SIZE, num_workers=num_workers, collate_fn=list))

    def epoch(self, data: Data, num_workers: int) -> Iterator[list[Any]]:
        return self.batches(self.iterable(data), num_workers)

    def pictures(self, data: Data, num_workers: int) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        dataset = self.dataset(data).select_columns(["jpg"]).with_format("numpy")
        loader = DataLoader(dataset, PICTURES_AT_A_TIME, shuffle=True, num_workers=num_workers)
        return (batch["jpg"] for batch in loader)

    def publish(self, data: Data, folder: str) -> None:
        """Need nothing but the tars."""

    def remote_epoch(self, data: Data, url: str, cache: str) -> Iterator[list[Any]]:
        return self.batches(self.remote(data, url, cache).shuffle(seed=0, buffer_size=SHUFFLED), 1)

    def remote_first(self, data: Data, url: str, cache: str) -> Any:
        return next(iter(self.remote(data, url, cache)))

    def remote(self, data: Data, url: str, cache: str) -> Any:
        import datasets

        urls = [f"{url}/{Path(shard).name}" for shard in data.shards]
        return datasets.load_dataset(
            "webdataset", data_files={"train": urls}, split="train", streaming=True, cache_dir=cache
        )

    def loader(self, data: Data) -> Any:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(self.iterable(data), BATCH_SIZE, num_workers=0, collate_fn=list)

    def pause(self, data: Data, path: str, num_batches: int) -> list[Any]:
        return states.pause(self.loader(data), path, num_batches)

    def resume(self, data: Data, path: str) -> list[Any]:
        return states.resume(self.loader(data), path)


VARIANTS = {"": Datasets}
