"""Train a transformer on packed batches: documents of any length, joined up to a number of tokens.

    torchrun --nproc-per-node 2 examples/train_packed.py texts.json --checkpoint texts.pt

Samples need ``.npy`` with the numbers of their tokens; docs/packed.md shows how to write them. Kill
it and restart it on 1, 2, 3 or 6 processes: it resumes from the checkpoint, and takes the same
steps as without the kill. A step uses six batches, whatever the number of processes, and each token
counts the same in it.
"""

from __future__ import annotations

import argparse
import functools
import os
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import wids

# The epoch is cut into this many runs, and a step has a batch of each. The number of processes must
# divide it.
NUM_CANONICAL = 6
MAX_TOKENS = 256
VOCABULARY = 64


class Transformer(nn.Module):
    """Predict the next token of each document, with one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 32)
        self.positions = nn.Embedding(MAX_TOKENS, 32)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=True)
        self.scores = nn.Linear(32, VOCABULARY)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return scores of shape (1, tokens, vocabulary); documents do not see each other."""
        documents = batch["document_ids"][0]
        is_seen = (documents[:, None] == documents).tril()
        inputs = self.tokens(batch["input_ids"]) + self.positions(batch["position_ids"])
        return self.scores(self.layer(inputs, ~is_seen))


def main() -> None:
    """Train, from a checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", help="a JSON spec or its URL; samples need .npy")
    parser.add_argument("--checkpoint", type=Path, help="file to save to and resume from")
    parser.add_argument("--save-every", type=int, default=4, metavar="STEPS")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-workers", type=int, default=2)
    options = parser.parse_args()

    dist.init_process_group("gloo")  # "nccl" with GPUs
    rank, num_replicas = dist.get_rank(), dist.get_world_size()

    dataset = wids.ShardListDataset(options.spec, fields=[".npy"])
    # The index knows how many bytes each array has; all have the same type and length of header.
    first = dataset[0][".npy"]
    nbytes = np.array([dataset.member(n, ".npy")[2] for n in range(len(dataset))])
    lengths = (nbytes - nbytes[0]) // first.itemsize + len(first)
    batches = wids.PackedBatchSampler(
        # even=False: the batches make ranks equal, and nothing else has to be repeated.
        wids.DistributedChunkedSampler(dataset, num_canonical=NUM_CANONICAL, even=False),
        lengths,
        MAX_TOKENS,
    )
    loader = DataLoader(
        dataset,
        batch_sampler=wids.Prefetcher(batches, dataset),  # downloads remote shards ahead of time
        num_workers=options.num_workers,
        collate_fn=functools.partial(wids.collate_packed, shift_labels=True),
    )
    torch.manual_seed(0)
    network = Transformer()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step = 0

    if options.checkpoint and options.checkpoint.exists():
        checkpoint = torch.load(options.checkpoint, weights_only=True)
        network.load_state_dict(checkpoint["network"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        batches.load_state_dict(checkpoint["batches"])
        step = checkpoint["step"]

    num_batches = NUM_CANONICAL // num_replicas  # of this rank in each step
    for epoch in range(batches.epoch, options.epochs):  # after a restore, the epoch to resume
        batches.set_epoch(epoch)
        used, arriving = 0, iter(loader)
        while taken := list(islice(arriving, num_batches)):
            step += 1
            used += len(taken)
            loss = train_step(model, optimizer, taken)
            if options.checkpoint and rank == 0 and step % options.save_every == 0:
                # Workers run ahead of training, so training states how many batches it has used.
                state = batches.state_dict(num_consumed=used)
                save(options.checkpoint, network, optimizer, state, step)
        if rank == 0:
            print(f"epoch {epoch}: step {step}, loss {loss:.3f}; {batches!r}", flush=True)
    if options.checkpoint and rank == 0:
        save(options.checkpoint, network, optimizer, batches.state_dict(), step)
    # Until no thread of gloo still holds what it reduced: one that lets go of it while Python ends
    # aborts the process.
    dist.barrier()
    dist.destroy_process_group()


def train_step(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    batches: list[dict[str, torch.Tensor]],
) -> float:
    """Train on this rank's batches of a step, and return the mean loss of the tokens of all."""
    num_tokens = sum((batch["labels"] != -100).sum() for batch in batches)
    dist.all_reduce(num_tokens)
    total = torch.zeros(())
    optimizer.zero_grad()
    for number, batch in enumerate(batches, 1):
        is_last = number == len(batches)
        with nullcontext() if is_last else model.no_sync():  # gradients are reduced once
            scores = model(batch)[0]
            loss = nn.functional.cross_entropy(scores, batch["labels"][0], reduction="sum")
            # The model takes the mean of the gradients of all ranks: this makes it their sum.
            (loss * dist.get_world_size() / num_tokens).backward()
        total += loss.detach() / num_tokens
    optimizer.step()
    dist.all_reduce(total)
    return total.item()


def save(
    path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, batches: dict, step: int
) -> None:
    """Replace the checkpoint atomically, so that a kill leaves the old one or the new one."""
    checkpoint = {
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "batches": batches,  # that of any rank
        "step": step,
    }
    temporary = path.with_suffix(".new")
    torch.save(checkpoint, temporary)
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
