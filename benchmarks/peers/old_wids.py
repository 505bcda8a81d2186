"""wids 0.1.11, with ``localname`` as its users set it to read shards in place."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from peers.peer import BATCH_SIZE, PICTURES_AT_A_TIME, Data, Peer, pixels


class OldWids(Peer):
    """Plain tars; an index of each shard is made whenever it is opened."""

    modules = ("wids",)

    def convert(self, data: Data) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "wids.wids_index", "create"]
        command += ["--output", f"{data.folder}/train.json", *data.shards]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def dataset(self, data: Data) -> Any:
        import wids

        document = json.loads(Path(data.folder, "train.json").read_text(encoding="utf-8"))
        names = {Path(shard).name: shard for shard in data.shards}
        shards = [
            {**shard, "url": names[Path(shard["url"]).name]} for shard in document["shardlist"]
        ]
        return wids.ShardListDataset(
            shards, lru_size=100, transformations=[], localname=str, dataset_name="x"
        )

    def reader(self, data: Data) -> Callable[[int], Any]:
        return self.dataset(data).__getitem__

    def loader(self, dataset: Any, sampler: Any, num_workers: int) -> Iterator[list[Any]]:
        from torch.utils.data import DataLoader

        return iter(
            DataLoader(
                dataset, BATCH_SIZE, sampler=sampler, num_workers=num_workers, collate_fn=list
            )
        )

    def epoch(self, data: Data, num_workers: int) -> Iterator[list[Any]]:
        import wids

        dataset = self.dataset(data)
        return self.loader(dataset, wids.ChunkedSampler(dataset, shufflefirst=True), num_workers)

    def pictures(self, data: Data, num_workers: int) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        import wids

        dataset = self.dataset(data)
        dataset.add_transform(lambda sample: pixels(sample[".jpg"].read()))
        sampler = wids.ChunkedSampler(dataset, shufflefirst=True)
        return iter(
            DataLoader(dataset, PICTURES_AT_A_TIME, sampler=sampler, num_workers=num_workers)
        )

    def publish(self, data: Data, folder: str) -> None:
        self.convert(Data(data.name, data.shards, data.num_samples, data.payload, folder))

    def remote_epoch(self, data: Data, url: str, cache: str) -> Iterator[list[Any]]:
        import wids

        dataset = self.remote(data, url, cache)
        return self.loader(dataset, wids.ChunkedSampler(dataset, shufflefirst=True), 1)

    def remote_first(self, data: Data, url: str, cache: str) -> Any:
        return self.remote(data, url, cache)[data.num_samples // 2]

    def remote_reader(self, data: Data, url: str, cache: str) -> Callable[[list[int]], list[Any]]:
        dataset = self.remote(data, url, cache)
        return lambda indices: [dataset[index] for index in indices]

    def remote(self, data: Data, url: str, cache: str) -> Any:
        import wids

        each = data.num_samples // len(data.shards)
        shards = [{"url": f"{url}/{Path(shard).name}", "nsamples": each} for shard in data.shards]
        return wids.ShardListDataset(
            shards, cache_dir=cache, transformations=[], dataset_name="x", keep=True
        )

    def pause(self, data: Data, path: str, num_batches: int) -> list[Any]:
        Path(path).write_text(str(num_batches * BATCH_SIZE), encoding="ascii")
        return self.resume(data, path)

    def resume(self, data: Data, path: str) -> list[Any]:
        # It has no states. What it can do: draw the same order again, and leave out what was read.
        import wids

        dataset = self.dataset(data)
        start = int(Path(path).read_text(encoding="ascii"))
        sampler = wids.ChunkedSampler(dataset, shufflefirst=True)
        return next(self.loader(dataset, list(islice(sampler, start, None)), 2))

    def order(self, num_samples: int) -> Iterator[int]:
        import wids

        return iter(wids.ChunkedSampler(range(num_samples), shufflefirst=True))

    def plain(self, sample: Any, payload: str) -> tuple[bytes, int]:
        content, number = sample[f".{payload}"], sample[".cls"]
        content.seek(0)
        number.seek(0)
        return content.read(), int(number.read())


VARIANTS = {"": OldWids}
