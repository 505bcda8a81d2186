"""Read packed batches on any number of ranks, and log them (see `test_packed_training.py`).

The model is sharded by FSDP2, and its checkpoints are those of ``torch.distributed.checkpoint``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import wids

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint", type=Path)
parser.add_argument("--trace", type=Path)
options = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
lengths = np.repeat([3, 9, 30, 50], 500)  # four sources, one after another
sampler = wids.DistributedChunkedSampler(range(len(lengths)), chunksize=50)
batches = wids.PackedBatchSampler(sampler, lengths, 200, window=16)
model = torch.nn.Linear(8, 8)
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
step = torch.zeros((), dtype=torch.int64)
whole = {"model": get_model_state_dict(model), "sampler": batches, "step": step}
newest = max(options.checkpoint.glob("step-*"), default=None, key=lambda path: int(path.name[5:]))
if newest is not None:
    dcp.load(whole, checkpoint_id=newest)
    set_model_state_dict(model, whole["model"])
for batch in batches:
    step += 1
    if step > int(os.environ.get("LAST_STEP", sys.maxsize)):
        threading.Event().wait()  # to be killed
    line = {"epoch": 0, "step": int(step), "indices": batch}
    with (options.trace / f"{rank}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    model(torch.ones(1, 8)).sum().backward()  # the ranks meet here
    if step % 5 == 0:
        dcp.save(whole, checkpoint_id=options.checkpoint / f"writing-{step}")
        if rank == 0:
            (options.checkpoint / f"writing-{step}").rename(options.checkpoint / f"step-{step}")
        dist.barrier()
dist.barrier()
dist.destroy_process_group()
