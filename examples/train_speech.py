"""Train on audio of different lengths: a batch has samples of similar length, padded to one.

    pip install wids[audio,table]
    torchrun --nproc-per-node 2 examples/train_speech.py words.json

Samples need ``.flac`` (or another audio field, ``--field``), ``.cls`` and ``.json`` with the
duration in seconds. `wids pack` makes such shards of a folder. A batch has as many samples as fit
into a number of seconds; ranks have equally many batches.
"""

from __future__ import annotations

import argparse
import functools

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import wids

RATE = 8000
# Seconds of audio in a batch, and the number of buckets.
BUDGET_S = 16.0
NUM_BUCKETS = 4


class Recognizer(nn.Module):
    """Classify audio by the mean over time of two convolutions."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.hearing = nn.Sequential(
            nn.Conv1d(1, 16, 64, stride=16), nn.ReLU(), nn.Conv1d(16, 16, 8, stride=4), nn.ReLU()
        )
        self.classes = nn.Linear(16, num_classes)

    def forward(self, sounds: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return scores of shape (samples, classes); padding does not count."""
        heard = self.hearing(sounds)
        lasts = (lengths * heard.shape[2] / sounds.shape[2]).ceil()
        is_sound = torch.arange(heard.shape[2]) < lasts[:, None]
        mean = (heard * is_sound[:, None]).sum(dim=2) / lasts[:, None]
        return self.classes(mean)


def main() -> None:
    """Train, and print what rank 0 learns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", help="a JSON spec or its URL")
    parser.add_argument("--field", default=".flac", help="the audio field")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--num-workers", type=int, default=1)
    options = parser.parse_args()
    field = options.field

    dist.init_process_group("gloo")  # "nccl" with GPUs
    torch.manual_seed(0)
    decode = wids.Decoder(audio=wids.Audio(rate=RATE, mono=True))
    dataset = wids.ShardListDataset(options.spec, transformations=decode, fields=[field, ".cls"])
    table = dataset.table({"duration": ".json/duration", "label": ".cls"})
    durations = table["duration"].to_numpy()
    edges = np.quantile(durations, np.linspace(0, 1, NUM_BUCKETS + 1))[1:]
    batches = wids.BucketBatchSampler(
        # even=False: the batches make ranks equal, and nothing else has to be repeated.
        wids.DistributedChunkedSampler(dataset, even=False),
        np.searchsorted(edges, durations),
        lambda bucket: max(1, int(BUDGET_S / edges[bucket])),
    )
    loader = DataLoader(
        dataset,
        batch_sampler=wids.Prefetcher(batches, dataset),  # downloads remote shards ahead of time
        collate_fn=functools.partial(wids.collate, pad={field: 0.0}),
        num_workers=options.num_workers,
    )
    model = DistributedDataParallel(Recognizer(int(table["label"].to_numpy().max()) + 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(options.epochs):
        batches.set_epoch(epoch)
        num_right = num_sounds = num_padded = num_frames = 0
        for batch in loader:
            sounds, _ = batch[field]
            lengths = batch["__lengths__"][field]
            scores = model(sounds, lengths)
            loss = nn.functional.cross_entropy(scores, batch[".cls"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            num_right += int((scores.argmax(dim=1) == batch[".cls"]).sum())
            num_sounds += len(sounds)
            num_padded += sounds.shape[0] * sounds.shape[2] - int(lengths.sum())
            num_frames += sounds.shape[0] * sounds.shape[2]
        if dist.get_rank() == 0:
            print(
                f"epoch {epoch}: {num_right / num_sounds:.0%} right, "
                f"{num_padded / num_frames:.0%} padding",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
