"""bagz: a file of records with an index at its end."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from peers.map_style import MapStyle
from peers.peer import Data, tar_samples


class Bagz(MapStyle):
    """Samples as pickled dicts, not compressed."""

    modules = ("bagz",)

    def convert(self, data: Data) -> None:
        import bagz

        with bagz.Writer(f"{data.folder}/data.bag") as writer:  # the ending: not compressed
            for _, fields in tar_samples(data.shards):
                writer.write(pickle.dumps(fields))

    def records(self, data: Data) -> Any:
        import bagz

        return bagz.Reader(f"{data.folder}/data.bag")

    def reader(self, data: Data) -> Callable[[int], Any]:
        get, loads = self.records(data).__getitem__, pickle.loads
        return lambda index: loads(get(index))

    def batch_reader(self, data: Data) -> Callable[[list[int]], list[Any]]:
        records, loads = self.records(data), pickle.loads
        if data.is_large:
            read = records.read_indices
            return lambda indices: list(map(loads, read(indices)))
        get = records.__getitem__  # its threads cost more than reading small records
        return lambda indices: [loads(get(index)) for index in indices]


VARIANTS = {"": Bagz}
