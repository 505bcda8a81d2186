"""``wids create``: write a JSON spec of shards and the dataset index."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wids.cli import server_options, shared
from wids.storage.sizes import count_text

if TYPE_CHECKING:
    from wids.publish.problems import Problem
    from wids.shards.specs.model import ShardSpec


EXAMPLE: Final = (
    "  wids create train-*.tar --output train.json\n"
    "  wids create 'https://example.com/train-{000000..000146}.tar' -o train.json\n"
    "  wids create s3://bucket/train/ -o train.json\n"
    "  wids create shards/ -o train.json --base https://example.com/train/\n"
    "  wids create https://example.com/old.json -o train.json   # its shards, with an index\n"
    "  wids create https://example.com/train/sizes.json --as-stated -o train.json\n"
    "  wids create more-*.tar --append -o train.json\n"
    "  wids create shards/ -o train.json --part 3/16             # on one of 16 machines\n"
    "  wids create shards/ -o train.json --merge                 # after all 16 parts\n"
    "After an interruption, run it again to resume."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "files",
        nargs="+",
        help="shards, patterns, URLs, folders; or one spec, for its shards; - reads names from "
        "standard input",
    )
    parser.add_argument("-o", "--output", default="shardindex.json", help="(%(default)s)")
    parser.add_argument("-n", "--name", help="name of the dataset (default: from the first shard)")
    parser.add_argument(
        "-i", "--info", metavar="FILE", help="file with a description, for the spec"
    )
    parser.add_argument("-b", "--base", help="folder or URL where the shards will be published")
    parser.add_argument(
        "--key-split", choices=["first", "last"], help="dot between key and field (first)"
    )
    parser.add_argument(
        "--repeated",
        choices=["error", "last"],
        default="error",
        help="what members of one name are (error); last describes the last of them",
    )
    shared.add_flag(
        parser, "--append", "add the shards to the end of the dataset that the output describes"
    )
    shared.add_flag(
        parser,
        "--digests",
        "read all bytes of remote shards, for digests and checksums; otherwise only headers are "
        "read where members are large",
    )
    shared.add_flag(
        parser,
        "--as-stated",
        "read no shard: state what a document, or files beside the shards, say (sizes.json, "
        "_info.json, manifest.jsonl, _stats.json, .nv-meta, .idx)",
    )
    parser.add_argument("--split", help="the only split to describe, as Energon or timm named it")
    shared.add_parts(parser)
    shared.add_processes(parser)
    server_options.add_storage(parser)
    shared.add_yes(parser)


def run(options: argparse.Namespace) -> int:
    """Describe the shards and write spec and dataset index."""
    from wids.publish.spec_job import prepare_spec

    problems: list[Problem] = []
    job = prepare_spec(
        _names(options.files),
        options.output,
        storage_options=server_options.storage_options(options),
        split=options.split,
        is_new=not options.append,
        base=options.base,
        key_split=options.key_split,
        repeated=options.repeated,
        digests=options.digests,
        on_cost=partial(shared.ask_consent, options=options, purpose="reading remote shards"),
        name=options.name,
        # An error now, not after all shards were read.
        info=None if options.info is None else Path(options.info).read_text("utf-8"),
        on_problem=partial(_print_problem, problems),
    )
    _check_options(options)
    if options.as_stated:
        shards = job.run_as_stated().shards
        _note_unknown(shards)
    else:
        shards = shared.done(job, options)
    shared.print_counts(options.output, shards, options.part)
    return 1 if any(problem.severity == "error" for problem in problems) else 0


def _check_options(options: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    if options.as_stated:
        names = ["append", "merge", "part", "digests", "key_split"]
        shared.refuse(options, names, "expected it without --as-stated, which reads nothing")
    if options.append:
        text = "expected it without --append"
        shared.refuse(options, ["merge", "part"], f"{text}; create a dataset of the parts")
        shared.refuse(options, ["name", "info"], f"{text}, which keeps what is there")


def _note_unknown(shards: Sequence[ShardSpec]) -> None:
    """Print what a spec lacks whose shards were not read."""
    num_digests = sum(shard.sha256 is None and shard.md5sum is None for shard in shards)
    num_indexes = sum(shard.index is None for shard in shards)
    texts = [
        f"the {what} of {count_text(count, 'shard')}"
        for what, count in (("digests", num_digests), ("indexes", num_indexes))
        if count
    ]
    unknown = ", ".join([*texts, "the checksums of all members"])
    shared.print_note(f"no shard was read; not known: {unknown}; without --as-stated they are read")


def _names(names: list[str]) -> list[str]:
    """Return the names in the arguments, or those on standard input."""
    if names == ["-"]:
        names = [line.strip() for line in sys.stdin if line.strip()]
        if not names:
            raise FileNotFoundError("standard input: expected shards, found none")
    return names


def _print_problem(problems: list[Problem], problem: Problem) -> None:
    """Print what is wrong with the dataset, or a remark on it, and note it."""
    problems.append(problem)
    shared.print_problem(problem)
