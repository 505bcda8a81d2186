"""Train with grain, whose datasets JAX programs read, in the order of a wids sampler.

    pip install grain
    wids demo
    python examples/train_grain.py wids-demo/shapes.json --checkpoint shapes.json

Kill it and restart it: it resumes with the batch after the checkpoint. Of several processes, each
states its number; with JAX these are ``jax.process_index()`` and ``jax.process_count()``. They take
steps together, so process 0 saves for all, and any number of processes resumes:

    python examples/train_grain.py wids-demo/shapes.json --process 0 --processes 2 &
    python examples/train_grain.py wids-demo/shapes.json --process 1 --processes 2
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import grain
import numpy as np

import wids

BATCH_SIZE = 24


def main() -> None:
    """Train, from a checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", help="a JSON spec or its URL; samples need .jpg and .cls")
    parser.add_argument("--checkpoint", type=Path, help="file to save to and resume from")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-workers", type=int, default=0, help="processes that read ahead")
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()

    dataset = wids.ShardListDataset(
        options.spec, transformations="rgb8", fields=[".jpg", ".cls"]
    ).map(as_arrays)
    sampler = wids.DistributedChunkedSampler(
        dataset, rank=options.process, num_replicas=options.processes
    )
    weights = np.zeros((3 * 8 * 8, 4))
    step, loss = 0, float("nan")
    if options.checkpoint and options.checkpoint.exists():
        saved = json.loads(options.checkpoint.read_text())
        step, weights = saved["step"], np.array(saved["weights"])
        sampler.load_state_dict(saved["sampler"])

    for epoch in range(sampler.state_dict()["epoch"], options.epochs):
        sampler.set_epoch(epoch)
        state, num_used = sampler.state_dict(), 0
        # What is left of the epoch, pickled in a few kB, so that each worker of grain has it.
        order = sampler.indices(epoch)[state["position"] // options.processes :]
        # One read for all samples of a batch, so that ranges of remote ones are in flight together.
        numbers: Any = grain.MapDataset.source(order).batch(BATCH_SIZE, batch_fn=list)
        batches = numbers.map(dataset.__getitems__).map(stacked).to_iter_dataset()
        if options.num_workers:
            workers = grain.MultiprocessingOptions(num_workers=options.num_workers)
            batches = batches.mp_prefetch(workers)
        for batch in batches:
            step += 1
            loss = train_step(weights, batch)
            num_used += len(batch["label"])
            if options.checkpoint and not options.process and step % options.save_every == 0:
                position = state["position"] + num_used * options.processes
                new = {"step": step, "weights": weights.tolist()}
                new["sampler"] = {**state, "position": position}
                temporary = options.checkpoint.with_suffix(".new")
                temporary.write_text(json.dumps(new))
                os.replace(temporary, options.checkpoint)
        print(f"epoch {epoch}: step {step}, loss {loss:.3f}", flush=True)


def as_arrays(sample: dict[str, Any]) -> dict[str, Any]:
    """Return what a batch is made of: a picture of 8 x 8 pixels, its class and its index."""
    pixels = sample[".jpg"].reshape(8, 8, 8, 8, 3).mean((1, 3)) / 255
    return {"pixels": pixels.ravel(), "label": sample[".cls"], "__index__": sample["__index__"]}


def stacked(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a batch of arrays."""
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def train_step(weights: np.ndarray[Any, Any], batch: dict[str, Any]) -> float:
    """Train a linear model on a batch, in place, and return its loss."""
    inputs, labels = batch["pixels"], batch["label"]
    scores = np.exp(inputs @ weights)
    chances = scores / scores.sum(1, keepdims=True)
    loss = -np.log(chances[range(len(labels)), labels]).mean()
    chances[range(len(labels)), labels] -= 1
    weights -= 0.1 / len(labels) * inputs.T @ chances
    return float(loss)


if __name__ == "__main__":
    main()
