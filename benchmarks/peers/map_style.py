"""Libraries that return any sample by number: torch's loader does the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from peers import states
from peers.peer import BATCH_SIZE, PICTURES_AT_A_TIME, Data, Peer, pixels


class Samples:
    """The samples of a reader as a map-style dataset, with a transformation."""

    def __init__(
        self,
        open_batches: Callable[[], Callable[[list[int]], list[Any]]],
        num_samples: int,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.open_batches = open_batches
        self.num_samples = num_samples
        self.transform = transform
        self.read: Callable[[list[int]], list[Any]] | None = None

    def __len__(self) -> int:
        return self.num_samples

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if self.read is None:  # in the worker: files are opened after the fork
            self.read = self.open_batches()
        samples = self.read(indices)
        return samples if self.transform is None else list(map(self.transform, samples))


class MapStyle(Peer):
    """``DataLoader(shuffle=True)``, and torchdata's loader where a state is wanted."""

    def epoch(self, data: Data, num_workers: int) -> Iterator[list[Any]]:
        from torch.utils.data import DataLoader

        samples: Any = Samples(lambda: self.batch_reader(data), data.num_samples)
        return iter(
            DataLoader(samples, BATCH_SIZE, shuffle=True, num_workers=num_workers, collate_fn=list)
        )

    def pictures(self, data: Data, num_workers: int) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        samples: Any = Samples(lambda: self.batch_reader(data), data.num_samples, self.picture)
        return iter(DataLoader(samples, PICTURES_AT_A_TIME, shuffle=True, num_workers=num_workers))

    def picture(self, sample: Any) -> Any:
        """Decode the picture of a sample."""
        return pixels(sample["jpg"])

    def loader(self, data: Data) -> Any:
        """Return a loader with a state."""
        import torch
        from torch.utils.data import RandomSampler
        from torchdata.stateful_dataloader import StatefulDataLoader

        samples: Any = Samples(lambda: self.batch_reader(data), data.num_samples)
        generator = torch.Generator().manual_seed(0)
        sampler = RandomSampler(samples, generator=generator)
        return StatefulDataLoader(
            samples, BATCH_SIZE, sampler=sampler, num_workers=2, collate_fn=list
        )

    def pause(self, data: Data, path: str, num_batches: int) -> list[Any]:
        return states.pause(self.loader(data), path, num_batches)

    def resume(self, data: Data, path: str) -> list[Any]:
        return states.resume(self.loader(data), path)
