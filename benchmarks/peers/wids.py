"""This library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from peers.peer import BATCH_SIZE, PICTURES_AT_A_TIME, Data, Peer, cropped
from peers.states import load_json, save_json


class Wids(Peer):
    """Plain tars, with their indexes in a dataset index, as README recommends."""

    modules = ("wids",)

    def convert(self, data: Data) -> None:
        self.publish(data, data.folder)

    def dataset(self, data: Data, **options: Any) -> Any:
        import wids

        options = {"transformations": [], "raw": "bytes", **options}
        return wids.ShardListDataset(f"{data.folder}/train.json", **options)

    def reader(self, data: Data) -> Callable[[int], Any]:
        return self.dataset(data).__getitem__

    def batch_reader(self, data: Data) -> Callable[[list[int]], list[Any]]:
        return self.dataset(data).__getitems__

    def epoch(self, data: Data, num_workers: int) -> Iterator[list[Any]]:
        from torch.utils.data import DataLoader

        import wids

        dataset = self.dataset(data)
        sampler = wids.ChunkedSampler(dataset)
        return iter(
            DataLoader(
                dataset, BATCH_SIZE, sampler=sampler, num_workers=num_workers, collate_fn=list
            )
        )

    def pictures(self, data: Data, num_workers: int) -> Iterator[Any]:
        """As the loop of README, without its resize, which no library has in this row."""
        from torch.utils.data import DataLoader

        import wids

        dataset = self.dataset(data, transformations="torchrgb8", fields=[".jpg"]).to_tuple(".jpg")
        sampler = wids.DistributedChunkedSampler(dataset)
        loader = DataLoader(
            dataset,
            PICTURES_AT_A_TIME,
            sampler=sampler,
            num_workers=num_workers,
            collate_fn=wids.collate,
        )
        return (batch for (batch,) in loader)

    def crops(self, data: Data, num_workers: int) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        import wids

        dataset = self.dataset(data, transformations="PIL", fields=[".jpg"]).to_tuple(".jpg")
        dataset = dataset.map(cropped_first)
        sampler = wids.ChunkedSampler(dataset)
        return iter(
            DataLoader(
                dataset,
                BATCH_SIZE,
                sampler=sampler,
                num_workers=num_workers,
                collate_fn=wids.collate,
            )
        )

    def publish(self, data: Data, folder: str) -> None:
        import wids

        spec = wids.build_spec(list(data.shards), dataset_index=f"{folder}/train.index")
        spec.save(f"{folder}/train.json")

    def remote(self, url: str, cache: str) -> Any:
        import wids

        return wids.ShardListDataset(
            f"{url}/train.json", cache_dir=cache, transformations=[], raw="bytes"
        )

    def remote_epoch(self, data: Data, url: str, cache: str) -> Iterator[list[Any]]:
        from torch.utils.data import DataLoader

        import wids

        dataset = self.remote(url, cache)
        sampler = wids.Prefetcher(wids.ChunkedSampler(dataset), dataset)
        return iter(
            DataLoader(dataset, BATCH_SIZE, sampler=sampler, num_workers=1, collate_fn=list)
        )

    def remote_first(self, data: Data, url: str, cache: str) -> Any:
        dataset = self.remote(url, cache)
        return dataset[len(dataset) // 2]

    def remote_reader(self, data: Data, url: str, cache: str) -> Callable[[list[int]], list[Any]]:
        return self.remote(url, cache).__getitems__

    def loader(self, data: Data) -> tuple[Any, Any]:
        from torch.utils.data import DataLoader

        import wids

        dataset = self.dataset(data)
        sampler = wids.ChunkedSampler(dataset)
        return sampler, DataLoader(
            dataset, BATCH_SIZE, sampler=sampler, num_workers=2, collate_fn=list
        )

    def pause(self, data: Data, path: str, num_batches: int) -> list[Any]:
        sampler, loader = self.loader(data)
        batches = iter(loader)
        for _ in islice(batches, num_batches):
            pass
        save_json(path, sampler.state_dict(num_consumed=num_batches * BATCH_SIZE))
        return next(batches)

    def resume(self, data: Data, path: str) -> list[Any]:
        sampler, loader = self.loader(data)
        sampler.load_state_dict(load_json(path))
        return next(iter(loader))

    def order(self, num_samples: int) -> Iterator[int]:
        import wids

        return iter(wids.ChunkedSampler(range(num_samples)))

    def plain(self, sample: Any, payload: str) -> tuple[bytes, int]:
        return sample[f".{payload}"], int(sample[".cls"])


def cropped_first(sample: tuple[Any]) -> Any:
    """Return a crop of the picture of a sample."""
    return cropped(sample[0])


class WithPillow(Wids):
    """The same without the extra that decodes JPEG."""

    def before_import(self) -> None:
        sys.modules["simplejpeg"] = None  # type: ignore[assignment] - as if not installed


VARIANTS = {"": Wids, "pillow": WithPillow}
