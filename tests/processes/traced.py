"""Run an example, and log which samples each of its steps uses.

``EXAMPLE`` names it and ``TRACE`` the folder of the logs. So its arguments are those of its users,
also where a trainer starts its processes itself.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist


def log(epoch: int, step: int, indices: Any) -> None:
    """Note the samples of a step.

    Before it is taken: ranks meet in it, so a checkpoint has no step that a log lacks.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    if step > int(os.environ.get("LAST_STEP", sys.maxsize)):
        threading.Event().wait()  # to be killed
    line = {"epoch": epoch, "step": step, "indices": list(map(int, indices))}
    with Path(os.environ["TRACE"], f"{rank}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def logged(train_step: Callable[..., Any]) -> Callable[..., Any]:
    """Log the batches of a function that a loop calls for each step, with one or a list."""

    def logging_step(*arguments: Any) -> Any:
        loop = sys._getframe(1).f_locals
        step = loop["step"] if "step" in loop else loop["done"]
        batches = arguments[-1] if isinstance(arguments[-1], list) else arguments[-1:]
        log(loop["epoch"], step, [index for batch in batches for index in batch["__index__"]])
        return train_step(*arguments)

    return logging_step


def log_lightning(module: Any) -> None:
    """Log the batches of its module."""
    take = module.Classifier.training_step

    def training_step(self: Any, batch: Any, number: int) -> Any:
        log(self.current_epoch, self.global_step + 1, batch["__index__"])
        return take(self, batch, number)

    module.Classifier.training_step = training_step


def log_transformers(module: Any) -> None:
    """Log the batches of its trainer, whose samples get their indices."""
    take, as_input = module.SamplerTrainer.training_step, module.as_input

    def training_step(self: Any, model: Any, inputs: Any, *others: Any) -> Any:
        log(int(self.state.epoch + 1e-6), self.state.global_step + 1, inputs.pop("index"))
        return take(self, model, inputs, *others)

    module.SamplerTrainer.training_step = training_step
    module.as_input = lambda sample: {**as_input(sample), "index": sample["__index__"]}


def main() -> None:
    """Run the example."""
    example = Path(os.environ["EXAMPLE"])
    sys.path.insert(0, str(example.parent))
    module = importlib.import_module(example.stem)
    if hasattr(module, "train_step"):
        module.train_step = logged(module.train_step)
    elif hasattr(module, "SamplerTrainer"):
        log_transformers(module)
    else:
        log_lightning(module)
    if hasattr(module, "ray"):  # whose workers import it without the log otherwise
        module.ray.cloudpickle.register_pickle_by_value(module)
    module.main()


if __name__ == "__main__":
    main()
