"""litdata: its own chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from peers import states
from peers.peer import BATCH_SIZE, PICTURES_AT_A_TIME, Data, Peer, pixels, tar_samples


def samples_of(shard: str, payload: str) -> Iterator[dict[str, Any]]:
    """Yield the samples of a tar."""
    for _, fields in tar_samples((shard,)):
        yield {payload: fields[payload], "cls": int(fields["cls"])}


def _as_bytes(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return samples that can be sent between processes: fields are views into a file."""
    return [
        {
            name: bytes(value) if isinstance(value, memoryview) else value
            for name, value in s.items()
        }
        for s in samples
    ]


class Litdata(Peer):
    """``optimize``, then a ``StreamingDataset``."""

    modules = ("litdata",)

    def write(self, data: Data, folder: str) -> None:
        import litdata

        litdata.optimize(
            partial(samples_of, payload=data.payload),
            list(data.shards),
            output_dir=folder,
            chunk_bytes=data.shard_nbytes,
            num_workers=1,
            keep_data_ordered=True,
            reorder_files=False,
            start_method="fork",
            verbose=False,
        )

    def convert(self, data: Data) -> None:
        self.write(data, f"{data.folder}/chunks")

    def dataset(self, data: Data, **options: Any) -> Any:
        import litdata

        return litdata.StreamingDataset(f"{data.folder}/chunks", **options)

    def reader(self, data: Data) -> Callable[[int], Any]:
        return self.dataset(data).__getitem__

    def loader(self, dataset: Any, num_workers: int) -> Any:
        import litdata

        return litdata.StreamingDataLoader(
            dataset, batch_size=BATCH_SIZE, num_workers=num_workers, collate_fn=_as_bytes
        )

    def epoch(self, data: Data, num_workers: int) -> Iterator[list[Any]]:
        return iter(self.loader(self.dataset(data, shuffle=True), num_workers))

    def pictures(self, data: Data, num_workers: int) -> Iterator[Any]:
        import litdata

        dataset = self.dataset(data, shuffle=True, transform=lambda sample: pixels(sample["jpg"]))
        return iter(
            litdata.StreamingDataLoader(
                dataset, batch_size=PICTURES_AT_A_TIME, num_workers=num_workers
            )
        )

    def publish(self, data: Data, folder: str) -> None:
        self.write(data, f"{folder}/bucket/chunks")

    def remote(self, url: str, cache: str, **options: Any) -> Any:
        import litdata
        from litdata.streaming import downloader

        # It reads no http: addresses; the server is a bucket too, but one without a certificate.
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
        storage = {
            "endpoint_url": f"http://{urlsplit(url).netloc}",
            "aws_access_key_id": "report",
            "aws_secret_access_key": "report",
            "region_name": "us-east-1",
        }
        return litdata.StreamingDataset(
            "s3://bucket/chunks", cache_dir=cache, storage_options=storage, **options
        )

    def remote_epoch(self, data: Data, url: str, cache: str) -> Iterator[list[Any]]:
        return iter(self.loader(self.remote(url, cache, shuffle=True), 1))

    def remote_first(self, data: Data, url: str, cache: str) -> Any:
        return self.remote(url, cache)[data.num_samples // 2]

    def remote_reader(self, data: Data, url: str, cache: str) -> Callable[[list[int]], list[Any]]:
        dataset = self.remote(url, cache)
        return lambda indices: [dataset[index] for index in indices]

    def pause(self, data: Data, path: str, num_batches: int) -> list[Any]:
        return states.pause(self.loader(self.dataset(data, shuffle=True), 2), path, num_batches)

    def resume(self, data: Data, path: str) -> list[Any]:
        return states.resume(self.loader(self.dataset(data, shuffle=True), 2), path)


VARIANTS = {"": Litdata}
