"""webdataset: plain tars, read from their beginning to their end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from peers.peer import BATCH_SIZE, PICTURES_AT_A_TIME, SHUFFLED, Data, Peer, cropped


class WebDataset(Peer):
    """Shards in shuffled order, samples shuffled in a buffer."""

    modules = ("webdataset",)

    def samples(self, urls: list[str]) -> Any:
        import webdataset

        dataset = webdataset.WebDataset(urls, shardshuffle=len(urls), empty_check=False)
        return dataset.shuffle(SHUFFLED)

    def batches(self, urls: list[str], num_workers: int) -> Iterator[list[Any]]:
        import webdataset

        batches = self.samples(urls).batched(BATCH_SIZE, collation_fn=None)
        return iter(webdataset.WebLoader(batches, batch_size=None, num_workers=num_workers))

    def first(self, data: Data) -> Any:
        import webdataset

        return next(iter(webdataset.WebDataset(list(data.shards), shardshuffle=False)))

    def some(self, data: Data, num_samples: int) -> Any:
        samples = iter(self.samples(list(data.shards)))
        for _ in islice(samples, num_samples):
            pass
        return samples

    def epoch(self, data: Data, num_workers: int) -> Iterator[list[Any]]:
        return self.batches(list(data.shards), num_workers)

    def pictures(self, data: Data, num_workers: int) -> Iterator[Any]:
        import webdataset

        dataset = self.samples(list(data.shards)).decode("rgb8").to_tuple("jpg")
        batches = dataset.batched(PICTURES_AT_A_TIME)
        loader = webdataset.WebLoader(batches, batch_size=None, num_workers=num_workers)
        return chain.from_iterable(loader)

    def crops(self, data: Data, num_workers: int) -> Iterator[Any]:
        import webdataset

        dataset = self.samples(list(data.shards)).decode("pil").to_tuple("jpg")
        batches = dataset.map_tuple(cropped).batched(BATCH_SIZE)
        loader = webdataset.WebLoader(batches, batch_size=None, num_workers=num_workers)
        return chain.from_iterable(loader)

    def publish(self, data: Data, folder: str) -> None:
        """Need nothing but the tars."""

    def urls(self, data: Data, url: str) -> list[str]:
        # Not through curl, which has to be installed, but with Python, as its documentation has it.
        return [f"{url}/{Path(shard).name}" for shard in data.shards]

    def remote_epoch(self, data: Data, url: str, cache: str) -> Iterator[list[Any]]:
        return self.batches(self.urls(data, url), 1)

    def remote_first(self, data: Data, url: str, cache: str) -> Any:
        import webdataset

        return next(iter(webdataset.WebDataset(self.urls(data, url), shardshuffle=False)))

    def pause(self, data: Data, path: str, num_batches: int) -> list[Any]:
        Path(path).write_text(str(num_batches), encoding="ascii")
        return self.resume(data, path)

    def resume(self, data: Data, path: str) -> list[Any]:
        # It has no states. What it can do: shuffle with a seed, and read what was read once more.
        import webdataset

        dataset = webdataset.WebDataset(
            list(data.shards), shardshuffle=len(data.shards), detshuffle=True, seed=0
        )
        dataset = dataset.compose(webdataset.detshuffle(SHUFFLED, seed=0))
        batches = dataset.batched(BATCH_SIZE, collation_fn=None)
        loader = webdataset.WebLoader(batches, batch_size=None, num_workers=2)
        return next(islice(loader, int(Path(path).read_text(encoding="ascii")), None))


VARIANTS = {"": WebDataset}
