"""Measure what `wids.timings` costs: processor time of an epoch inside and outside a block.

    python benchmarks/timings_cost.py [--rounds 20] [--folder FOLDER]

Epochs of both kinds alternate, in this process, without workers, so that other load and the clock
of the processor affect them alike. The columns are the median of each, in microseconds for each
sample, and the median of the differences between neighbours, with the quartiles of those.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

import wids


def small(folder: Path, num_samples: int) -> DataLoader[Any]:
    """Return a loader of samples of a text and a label."""
    with wids.TarWriter(folder / "small.tar") as writer:
        for n in range(num_samples):
            writer.write({"__key__": f"{n:06d}", ".txt": f"text {n}", ".cls": n % 10})
    dataset = wids.ShardListDataset(folder / "small.tar")
    return DataLoader(dataset, 64, collate_fn=wids.collate)


def undecoded(folder: Path, num_samples: int) -> DataLoader[Any]:
    """Return a loader of samples of 20 kB that stay as they are."""
    with wids.TarWriter(folder / "undecoded.tar") as writer:
        for n in range(num_samples):
            writer.write({"__key__": f"{n:06d}", ".bin": bytes(20_000)})
    dataset = wids.ShardListDataset(folder / "undecoded.tar", transformations=[])
    return DataLoader(dataset, 64, collate_fn=list)


def mapped(folder: Path, num_samples: int) -> DataLoader[Any]:
    """Return the first loader, whose samples pass through a function after they are decoded."""
    made: Any = small(folder, num_samples).dataset
    return DataLoader(made.map(_same), 64, collate_fn=wids.collate)


def pictures(folder: Path, num_samples: int) -> DataLoader[Any]:
    """Return a loader of JPEGs of 256², decoded to tensors."""
    from PIL import Image

    stream = io.BytesIO()
    Image.effect_noise((256, 256), 60).convert("RGB").save(stream, "JPEG")
    with wids.TarWriter(folder / "pictures.tar") as writer:
        for n in range(max(64, num_samples // 16)):
            writer.write({"__key__": f"{n:06d}", ".jpg": stream.getvalue(), ".cls": n % 10})
    dataset = wids.ShardListDataset(folder / "pictures.tar", transformations="torch")
    return DataLoader(dataset, 64, collate_fn=wids.collate)


KINDS: tuple[Callable[[Path, int], DataLoader[Any]], ...] = (small, mapped, undecoded, pictures)


def measure(loader: DataLoader[Any], rounds: int) -> Iterator[tuple[float, float]]:
    """Yield the processor time of an epoch outside and inside of a block, in µs a sample."""
    dataset: Any = loader.dataset
    _seconds(loader, is_timed=False)
    for number in range(rounds):
        order = (False, True) if number % 2 else (True, False)
        found = {is_timed: _seconds(loader, is_timed=is_timed) for is_timed in order}
        yield 1e6 * found[False] / len(dataset), 1e6 * found[True] / len(dataset)


def _seconds(loader: DataLoader[Any], *, is_timed: bool) -> float:
    start_s = time.process_time()
    with wids.timings(loader) if is_timed else nullcontext():
        for _ in loader:
            pass
    return time.process_time() - start_s


def _same(sample: Any) -> Any:
    return sample


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Print a row for each kind of samples; return the differences in percent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--samples", type=int, default=8192)
    options = parser.parse_args(arguments)
    found = {}
    print(f"{'samples':<12}{'outside':>10}{'inside':>10}{'more':>8}  quartiles")
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            pairs = list(measure(kind(Path(folder), options.samples), options.rounds))
        outside, inside = (statistics.median(side) for side in zip(*pairs, strict=True))
        more = [100 * (b - a) / a for a, b in pairs]
        first, middle, third = statistics.quantiles(more, n=4)
        found[kind.__name__] = middle
        print(
            f"{kind.__name__:<12}{outside:>10.2f}{inside:>10.2f}{middle:>7.1f}%  "
            f"{first:.1f} to {third:.1f}%"
        )
    return found


if __name__ == "__main__":
    main()
