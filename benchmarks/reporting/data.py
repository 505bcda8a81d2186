"""The datasets that all libraries read, as plain tars."""

from __future__ import annotations

import io
import os
import random
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

SIZE = (480, 360)
DISTINCT = 100


@dataclass(frozen=True)
class Dataset:
    """Shards of equal length.

    Attributes:
        name: What it is called in a request.
        num_shards: Number of tars.
        length: Number of samples in each.
        payload: Field of the payload.
        nbytes: Length of a payload that is random bytes; None for pictures.
        size: Width and height of pictures.
    """

    name: str
    num_shards: int
    length: int
    payload: str
    nbytes: int | None
    size: tuple[int, int] = SIZE

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return self.num_shards * self.length

    def shards(self, folder: Path) -> list[str]:
        """Return the paths of the tars."""
        return [str(folder / f"{self.name}-{n:05d}.tar") for n in range(self.num_shards)]

    def content(self, number: int) -> bytes:
        """Return the payload of a sample."""
        if self.nbytes is None:
            return picture(number % DISTINCT, self.size)
        return random.Random(number).randbytes(self.nbytes)

    def write(self, folder: Path) -> None:
        """Write the tars, and have them on the disk."""
        for shard, path in enumerate(self.shards(folder)):
            with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
                for number in range(shard * self.length, (shard + 1) * self.length):
                    for field, content in self.fields(number):
                        info = tarfile.TarInfo(f"{number:08d}.{field}")
                        info.size = len(content)
                        archive.addfile(info, io.BytesIO(content))
            os.utime(path, (1e9, 1e9))  # old enough for its time to be believed

    def fields(self, number: int) -> Iterator[tuple[str, bytes]]:
        """Yield the fields of a sample, whose class is its number."""
        yield self.payload, self.content(number)
        yield "cls", b"%010d" % number

    def request(self, tars: Path, folder: Path) -> dict[str, object]:
        """Return what a library is told of the dataset."""
        return {
            "name": self.name,
            "shards": self.shards(tars),
            "num_samples": self.num_samples,
            "payload": self.payload,
            "folder": str(folder / self.name),
        }


@lru_cache(DISTINCT)
def picture(number: int, size: tuple[int, int] = SIZE) -> bytes:
    """Return a JPEG of about 60 kB: soft colours under some grain, as a photograph has them."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(number)
    width, height = size
    coarse = generator.integers(0, 256, (height // 20, width // 20, 3), np.uint8)
    soft = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), np.int16)
    grain = generator.normal(0, 8, (height, width, 1)).astype(np.int16)
    pixels = (soft + grain).clip(0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()
