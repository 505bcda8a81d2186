"""What the report asks of a library, so that all do the same work.

A module of this folder is run by the interpreter of the library that it drives, so it imports that
library, torch and this module, and nothing else of the project. Libraries are used as their
documentation shows it. A sample has to be returned whole, with its payload as bytes and its class
as bytes or an integer: ``plain`` says where they are.
"""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

BATCH_SIZE = 64
PICTURES_AT_A_TIME = 32
CROP = (224, 224)
SHUFFLED = 1000
"""Samples among which those shuffle that have no order of their own."""


class UnsupportedError(Exception):
    """The library cannot do this; the text is a reason for a reader."""


@dataclass(frozen=True)
class Data:
    """A dataset of the report.

    Attributes:
        name: ``small``, ``large``, ``pictures`` or ``remote``.
        shards: Paths of the tars.
        num_samples: Number of samples; each has a payload and a class, which is its number.
        payload: The field of the payload, without a dot.
        folder: Folder of the form that the library converts the tars to.
    """

    name: str
    shards: tuple[str, ...]
    num_samples: int
    payload: str
    folder: str

    @property
    def is_large(self) -> bool:
        """Whether samples are large, so that reading several at once pays."""
        return self.shard_nbytes > 5_000_000

    @property
    def shard_nbytes(self) -> int:
        """Length of a tar, for libraries that want shards of about this size."""
        return Path(self.shards[0]).stat().st_size


class Peer:
    """A library; each method is one thing that the report measures, and may be `UnsupportedError`.

    Attributes:
        modules: What a program imports; the first is the library itself.
        most_indices: Length of the longest order that fits into memory.
    """

    modules: tuple[str, ...] = ()
    most_indices = 1 << 62

    def before_import(self) -> None:
        """Prepare what is not the library's own work."""

    def convert(self, data: Data) -> None:
        """Make whatever the library needs before it can read: an index, or another form."""

    def reader(self, data: Data) -> Callable[[int], Any]:
        """Open a dataset; return the function for one sample."""
        _unsupported("it reads samples in their order only")

    def batch_reader(self, data: Data) -> Callable[[list[int]], list[Any]]:
        """Open a dataset; return the function for several samples."""
        read = self.reader(data)
        return lambda indices: [read(index) for index in indices]

    def first(self, data: Data) -> Any:
        """Open a dataset; return some sample."""
        return self.reader(data)(0)

    def close(self) -> None:
        """Close what is open, if processes that are forked may not have it."""

    def some(self, data: Data, num_samples: int) -> Any:
        """Read samples from all shards; return what has to stay open."""
        read = self.reader(data)
        step = data.num_samples // num_samples
        for index in range(0, data.num_samples, step):
            read(index)
        return read

    def epoch(self, data: Data, num_workers: int) -> Iterator[list[Any]]:
        """Return shuffled batches of undecoded samples."""
        _unsupported("it has no loader")

    def pictures(self, data: Data, num_workers: int) -> Iterator[Any]:
        """Return shuffled batches of pictures: one uint8 tensor each, of all pixels."""
        _unsupported("it has no loader")

    def crops(self, data: Data, num_workers: int) -> Iterator[Any]:
        """Return shuffled batches of what `cropped` makes of each picture: one tensor each."""
        _unsupported("the row is for plain tars and files")

    def publish(self, data: Data, folder: str) -> None:
        """Write what a server has to serve."""
        _unsupported("it reads no URLs")

    def remote_epoch(self, data: Data, url: str, cache: str) -> Iterator[list[Any]]:
        """Return shuffled batches of undecoded samples from what was published under a URL."""
        _unsupported("it reads no URLs")

    def remote_first(self, data: Data, url: str, cache: str) -> Any:
        """Return some sample of what was published under a URL."""
        return next(iter(self.remote_epoch(data, url, cache)))[0]

    def remote_reader(self, data: Data, url: str, cache: str) -> Callable[[list[int]], list[Any]]:
        """Open what was published under a URL; return the function for several samples."""
        _unsupported("it reads no remote samples by number")

    def pause(self, data: Data, path: str, num_batches: int) -> list[Any]:
        """Train for some batches of `epoch`, save the state; return the next batch."""
        _unsupported("it has no loader")

    def resume(self, data: Data, path: str) -> list[Any]:
        """Return the first batch after the saved state."""
        _unsupported("it has no loader")

    def order(self, num_samples: int) -> Iterator[int]:
        """Return a shuffled order of so many samples that exist nowhere."""
        _unsupported("it has no order of samples without the samples")

    def plain(self, sample: Any, payload: str) -> tuple[bytes, int]:
        """Return the payload and the class of a sample."""
        return bytes(sample[payload]), int(sample["cls"])


def _unsupported(reason: str) -> NoReturn:
    raise UnsupportedError(reason)


def tar_samples(shards: tuple[str, ...]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield key and fields of the samples of tars, for libraries that have no reader of tars."""
    for shard in shards:
        with tarfile.open(shard) as archive:
            key, fields = "", {}
            for member in archive:
                name, _, field = member.name.partition(".")
                if name != key and fields:
                    yield key, fields
                    fields = {}
                file = archive.extractfile(member)
                assert file is not None
                key, fields[field] = name, file.read()
            yield key, fields


def pixels(content: bytes) -> Any:
    """Decode a picture with Pillow to a uint8 tensor."""
    import numpy as np
    import torch
    from PIL import Image

    return torch.from_numpy(np.array(Image.open(io.BytesIO(content)).convert("RGB")))


def cropped(image: Any) -> Any:
    """Return a random part of a Pillow image as a uint8 tensor, as a caller's own function does."""
    import numpy as np
    import torch

    height, width = CROP
    left, top = random.randint(0, image.width - width), random.randint(0, image.height - height)
    part = image.crop((left, top, left + width, top + height)).convert("RGB")
    return torch.from_numpy(np.array(part))
