"""``wids bench``: read a dataset as training would, and show where the time goes."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from wids.cli import shared

if TYPE_CHECKING:
    from wids.dataset.shard_list import ShardListDataset

EXAMPLE: Final = (
    "  wids bench train.json\n"
    "  wids bench s3://bucket/train.json --batch-size 256 --workers 4,8,16 --access range\n"
    "  wids bench train.json --where '.json/height >= 256' --fields jpg,cls --json\n"
    "  wids bench mytraining:make_loader      # of mytraining.py: a dataset, a loader, or a\n"
    "                                         # function that returns one"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "spec", help="a JSON spec or its URL, a .tar, a pattern, a folder; or MODULE:DATASET"
    )
    parser.add_argument("--batch-size", type=shared.positive, help="samples in a batch (64)")
    parser.add_argument("--workers", metavar="LIST", type=_numbers, help="such as 0,1,2,4 (these)")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each run (5)")
    parser.add_argument("--batches", type=shared.positive, help="most batches in each run")
    parser.add_argument(
        "--chunksize", type=shared.positive, help="samples that are shuffled together"
    )
    parser.add_argument(
        "--transformations",
        metavar="NAME",
        help="torch, numpy, PIL, another name that wids.Decoder takes, or none (torch)",
    )
    parser.add_argument("--access", choices=["auto", "range", "download"], help="(auto)")
    parser.add_argument("--fields", metavar="LIST", help="the only fields, separated by commas")
    shared.add_where(parser)
    parser.add_argument(
        "--join",
        metavar="OTHER",
        help="join another dataset, or {shard}.captions.json; its fields begin with .joined",
    )
    parser.add_argument("--cache-dir", help="the cache folder (default: $WIDS_CACHE)")
    parser.add_argument("--cache-size", metavar="SIZE", help="most bytes of copies there: 200GB")
    parser.add_argument("--json", action="store_true", help="for scripts: one JSON object")
    shared.add_reading(parser)


def run(options: argparse.Namespace) -> int:
    """Read, and print the table or its JSON."""
    from wids.dataset.benchmark import benchmark

    with ExitStack() as stack:
        figures = benchmark(
            _subject(options, stack),
            options.workers,
            batch_size=options.batch_size,
            chunksize=options.chunksize,
            seconds=options.seconds,
            num_batches=options.batches,
        )
    print(json.dumps(figures.as_dict()) if options.json else figures)
    return 0


def _subject(options: argparse.Namespace, stack: ExitStack) -> Any:
    """Return what to read: a program's own dataset or loader, or that of a spec."""
    names = ("transformations", "access", "fields", "where", "join", "cache_dir", "cache_size")
    if shared.is_name(options.spec):
        text = f"expected a spec, found {options.spec}, which has settings of its own"
        shared.refuse(options, names, f"{text}; change them there")
        return shared.named_object(options.spec, "spec", "dataset")
    steps = options.transformations or "torch"

    def of(spec: str, **fields: Any) -> ShardListDataset:
        dataset = shared.opened(
            spec,
            options,
            transformations=None if steps == "none" else steps,
            access=options.access or "auto",
            cache_dir=options.cache_dir,
            cache_size=options.cache_size,
            **fields,
        )
        return stack.enter_context(dataset)

    dataset = of(options.spec, fields=options.fields and options.fields.split(","))
    dataset = shared.selected(dataset, options)
    if options.join is None:
        return dataset
    is_pattern = "{shard}" in options.join
    other = options.join if is_pattern else of(options.join)
    return dataset.join(other, prefix="joined")


def _numbers(text: str) -> list[int]:
    return [shared.not_negative(part) for part in text.split(",")]
