"""``wids diff``: compare the samples of two datasets by their indexes, without reading shards."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Final

import wids
from wids.cli.server_options import storage_options
from wids.cli.shared import add_flag, add_reading
from wids.errors import printable
from wids.storage.transport import urls

EXAMPLE: Final = (
    "  wids diff train.json train-2.json\n"
    "  wids diff train.json train-2.json --json | jq -r '.removed[]'"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("old", help="a JSON spec or its URL, whose dataset index has checksums")
    parser.add_argument("new", help="another one")
    add_flag(parser, "--json", "print one JSON object: lists of keys, and the number of the rest")
    add_reading(parser)


def run(options: argparse.Namespace) -> int:
    """Print the key of each sample that differs; return 1 if there are any."""
    old, new, servers = options.old, options.new, storage_options(options)
    diff = wids.diff_specs(old, new, allow_pipe=options.allow_pipe, storage_options=servers)
    if options.json:
        print(json.dumps(vars(diff)))
    else:
        for mark, keys in (("-", diff.removed), ("~", diff.changed), ("+", diff.added)):
            sys.stdout.writelines(f"{mark} {printable(key)}\n" for key in keys)
    # Standard output has the differences alone, so that it is empty where there are none.
    print(
        f"{urls.redact(old)}, {urls.redact(new)}: {len(diff.removed):,} removed, "
        f"{len(diff.changed):,} changed, {len(diff.added):,} added, {diff.num_same:,} the same",
        file=sys.stderr,
    )
    return 0 if diff.is_empty else 1
