"""``wids demo``: a small dataset, one sample, and one exact epoch in two processes.

The library itself writes, describes and reads the dataset. The report is computed from the
``__index__`` values that the DataLoaders returned, so that a wrong sampler is noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import wids
from wids.cli.shared import named_object

EXAMPLE: Final = "  wids demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = textwrap.fill(
        "Make a small dataset of pictures, captions and labels, show one sample, and run one exact "
        "epoch over it in two processes. The exit status is 1 if the epoch was not exact."
    )
    parser.add_argument(
        "folder", nargs="?", default="wids-demo", help="where to write (%(default)s)"
    )
    parser.add_argument(
        "--sampler",
        metavar="MODULE:NAME",
        default="wids:DistributedChunkedSampler",
        help="try this sampler instead: a callable that takes the dataset",
    )


def run(options: argparse.Namespace) -> int:
    """Run the demo; return 1 if the epoch was not exact."""
    from wids.look.text import sample_text

    spec_path = write_dataset(options.folder)
    print(f"wrote {NUM_SHARDS} shards and {spec_path}\n")
    with wids.ShardListDataset(spec_path, transformations=None, raw="bytes") as dataset:
        text = sample_text(dataset[123], 80, dataset.classes)
        print(f"dataset[123] of {len(dataset)}:\n{text}\n")
    print("one epoch, two processes, a DataLoader with two workers in each …", flush=True)
    try:
        report, is_exact = run_epoch(spec_path, options.sampler)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"wids: {error}", file=sys.stderr)
        return 1
    print(report)
    if not is_exact:
        print("\nThis epoch was not exact: look at the sampler.")
        return 1
    print(_next_steps(spec_path))
    return 0


def _next_steps(spec_path: str) -> str:
    """Return what to do with the dataset, as commands and as Python."""
    spec = shlex.quote(spec_path)
    commands = (f"browse {spec}", f"info {spec}", f"sample {spec} 123", "pack FOLDER -o train")
    width = max(map(len, commands))
    browse, info, sample, pack = (f"    wids {command:{width}}  #" for command in commands)
    return f"""
Next:
{browse} look at it in a browser
{info} what is in it
{sample} one sample, by number or key
{pack} shards of your own files

In Python:
    import wids
    dataset = wids.ShardListDataset({spec_path!r})
    dataset[123]"""


NUM_SHARDS: Final = 4

_COLORS: Final = ("red", "green", "blue", "yellow", "purple")
_SHAPES: Final = ("circle", "square", "triangle", "cross")


def write_dataset(folder: str) -> str:
    """Write the demo's shards, index and spec into a folder; return the path of the spec.

    Raises:
        OSError: The folder cannot be made or written to.
    """
    pattern = os.path.join(folder, "shapes-%06d.tar")
    try:
        os.makedirs(folder, exist_ok=True)
        with wids.ShardWriter(pattern, maxcount=250, if_exists="replace") as writer:
            for number in range(250 * NUM_SHARDS):
                writer.write(_sample(number))
    except OSError as error:
        if error.strerror is None:  # one that says it all
            raise
        raise OSError(
            f"{folder or repr(folder)}: expected a folder to write a dataset to, found one that "
            f"cannot be made or written to ({error.strerror}); name another folder"
        ) from error
    spec_path = os.path.join(folder, "shapes.json")
    spec = wids.load_spec(spec_path)
    replace(spec, extras={**spec.extras, "classes": list(_SHAPES)}).save(spec_path)
    return spec_path


def _sample(number: int) -> dict[str, Any]:
    color = _COLORS[number % len(_COLORS)]
    label = number // len(_COLORS) % len(_SHAPES)
    return {
        "__key__": f"{number:06d}",
        ".jpg": _picture(color, _SHAPES[label], 8 + number % 17),
        ".txt": f"a {color} {_SHAPES[label]}",
        ".cls": label,
    }


def _picture(color: str, shape: str, radius: int) -> Any:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (64, 64), "white")
    draw, start, stop = ImageDraw.Draw(image), 32 - radius, 32 + radius
    if shape == "cross":
        draw.line((start, 32, stop, 32), color, radius // 2)
        draw.line((32, start, 32, stop), color, radius // 2)
    else:
        sides = {"circle": 99, "square": 4, "triangle": 3}[shape]
        draw.regular_polygon((32, 32, radius), sides, fill=color)
    return image


def epoch_report(num_samples: int, batches: list[list[list[int]]]) -> tuple[str, bool]:
    """Return what the DataLoaders of an epoch returned as text, and whether it was exact.

    Args:
        num_samples: Samples in the dataset.
        batches: For each rank, for each batch, the ``__index__`` of every sample in it.
    """
    seen = Counter(chain.from_iterable(chain.from_iterable(batches)))
    repeated = sum(count > 1 for count in seen.values())
    exactly = f"exactly once ({num_samples - len(seen)} missing, {repeated} repeated)"
    is_good = seen == Counter(range(num_samples)), len(set(map(len, batches))) == 1
    yes = ["yes:" if each else "NO: " for each in is_good]
    ranks = [
        f"rank {number}: {len(rank)} batches, {sum(map(len, rank))} samples"
        for number, rank in enumerate(batches)
    ]
    lines = [
        *ranks,
        f"{yes[0]} each of the {num_samples} samples {exactly}",
        f"{yes[1]} the same number of batches on every rank",
    ]
    return "\n".join(lines), all(is_good)


def run_epoch(spec_path: str, sampler: str) -> tuple[str, bool]:
    """Run one epoch over a spec in two processes, started by ``torchrun``; return its report.

    Args:
        spec_path: The JSON spec.
        sampler: ``MODULE:NAME`` of a callable that returns a rank's sampler for the dataset.

    Raises:
        RuntimeError: The processes failed; the message has the end of their output.
        subprocess.TimeoutExpired: They took longer than five minutes.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--local-addr", "127.0.0.1", "--nproc-per-node", "2"),
            *("-m", "wids.cli.demo_command", os.path.abspath(spec_path), sampler, folder),
        ]
        # One thread each, as torchrun would choose with a warning.
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        options: Any = {"capture_output": True, "text": True, "timeout": 300}
        result = subprocess.run(command, env=environment, check=False, **options)
        if result.returncode:
            # The end of the output, where Python puts the error.
            raise RuntimeError(f"the epoch's processes failed:\n{result.stderr[-4000:]}")
        texts = [Path(folder, str(rank)).read_text("utf-8") for rank in range(2)]
    with wids.ShardListDataset(spec_path) as dataset:
        return epoch_report(len(dataset), list(map(json.loads, texts)))


def _run_rank(spec_path: str, sampler: str, folder: str) -> None:
    """Read one rank's share of the epoch, and write it into a file of the rank."""
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    # gloo needs no GPU, so the demo runs on any machine.
    dist.init_process_group("gloo")
    dataset = wids.ShardListDataset(spec_path, transformations="torch")
    loader = DataLoader(
        dataset,
        batch_size=25,
        sampler=named_object(sampler, "--sampler", "sampler")(dataset),
        num_workers=2,
    )
    # What the loader returned, not what the sampler says, so that a lost batch is noticed.
    batches = [batch["__index__"].tolist() for batch in loader]
    Path(folder, str(dist.get_rank())).write_text(json.dumps(batches), "utf-8")
    dist.barrier()
    # Not by `destroy_process_group`: with torch 2.2 a rank whose peer has left already may hang in
    # it, and without it gloo may abort at the end of Python.
    os._exit(0)


if __name__ == "__main__":
    _run_rank(*sys.argv[1:])
