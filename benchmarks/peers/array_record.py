"""ArrayRecord files, read by grain."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from peers.peer import BATCH_SIZE, PICTURES_AT_A_TIME, Data, Peer, tar_samples


class ArrayRecord(Peer):
    """Samples as pickled dicts, a record each, not compressed."""

    modules = ("grain", "array_record")

    def convert(self, data: Data) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        for number, shard in enumerate(data.shards):
            # Single records are read by number: groups of more would be decoded for each.
            path = f"{data.folder}/data-{number:05d}.array_record"
            writer = ArrayRecordWriter(path, "group_size:1,uncompressed")
            for _, fields in tar_samples((shard,)):
                writer.write(pickle.dumps(fields))
            writer.close()

    def source(self, data: Data) -> Any:
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        return ArrayRecordDataSource(sorted(map(str, Path(data.folder).glob("*.array_record"))))

    def reader(self, data: Data) -> Callable[[int], Any]:
        get, loads = self.source(data).__getitem__, pickle.loads
        return lambda index: loads(get(index))

    def batch_reader(self, data: Data) -> Callable[[list[int]], list[Any]]:
        source, loads = self.source(data), pickle.loads
        if data.is_large:
            read = source.__getitems__
            return lambda indices: list(map(loads, read(indices)))
        get = source.__getitem__  # its threads cost more than reading small records
        return lambda indices: [loads(get(index)) for index in indices]

    def loader(self, data: Data, operations: list[Any], num_workers: int) -> Any:
        import grain.python as grain

        sampler = grain.IndexSampler(
            data.num_samples,
            shard_options=grain.NoSharding(),
            shuffle=True,
            num_epochs=1,
            seed=0,
        )
        return grain.DataLoader(
            data_source=self.source(data),
            sampler=sampler,
            operations=operations,
            worker_count=num_workers,
        )

    def batches(self, data: Data, num_workers: int) -> Any:
        import grain.python as grain

        class Load(grain.MapTransform):
            def map(self, element: bytes) -> Any:
                return pickle.loads(element)

        operations = [Load(), grain.Batch(BATCH_SIZE, batch_fn=list)]
        return iter(self.loader(data, operations, num_workers))

    def epoch(self, data: Data, num_workers: int) -> Iterator[list[Any]]:
        return self.batches(data, num_workers)

    def pictures(self, data: Data, num_workers: int) -> Iterator[Any]:
        import io

        import grain.python as grain
        import numpy as np
        from PIL import Image

        class Load(grain.MapTransform):
            def map(self, element: bytes) -> Any:
                content = pickle.loads(element)["jpg"]
                return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))

        operations = [Load(), grain.Batch(PICTURES_AT_A_TIME)]
        return iter(self.loader(data, operations, num_workers))

    def pause(self, data: Data, path: str, num_batches: int) -> list[Any]:
        batches = self.batches(data, 2)
        for _ in islice(batches, num_batches):
            pass
        Path(path).write_bytes(batches.get_state())
        return next(batches)

    def resume(self, data: Data, path: str) -> list[Any]:
        batches = self.batches(data, 2)
        batches.set_state(Path(path).read_bytes())
        return next(batches)

    def order(self, num_samples: int) -> Iterator[int]:
        import grain.python as grain

        sampler = grain.IndexSampler(
            num_samples, shard_options=grain.NoSharding(), shuffle=True, num_epochs=1, seed=0
        )
        return (sampler[number].record_key for number in range(num_samples))


VARIANTS = {"": ArrayRecord}
