"""``wids update``: change the name, description or base in a JSON spec."""

from __future__ import annotations

import argparse
from typing import Final

EXAMPLE: Final = (
    "  wids update train.json --name train-2026 --base https://example.com/train/\n"
    "  wids update train.json --rebase"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("filename", help="a local JSON spec")
    parser.add_argument("-n", "--name", default="", help="set the name of the dataset")
    parser.add_argument("-i", "--info", default="", help="set its description")
    parser.add_argument("-b", "--base", default="", help="set the folder or URL of its shards")
    parser.add_argument(
        "-B",
        "--rebase",
        action="store_true",
        help="make the folder that all shards are in the base",
    )
    parser.add_argument(
        "-d", "--dir", default="", help="state that the shards are in this folder or URL"
    )
    parser.add_argument(
        "-D", "--nodir", action="store_true", help="remove the folder from the names of shards"
    )
    parser.add_argument("-k", "--keep", action="store_true", help="set the keep flag")
    parser.add_argument("-K", "--nokeep", action="store_true", help="clear the keep flag")


def run(options: argparse.Namespace) -> int:
    """Change the spec."""
    from wids.shards.specs.saving import edit_spec

    edit_spec(
        options.filename,
        name=options.name or None,
        info=options.info or None,
        base=options.base or None,
        keep=options.keep if options.keep or options.nokeep else None,
        rebase=options.rebase,
        folder=options.dir or ("" if options.nodir else None),
    )
    return 0
