"""A training loop over a mix, of which only the samples matter: it logs them, and can be killed.

    torchrun --nproc-per-node 2 tests/processes/train_mix.py SPEC FOLDER --epochs 2

It writes ``RANK.jsonl`` and ``state.json`` to the folder, and resumes from the latter.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import wids

NUM_CANONICAL = 6
GLOBAL_BATCH_SIZE = 24
OPTIONS: dict[str, Any] = {"num_canonical": NUM_CANONICAL, "num_samples": 2400, "chunksize": 50}


def main() -> None:
    """Use the samples of all epochs, from a state if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--weights", type=json.loads)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, num_replicas = dist.get_rank(), dist.get_world_size()

    dataset = wids.ShardListDataset(options.spec, fields=[".cls"])
    sampler = wids.MixedSampler(dataset, options.weights, **OPTIONS)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=GLOBAL_BATCH_SIZE // num_replicas,
        sampler=wids.Prefetcher(sampler, dataset),
        num_workers=options.num_workers,
        persistent_workers=options.num_workers > 0,
    )
    saved, step = options.folder / "state.json", 0
    if saved.exists():
        state = json.loads(saved.read_text())
        sampler.load_state_dict(state["sampler"])
        step = state["step"]
    log = options.folder / f"{rank}.jsonl"

    for epoch in range(sampler.epoch, options.epochs):
        sampler.set_epoch(epoch)
        for num_batches, batch in enumerate(loader, 1):
            step += 1
            if step > int(os.environ.get("LAST_STEP", sys.maxsize)):
                threading.Event().wait()  # to be killed
            line = {"epoch": epoch, "step": step, "indices": batch["__index__"].tolist()}
            with log.open("a") as file:
                file.write(json.dumps(line) + "\n")
            # As in training, no rank is more than a step ahead, and no state has a step that a log
            # lacks.
            dist.all_reduce(torch.ones(1))
            if rank == 0 and step % 8 == 0:
                state = sampler.state_dict(num_consumed=num_batches * loader.batch_size)
                temporary = saved.with_suffix(".new")
                temporary.write_text(json.dumps({"sampler": state, "step": step}))
                os.replace(temporary, saved)
    dist.barrier()  # as the examples do
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
