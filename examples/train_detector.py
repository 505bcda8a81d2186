"""Train a detector: pictures with any number of boxes, which a batch has as ragged tensors.

    torchrun --nproc-per-node 2 examples/train_detector.py boxes.json

Samples need ``.jpg`` (or another picture field, ``--field``) of one size, and ``.json`` with
``boxes``, rows of ``[left, top, right, bottom]`` in pixels, and ``labels``, the class of each. The
detector takes what torchvision's take, pictures and a list of targets, so one of those can take its
place.
"""

from __future__ import annotations

import argparse
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import wids

# Each cell of this many pixels may find one box, whose center is in it.
CELL = 8


class Detector(nn.Module):
    """Find boxes by the cells in which their centers are."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in [(3, 16), (16, 32), (32, 64)]:
            layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
        self.seeing = nn.Sequential(*layers, nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())
        self.heads = nn.Conv2d(64, 1 + 4 + num_classes, 1)

    def forward(
        self, pictures: torch.Tensor, targets: list[dict[str, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss, and which boxes were found, of shape (boxes,)."""
        cells = self.heads(self.seeing(pictures / 255 - 0.5)).permute(0, 2, 3, 1)
        wanted, losses, found = torch.zeros(cells.shape[:3]), [], [torch.zeros(0, dtype=torch.bool)]
        for picture, target in enumerate(targets):
            boxes = target["boxes"]
            centers = (boxes[:, :2] + boxes[:, 2:]) / 2
            columns, rows = (centers / CELL).long().unbind(1)
            wanted[picture, rows, columns] = 1
            mine = cells[picture, rows, columns]
            edges = torch.cat([centers, centers], 1) + mine[:, 1:5] * CELL
            losses.append(nn.functional.smooth_l1_loss(edges, boxes, reduction="sum") / CELL)
            losses.append(
                nn.functional.cross_entropy(mine[:, 5:], target["labels"], reduction="sum")
            )
            is_class = mine[:, 5:].argmax(1) == target["labels"]
            found.append(is_class & (mine[:, 0] > 0) & ((edges - boxes).abs().amax(1) < CELL))
        objects = nn.functional.binary_cross_entropy_with_logits(
            cells[..., 0], wanted, reduction="sum"
        )
        return (objects + sum(losses)) / len(pictures), torch.cat(found)


def main() -> None:
    """Train, and print what rank 0 finds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", help="a JSON spec or its URL")
    parser.add_argument("--field", default=".jpg", help="the picture field")
    parser.add_argument("--num-classes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--num-workers", type=int, default=1)
    options = parser.parse_args()

    dist.init_process_group("gloo")  # "nccl" with GPUs
    torch.manual_seed(0)
    dataset = wids.ShardListDataset(
        options.spec, transformations="torch", fields=[options.field, ".json"]
    )
    sampler = wids.DistributedChunkedSampler(dataset, shuffle=True)
    loader = DataLoader(
        dataset,
        batch_size=16,
        sampler=sampler,
        collate_fn=functools.partial(wids.collate, ragged=["boxes", "labels"]),
        num_workers=options.num_workers,
    )
    model = DistributedDataParallel(Detector(options.num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        num_found = num_boxes = 0
        for batch in loader:
            # The rows of each picture again: views, without a copy.
            boxes, labels = (
                batch[".json"][name]["values"].tensor_split(batch[".json"][name]["offsets"][1:-1])
                for name in ("boxes", "labels")
            )
            targets = [
                {"boxes": own.reshape(-1, 4).float(), "labels": classes.long()}
                for own, classes in zip(boxes, labels, strict=True)
            ]
            loss, found = model(batch[options.field], targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            num_found += int(found.sum())
            num_boxes += len(found)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {num_found / num_boxes:.0%} of boxes found", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
