"""The ``wids`` command: parse, call, print.

Results go to standard output, errors and progress to standard error. The exit status is 0, 1 where
a problem was found, or 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from subprocess import TimeoutExpired

import wids
from wids.errors import WidsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; give its exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except (WidsError, OSError) as error:
        print(f"wids: {error}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wids", description="Indexed random access to datasets stored as tar shards."
    )
    parser.add_argument("--version", action="version", version=f"wids {wids.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="make a small dataset and run one exact epoch over it in two processes",
        description="Make a small dataset of pictures, captions and labels, show one sample, and "
        "run one exact epoch over it in two processes. Ends with status 1 if the epoch was not "
        "exact.",
    )
    demo.add_argument("folder", nargs="?", default="wids-demo", help="where to write (%(default)s)")
    demo.add_argument(
        "--sampler",
        metavar="MODULE:NAME",
        help="try this sampler instead: a callable that takes the dataset",
    )
    demo.set_defaults(run=_demo)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from wids import demo

    spec_path = demo.write_dataset(options.folder)
    print(f"wrote {demo.NUM_SHARDS} shards and {spec_path}\n")
    print(demo.describe_sample(spec_path, 123), end="\n\n")
    print("one epoch, two processes, a DataLoader with two workers in each …", flush=True)
    try:
        report = demo.run_epoch(spec_path, options.sampler or demo.DEFAULT_SAMPLER)
    except (RuntimeError, TimeoutExpired) as error:
        print(f"wids: {error}", file=sys.stderr)
        return 1
    print(report.table())
    if not (report.is_complete and report.is_even):
        print("\nThis epoch was not exact: look at the sampler.")
        return 1
    print(
        "\nNext, in Python:\n"
        "    import wids\n"
        f"    dataset = wids.ShardListDataset({spec_path!r})\n"
        "    dataset[123]"
    )
    return 0
