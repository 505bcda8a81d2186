"""webshart: plain tars, and a JSON document with the places of the files of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers.map_style import MapStyle
from peers.peer import Data


class Webshart(MapStyle):
    """Files by number; its own loader reads them in their order, without a shuffle or workers.

    A sample is a picture and a JSON to it; a class beside the payload is a file of its own.
    """

    modules = ("webshart",)

    def convert(self, data: Data) -> None:
        import webshart

        folder = Path(data.folder)
        (folder / "tars").mkdir()
        for shard in data.shards:
            (folder / "tars" / Path(shard).name).symlink_to(shard)
        webshart.MetadataExtractor().extract_metadata(
            source=str(folder / "tars"), destination=str(folder / "index"), max_workers=2
        )

    def dataset(self, data: Data) -> Any:
        import webshart

        return webshart.discover_dataset(f"{data.folder}/tars", metadata=f"{data.folder}/index")

    def reader(self, data: Data) -> Callable[[int], Any]:
        dataset = self.dataset(data)
        shards = [dataset.open_shard(number) for number in range(dataset.num_shards)]
        places = [(shard, at) for shard in shards for at in range(0, shard.num_files, 2)]
        fields = self.fields(data)

        def read(index: int) -> dict[str, bytes]:
            shard, at = places[index]
            return {name: shard.read_file(at + n) for n, name in enumerate(fields)}

        return read

    def batch_reader(self, data: Data) -> Callable[[list[int]], list[Any]]:
        import webshart

        dataset = self.dataset(data)
        places = [
            [(shard, at), (shard, at + 1)]
            for shard in range(dataset.num_shards)
            for at in range(0, dataset.get_shard_file_count(shard), 2)
        ]
        fields = self.fields(data)

        def read(indices: list[int]) -> list[dict[str, bytes]]:
            wanted = [place for index in indices for place in places[index]]
            found = iter(webshart.read_files_batch(dataset, wanted))
            return [{name: next(found) for name in fields} for _ in indices]

        return read

    def fields(self, data: Data) -> list[str]:
        """Return the names of the fields in the order of its numbers."""
        return sorted(["cls", data.payload])


VARIANTS = {"": Webshart}
