"""LanceDB: a table, read by number, or streamed by its dataset for torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from peers.peer import BATCH_SIZE, PICTURES_AT_A_TIME, Data, Peer, pixels, tar_samples
from peers.states import load_json, save_json


class LanceDb(Peer):
    """``Permutation`` for samples by number, ``StreamingDataset`` for epochs."""

    modules = ("lancedb",)

    def convert(self, data: Data) -> None:
        import lancedb
        import pyarrow as pa

        schema = pa.schema([(data.payload, pa.large_binary()), ("cls", pa.int64())])

        def batches() -> Iterator[Any]:
            for shard in data.shards:
                samples = [fields for _, fields in tar_samples((shard,))]
                payloads = [fields[data.payload] for fields in samples]
                classes = [int(fields["cls"]) for fields in samples]
                yield pa.RecordBatch.from_arrays(
                    [pa.array(payloads, pa.large_binary()), pa.array(classes)], schema=schema
                )

        reader = pa.RecordBatchReader.from_batches(schema, batches())
        lancedb.connect(data.folder).create_table("data", data=reader)

    def table(self, data: Data) -> Any:
        import lancedb

        return lancedb.connect(data.folder).open_table("data")

    def reader(self, data: Data) -> Callable[[int], Any]:
        read = self.batch_reader(data)
        return lambda index: read([index])[0]

    def batch_reader(self, data: Data) -> Callable[[list[int]], list[Any]]:
        from lancedb.permutation import Permutation

        return Permutation.identity(self.table(data)).__getitems__

    def dataset(self, data: Data, num_workers: int, transform: Any = None) -> Any:
        from lancedb.streaming import StreamingDataset

        return StreamingDataset(
            self.table(data),
            num_splits=max(1, num_workers),
            shuffle_seed=0,
            rank=0,
            world_size=1,
            transform=transform,
        )

    def loader(self, dataset: Any, batch_size: int, num_workers: int, **options: Any) -> Any:
        from lancedb.streaming import StreamingDataLoader

        context = "forkserver" if num_workers else None  # forked workers would lack its threads
        return StreamingDataLoader(
            dataset,
            batch_size=batch_size,
            num_workers=num_workers,
            multiprocessing_context=context,
            **options,
        )

    def epoch(self, data: Data, num_workers: int) -> Iterator[list[Any]]:
        dataset = self.dataset(data, num_workers)
        return iter(self.loader(dataset, BATCH_SIZE, num_workers, collate_fn=list))

    def pictures(self, data: Data, num_workers: int) -> Iterator[Any]:
        return iter(
            self.loader(self.dataset(data, num_workers, decoded), PICTURES_AT_A_TIME, num_workers)
        )

    def pause(self, data: Data, path: str, num_batches: int) -> list[Any]:
        dataset = self.dataset(data, 2)
        batches = iter(self.loader(dataset, BATCH_SIZE, 2, collate_fn=list))
        for _ in islice(batches, num_batches + num_batches % 2):  # a state is of whole steps
            pass
        save_json(path, dataset.state_dict())
        return next(batches)

    def resume(self, data: Data, path: str) -> list[Any]:
        dataset = self.dataset(data, 2)
        dataset.load_state_dict(load_json(path))
        return next(iter(self.loader(dataset, BATCH_SIZE, 2, collate_fn=list)))


def decoded(batch: Any) -> list[Any]:
    """Return the pictures of a batch of rows."""
    return [pixels(content) for content in batch["jpg"].to_pylist()]


VARIANTS = {"": LanceDb}
