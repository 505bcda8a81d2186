"""Train with Ray Train, exact to the sample, even if workers or the whole job are killed.

    pip install 'ray[train]'
    wids demo
    python examples/train_ray.py wids-demo/shapes.json --storage ray-results

Kill it and restart it: it resumes from the last checkpoint and uses the same samples as without the
kill. If only a worker dies, Ray starts all workers again from that checkpoint. On a cluster, start
it with the address of the cluster in ``RAY_ADDRESS``, and with a spec and a storage that all
machines see.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchTrainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import wids

# The epoch is cut into this many runs. The number of workers must divide it.
NUM_CANONICAL = 12
# Samples per step, over all workers.
GLOBAL_BATCH_SIZE = 48


def main() -> None:
    """Start the workers, which train from the last checkpoint in the storage if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", help="a JSON spec or its URL; samples need .jpg and .cls")
    parser.add_argument("--storage", default="ray-results", help="folder or URL for checkpoints")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-replicas", type=int, default=2)
    parser.add_argument("--num-workers", type=int, default=1, help="of each DataLoader")
    options = parser.parse_args()
    settings = vars(options)
    for name in ("spec", "storage"):  # workers have folders of their own
        if "://" not in settings[name]:
            settings[name] = os.path.abspath(settings[name])

    if "RAY_ADDRESS" not in os.environ:
        ray.init(include_dashboard=False)  # on this machine
    trainer = TorchTrainer(
        train,
        train_loop_config=settings,
        scaling_config=ray.train.ScalingConfig(num_workers=options.num_replicas),
        run_config=ray.train.RunConfig(
            name="shapes",  # a run of the same name resumes
            storage_path=settings["storage"],
            failure_config=ray.train.FailureConfig(max_failures=3),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    trainer.fit()


def train(settings: dict[str, Any]) -> None:
    """Train on one worker, in the process group that Ray has made."""
    rank, num_replicas = dist.get_rank(), dist.get_world_size()
    dataset = wids.ShardListDataset(settings["spec"], transformations="torch")
    sampler = wids.DistributedChunkedSampler(dataset, num_canonical=NUM_CANONICAL)
    # Not `ray.train.torch.prepare_data_loader`, which would replace the sampler.
    loader = DataLoader(
        dataset,
        batch_size=GLOBAL_BATCH_SIZE // num_replicas,
        sampler=wids.Prefetcher(sampler, dataset),  # downloads remote shards ahead of time
        num_workers=settings["num_workers"],
        persistent_workers=settings["num_workers"] > 0,
    )
    network = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0

    saved = ray.train.get_checkpoint()
    if saved:
        with saved.as_directory() as folder:
            checkpoint = torch.load(Path(folder, "checkpoint.pt"), weights_only=True)
        network.load_state_dict(checkpoint["network"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        sampler.load_state_dict(checkpoint["sampler"])
        step = checkpoint["step"]

    for epoch in range(sampler.epoch, settings["epochs"]):  # after a restore, the one to resume
        sampler.set_epoch(epoch)
        for num_batches, batch in enumerate(loader, 1):
            step += 1
            loss = train_step(model, optimizer, batch)
            if step % settings["save_every"] == 0:
                checkpoint = {
                    "network": network.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    # Workers run ahead of training, so training states how many samples it used.
                    "sampler": sampler.state_dict(num_consumed=num_batches * loader.batch_size),
                    "step": step,
                }
                report(checkpoint if rank == 0 else None, step, loss.item())


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Train on a batch, and return its loss."""
    loss = nn.functional.cross_entropy(model(batch[".jpg"] / 255), batch[".cls"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def report(checkpoint: dict[str, Any] | None, step: int, loss: float) -> None:
    """Have Ray store a checkpoint of one worker; all workers have to report."""
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint is not None:
            torch.save(checkpoint, Path(folder, "checkpoint.pt"))
        stored = None if checkpoint is None else ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": step, "loss": loss}, checkpoint=stored)


if __name__ == "__main__":
    main()
