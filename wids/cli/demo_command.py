"""``wids demo``: a small dataset, one sample, and one exact epoch in two processes."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from typing import Final

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
        help="try this sampler instead: a callable that takes the dataset",
    )


def run(options: argparse.Namespace) -> int:
    """Run the demo; return 1 if the epoch was not exact."""
    from subprocess import TimeoutExpired

    from wids.cli import demo_shapes

    spec_path = demo_shapes.write_dataset(options.folder)
    print(f"wrote {demo_shapes.NUM_SHARDS} shards and {spec_path}\n")
    print(demo_shapes.describe_sample(spec_path, 123), end="\n\n")
    print("one epoch, two processes, a DataLoader with two workers in each …", flush=True)
    try:
        report = demo_shapes.run_epoch(spec_path, options.sampler or demo_shapes.DEFAULT_SAMPLER)
    except (RuntimeError, TimeoutExpired) as error:
        print(f"wids: {error}", file=sys.stderr)
        return 1
    print(report.table())
    if not (report.is_complete and report.is_even):
        print("\nThis epoch was not exact: look at the sampler.")
        return 1
    print(_next_steps(spec_path))
    return 0


def _next_steps(spec_path: str) -> str:
    """Return what to do with the dataset, as commands and as Python."""
    spec = shlex.quote(spec_path)
    commands = {
        f"wids browse {spec}": "look at it in a browser",
        f"wids info {spec}": "what is in it",
        f"wids sample {spec} 123": "one sample, by number or key",
        "wids pack FOLDER -o train": "shards of your own files",
    }
    width = max(map(len, commands))
    lines = (f"    {command:{width}}  # {what}\n" for command, what in commands.items())
    return (
        f"\nNext:\n{''.join(lines)}"
        "\nIn Python:\n"
        "    import wids\n"
        f"    dataset = wids.ShardListDataset({spec_path!r})\n"
        "    dataset[123]"
    )
