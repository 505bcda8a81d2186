"""``wids verify``: compare shards with their spec, and print a line for each problem."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import Final

import wids
from wids.cli import server_options, shared
from wids.errors import printable
from wids.storage.sizes import count_text
from wids.storage.transport import urls

EXAMPLE: Final = (
    "  wids verify train.json\n  wids verify --decode train.json || echo do not train on this\n"
    "  wids verify --decode --json train.json | jq -r '.keys[]'"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    shared.add_spec(parser)
    parser.add_argument("--decode", action="store_true", help="decode every field too")
    shared.add_flag(parser, "--json", "one JSON object for each problem, with the keys of samples")
    shared.add_processes(parser)
    shared.add_reading(parser)
    shared.add_yes(parser)


def run(options: argparse.Namespace) -> int:
    """Print the problems; return 1 if there are any."""
    from wids.publish.executors import process_pool
    from wids.storage.remote_lengths import known_sum

    spec = shared.loaded_spec(options.spec, options)
    with process_pool(options.jobs) as executor:
        problems = wids.verify_spec(
            spec,
            decode=options.decode,
            executor=executor,
            on_cost=partial(shared.ask_consent, options=options, purpose="reading remote shards"),
            on_remark=shared.print_problem,
            storage_options=server_options.storage_options(options),
        )
    for problem in problems:
        print(json.dumps(vars(problem)) if options.json else printable(str(problem)))
    if problems:
        return 1
    text = count_text(len(spec.shards), "shard")
    num_samples = known_sum(shard.num_samples for shard in spec.shards)
    if num_samples is not None:
        text += f", {count_text(num_samples, 'sample')}"
    # Standard output has the problems alone, so that it is empty where there are none.
    print(f"{urls.redact(options.spec)}: {text}: no problems", file=sys.stderr)
    return 0
