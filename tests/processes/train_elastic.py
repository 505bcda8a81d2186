"""Train on any number of ranks, and log the samples of each step (see `test_elastic_jobs.py`)."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

import wids

parser = argparse.ArgumentParser()
parser.add_argument("spec")
parser.add_argument("--checkpoint", type=Path)
parser.add_argument("--trace", type=Path)
parser.add_argument("--peers", type=int, default=1, help="processes that hold parts of one model")
parser.add_argument("--redeal", action="store_true")
options = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
dataset = wids.ShardListDataset(
    options.spec, transformations="torch", fields=[".cls"], on_error="skip", access="download"
)
shape = dist.get_world_size() // options.peers, options.peers
mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
sampler = wids.DistributedChunkedSampler(
    dataset, chunksize=100, redeal=options.redeal, mesh=mesh["dp"]
)
loader = DataLoader(dataset, batch_size=4, sampler=wids.Prefetcher(sampler, dataset), num_workers=1)
step = 0
if options.checkpoint.exists():
    saved = torch.load(options.checkpoint, weights_only=True)
    sampler.load_state_dict(saved["sampler"])
    step = saved["step"]
for epoch in range(sampler.epoch, 2):
    sampler.set_epoch(epoch)
    for num_batches, batch in enumerate(loader, 1):
        step += 1
        if step > int(os.environ.get("LAST_STEP", sys.maxsize)):
            threading.Event().wait()  # to be killed
        # Logged first: ranks meet below, so a checkpoint has no step that a log lacks.
        line = {"epoch": epoch, "step": step, "indices": batch["__index__"].tolist()}
        with (options.trace / f"{rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        dist.barrier()
        if rank == 0 and step % 5 == 0:
            state = sampler.state_dict(num_consumed=num_batches * 4)
            torch.save({"sampler": state, "step": step}, options.checkpoint.with_suffix(".new"))
            os.replace(options.checkpoint.with_suffix(".new"), options.checkpoint)
dist.barrier()
dist.destroy_process_group()
