"""A file for each field, and tars read at known places: what needs no library."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from peers.map_style import MapStyle, Samples
from peers.peer import BATCH_SIZE, PICTURES_AT_A_TIME, Data, UnsupportedError, cropped


class Files(MapStyle):
    """A folder of files, decoded by Pillow, as torchvision's ``ImageFolder`` does it."""

    most_indices = 10_000_000  # torch's sampler makes a list of all

    def convert(self, data: Data) -> None:
        for shard in data.shards:
            subprocess.run(["tar", "-xf", shard, "-C", data.folder], check=True)

    def reader(self, data: Data) -> Callable[[int], Any]:
        fields = (data.payload, "cls")
        stems = sorted(
            entry.path[:-4] for entry in os.scandir(data.folder) if entry.name.endswith(".cls")
        )

        def read(index: int) -> dict[str, bytes]:
            sample = {}
            for field in fields:
                with open(f"{stems[index]}.{field}", "rb") as file:
                    sample[field] = file.read()
            return sample

        return read

    def pictures(self, data: Data, num_workers: int) -> Any:
        return self.batches(data, self.picture_of_file, PICTURES_AT_A_TIME, num_workers)

    def crops(self, data: Data, num_workers: int) -> Any:
        return self.batches(data, crop_of_file, BATCH_SIZE, num_workers)

    def batches(
        self, data: Data, read: Callable[[str], Any], batch_size: int, num_workers: int
    ) -> Any:
        """Return shuffled batches of what is read of each picture's file."""
        from torch.utils.data import DataLoader

        paths = sorted(str(path) for path in Path(data.folder).glob("*.jpg"))
        samples: Any = Samples(
            lambda: lambda indices: [paths[index] for index in indices], len(paths), read
        )
        return iter(DataLoader(samples, batch_size, shuffle=True, num_workers=num_workers))

    def picture_of_file(self, path: str) -> Any:
        """Decode a file."""
        from peers.peer import pixels

        return pixels(Path(path).read_bytes())

    def order(self, num_samples: int) -> Iterator[int]:
        from torch.utils.data import RandomSampler

        return iter(RandomSampler(range(num_samples)))


def crop_of_file(path: str) -> Any:
    """Return a crop of a file."""
    from PIL import Image

    with Image.open(path) as image:
        return cropped(image)


class Turbo(Files):
    """The same folder, decoded by simplejpeg."""

    def picture_of_file(self, path: str) -> Any:
        try:
            import simplejpeg
        except ImportError:
            raise UnsupportedError("simplejpeg is not installed") from None
        import torch

        return torch.from_numpy(simplejpeg.decode_jpeg(Path(path).read_bytes()))


class Pread(MapStyle):
    """What the system allows: ``pread`` at places that are known, after hints for a whole batch."""

    def convert(self, data: Data) -> None:
        raise UnsupportedError("it is a limit, not a library")

    def places(self, data: Data) -> list[tuple[int, list[tuple[str, int, int]]]]:
        """Return descriptor and fields, with their places, of all samples."""
        found: list[tuple[int, list[tuple[str, int, int]]]] = []
        for shard in data.shards:
            file = os.open(shard, os.O_RDONLY)
            with tarfile.open(shard) as archive:
                members = [(m.name.split(".", 1)[1], m.offset_data, m.size) for m in archive]
            found += [(file, members[n : n + 2]) for n in range(0, len(members), 2)]
        return found

    def reader(self, data: Data) -> Callable[[int], Any]:
        places = self.places(data)

        def read(index: int) -> dict[str, bytes]:
            file, fields = places[index]
            return {name: os.pread(file, nbytes, start) for name, start, nbytes in fields}

        return read

    def batch_reader(self, data: Data) -> Callable[[list[int]], list[Any]]:
        places = self.places(data)

        def read(indices: list[int]) -> list[dict[str, bytes]]:
            found = [places[index] for index in indices]
            if data.is_large:  # the system starts reading all of them at once
                for file, fields in found:
                    start, stop = fields[0][1], fields[-1][1] + fields[-1][2]
                    os.posix_fadvise(file, start, stop - start, os.POSIX_FADV_WILLNEED)
            return [
                {name: os.pread(file, nbytes, start) for name, start, nbytes in fields}
                for file, fields in found
            ]

        return read


VARIANTS = {"": Files, "turbo": Turbo, "pread": Pread}
