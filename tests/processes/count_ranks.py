"""One rank of a job whose ranks may find different shards: python count_ranks.py FOLDER."""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import wids


def say(line: str) -> None:
    """Write a line at once, so that ranks do not write into each other's."""
    os.write(1, f"{line}\n".encode())


def open_by_mesh(folder: Path, rank: int, mesh: DeviceMesh) -> None:
    """Do the same with a mesh that has a part of the processes."""
    for name in ("same", "different"):
        own = folder / name / str(rank)
        dataset = wids.ShardListDataset([own / "a.tar", own / "b.tar"], on_error="skip")
        if rank == 2:
            time.sleep(1)  # rank 1 compares first, and must not take an earlier answer for this
        try:
            say(f"{name} {rank}: {len(wids.DistributedChunkedSampler(dataset, mesh=mesh))} steps")
        except wids.MismatchError as error:
            say(f"{name} {rank}: {error}")


def main(folder: Path) -> None:
    """Open shards that rank 1 may lack, and print what became of a sampler over them."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if dist.get_world_size() == 3:  # the first serves, the others train
        mesh = DeviceMesh("cpu", [[1], [2]], mesh_dim_names=("dp", "tp"))
        if rank:
            open_by_mesh(folder, rank, mesh["dp"])
        dist.destroy_process_group()
        return
    for name in ("same", "different"):
        own = folder / name / str(rank)
        for shards in ([own / "a.tar", own / "b.tar"], [(own / "a.tar", 4), (own / "b.tar", 4)]):
            dataset = wids.ShardListDataset(list(shards), on_error="skip")
            for replication in (None, 2):
                label = "shared " * bool(replication) + name
                try:
                    sampler = wids.DistributedChunkedSampler(dataset, replication=replication)
                    say(f"{label} {rank}: {len(sampler)} steps")
                except wids.MismatchError as error:
                    say(f"{label} {rank}: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
