"""How samplers that mix keep to the weights, use the data and resume, beside each other.

    python benchmarks/mixing.py

Three sources of 700, 230 and 70 samples are mixed by 0.5, 0.3 and 0.2, in batches of 16, for five
epochs of 1000 samples, with the settings that each library recommends for this. What is not
installed (``datasets``, ``mosaicml-streaming``) is left out, with the reason.

- *batch*, *epoch*: the most by which the count of a source differs from its share.
- *used*: how often the samples of one source came in five epochs, where that differs most.
- *resumed*: of the samples after the middle of the second epoch, how many another process gets from
  the saved state.
- *two ranks*: samples of each rank in the first epoch, and how many of them both ranks have.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

LENGTHS = {"a": 700, "b": 230, "c": 70}
WEIGHTS = [0.5, 0.3, 0.2]
BATCH_SIZE, EPOCH_LENGTH, NUM_EPOCHS = 16, 1000, 5
STOP = 500
EDGES = np.cumsum([0, *LENGTHS.values()])


@dataclass
class Results:
    """What one library was seen to do; samples are numbered from 0 to 999.

    Attributes:
        epochs: The samples of each epoch.
        resumed: The samples after the middle of the second epoch, in a run that was resumed there;
            None if there is no state.
        ranks: The samples of two ranks in the first epoch; None if it knows no ranks.
    """

    epochs: list[list[int]]
    resumed: list[int] | None = None
    ranks: list[list[int]] | None = None
    notes: list[str] = field(default_factory=list)


def wids_results() -> Results:
    """`MixedSampler`."""
    import wids

    shards = [
        wids.ShardSpec(f"/{name}{part}.tar", length // 10, dataset=name)
        for name, length in LENGTHS.items()
        for part in range(10)
    ]
    dataset = wids.ShardListDataset(shards)

    def sampler(rank: int = 0, num_replicas: int = 1) -> Any:
        return wids.MixedSampler(
            dataset, WEIGHTS, num_samples=EPOCH_LENGTH, rank=rank, num_replicas=num_replicas
        )

    stopped = sampler()
    stopped.set_epoch(1)
    list(islice(stopped, STOP))
    resumed = sampler()
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    made = sampler()
    return Results(
        [list(made) for _ in range(NUM_EPOCHS)],
        list(resumed),
        [list(sampler(rank, 2)) for rank in range(2)],
    )


def torch_results() -> Results:
    """``WeightedRandomSampler``, each sample weighted by its source."""
    import torch
    from torch.utils.data import WeightedRandomSampler

    each = [w / n for w, n in zip(WEIGHTS, LENGTHS.values(), strict=True)]
    weights = np.repeat(each, list(LENGTHS.values())).tolist()

    def sampler() -> Any:
        generator = torch.Generator().manual_seed(0)
        return WeightedRandomSampler(weights, EPOCH_LENGTH, generator=generator)

    made = sampler()
    # It knows no ranks: each process makes the same draws, as the seed has to be stated.
    return Results([list(made) for _ in range(NUM_EPOCHS)], None, [list(sampler()) for _ in "ab"])


def interleave_results() -> Results:
    """``interleave_datasets`` of shuffled iterable datasets, until all were exhausted."""
    from datasets import Dataset, interleave_datasets
    from datasets.distributed import split_dataset_by_node

    def made(epoch: int) -> Any:
        parts = [
            Dataset.from_dict({"n": list(range(start, stop))})
            .to_iterable_dataset(num_shards=10)
            .shuffle(seed=0, buffer_size=100)
            for start, stop in pairwise(EDGES)
        ]
        mixed = interleave_datasets(
            parts, probabilities=WEIGHTS, seed=epoch, stopping_strategy="all_exhausted"
        )
        mixed.set_epoch(epoch)
        return mixed

    def numbers(dataset: Iterable[Any]) -> Iterator[int]:
        return (row["n"] for row in dataset)

    # Its epochs end when each dataset was exhausted; what counts here are as many samples.
    epochs = [list(numbers(made(epoch))) for epoch in range(NUM_EPOCHS)]
    stopped = made(1)
    list(islice(numbers(stopped), STOP))
    resumed = made(1)
    resumed.load_state_dict(stopped.state_dict())
    ranks = [list(numbers(split_dataset_by_node(made(0), rank, 2))) for rank in range(2)]
    return Results(
        epochs,
        list(numbers(resumed)),
        ranks,
        [f"epochs of {', '.join(str(len(epoch)) for epoch in epochs)} samples"],
    )


def streaming_results() -> Results:
    """``StreamingDataset`` of streams with a ``proportion``."""
    from streaming import MDSWriter, Stream, StreamingDataset

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for (name, length), start in zip(LENGTHS.items(), EDGES, strict=False):
            out = str(Path(folder) / name)
            # Ten shards for each source.
            with MDSWriter(out=out, columns={"n": "int"}, size_limit=length * 2) as writer:
                for number in range(start, start + length):
                    writer.write({"n": number})

        def made() -> Any:
            streams = [
                Stream(local=str(Path(folder) / name), proportion=weight)
                for name, weight in zip(LENGTHS, WEIGHTS, strict=True)
            ]
            return StreamingDataset(
                streams=streams,
                epoch_size=EPOCH_LENGTH,
                batch_size=BATCH_SIZE,
                shuffle=True,
                num_canonical_nodes=1,
            )

        def numbers(dataset: Any) -> Iterator[int]:
            return (int(row["n"]) for row in dataset)

        dataset = made()
        epochs = [list(numbers(dataset)) for _ in range(NUM_EPOCHS)]
        del dataset
        stopped = made()
        list(numbers(stopped))
        rows = iter(stopped)
        list(islice(rows, STOP))
        state = stopped.state_dict(STOP, from_beginning=False)
        rows.close()  # ends its threads
        resumed = made()
        resumed.load_state_dict(state)
        tail = list(numbers(resumed))
        del resumed
    return Results(epochs, tail)


LIBRARIES: dict[str, Callable[[], Results]] = {
    "wids.MixedSampler": wids_results,
    "torch WeightedRandomSampler": torch_results,
    "datasets.interleave_datasets": interleave_results,
    "mosaicml-streaming, proportion": streaming_results,
}


def farthest(parts: Iterable[list[int]]) -> float:
    """Return the most by which the count of a source in a part differs from its share."""
    found = 0.0
    for part in parts:
        counts = np.histogram(part, bins=EDGES)[0]
        found = max(found, *np.abs(counts - len(part) * np.array(WEIGHTS)))
    return found


def row(name: str, results: Results) -> dict[str, str]:
    """Return the line of a library."""
    drawn = [number for epoch in results.epochs for number in epoch]
    batches = [
        epoch[at : at + BATCH_SIZE]
        for epoch in results.epochs
        for at in range(0, len(epoch) - BATCH_SIZE + 1, BATCH_SIZE)
    ]
    counts = np.bincount(drawn, minlength=EDGES[-1])
    used = [counts[start:stop] for start, stop in pairwise(EDGES)]
    worst = max(used, key=np.ptp)
    resumed = "no state"
    if results.resumed is not None:
        tail = results.epochs[1][STOP:]
        same = sum((Counter(tail) & Counter(results.resumed)).values())
        resumed = f"{same} of {len(tail)}"
        if results.resumed != tail:
            resumed += f", of {len(results.resumed)} that come"
    ranks = "not tried"
    if results.ranks is not None:
        both = sum((Counter(results.ranks[0]) & Counter(results.ranks[1])).values())
        ranks = f"{len(results.ranks[0])} and {len(results.ranks[1])}, {both} in both"
    return {
        "library": name,
        "batch": f"{farthest(batches):.1f}",
        "epoch": f"{farthest(results.epochs):.1f}",
        "used": f"{worst.min()} to {worst.max()} times",
        "resumed": resumed,
        "two ranks": ranks,
    }


def main(arguments: list[str] | None = None) -> list[dict[str, str]]:
    """Print the table; return its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=LIBRARIES, nargs="*", default=list(LIBRARIES))
    rows = []
    for name in parser.parse_args(arguments).only:
        try:
            results = LIBRARIES[name]()
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        rows.append(row(name, results))
        for note in results.notes:
            print(f"{name}: {note}")
    for line in ([{column: column for column in rows[0]}] if rows else []) + rows:
        print("| " + " | ".join(line.values()) + " |")
    return rows


if __name__ == "__main__":
    main()
