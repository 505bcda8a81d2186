"""``wids rewrite``: write new shards and a spec of a dataset: shuffled, filtered, cut or mapped."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING, Final

from wids.cli import server_options, shared
from wids.cli.log_output import printed
from wids.errors import printable
from wids.storage.sizes import count_text
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.publish.output import Output
    from wids.shards.specs.model import DatasetSpec


EXAMPLE: Final = (
    "  wids rewrite train.json out/train --shuffle 0 --maxsize 500MB\n"
    "  wids rewrite train.json large --where '.json/height >= 256' --fields jpg,cls\n"
    "  wids rewrite train.json train-2 --keep-shards --where '.json/is_broken == false'\n"
    "  wids rewrite train.json small --map mypackage.resize:smaller --version 1 --jobs 4\n"
    "  wids rewrite train.json out/train --shuffle 0 --part 3/16   # on one of 16 machines\n"
    "  wids rewrite train.json out/train --shuffle 0 --merge       # after all 16 parts\n"
    "  wids rewrite 'old-{000..009}.tgz' out/train\n"
    "After an interruption, run it again to resume. Compressed tars (.tgz, .tar.zst) and\n"
    "concatenated MessagePack or CBOR (.msgpack, .cbor) become plain tars."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    shared.add_spec(parser)
    parser.add_argument(
        "output",
        help="beginning of the names to write: out/train for out/train-000000.tar, … and "
        "out/train.json; or a pattern, out/train-%%06d.tar",
    )
    parser.add_argument("-n", "--name", help="name of the new dataset (default: from the output)")
    parser.add_argument(
        "--shuffle", type=shared.not_negative, metavar="SEED", help="shuffle all samples"
    )
    parser.add_argument("--maxcount", type=shared.positive, help="most samples in a shard")
    parser.add_argument("--maxsize", metavar="SIZE", help="largest shard, such as 500MB (1GB)")
    shared.add_flag(
        parser,
        "--keep-shards",
        "keep the shards of the input, and write only those in which samples change",
    )
    parser.add_argument("--fields", metavar="LIST", help="the only fields, separated by commas")
    shared.add_where(parser)
    parser.add_argument(
        "--map",
        metavar="MODULE:FUNCTION",
        help="takes a sample of bytes; returns a sample, None or several",
    )
    parser.add_argument(
        "--version",
        metavar="TEXT",
        help="version of the map, to be changed with it: a run with the same version resumes; "
        "without one it starts over",
    )
    shared.add_flag(parser, "--restart", "write the shards of an interrupted run again")
    shared.add_parts(parser)
    shared.add_processes(parser)
    shared.add_reading(parser)


def run(options: argparse.Namespace) -> int:
    """Write the new dataset and print its counts."""
    from wids.publish.rewriting.old_streams import is_old_stream

    if is_old_stream(options.spec):
        return _run_streams(options)
    if options.merge or options.part is not None:
        shared.refuse(
            options, ["restart"], "expected it without --part and --merge; use another output"
        )
        if options.version is None:
            shared.refuse(
                *(options, ["map"]),
                "expected --version beside --part and --merge, the same for all parts of one map; "
                "choose a text, such as --version 1, and change it with the map",
            )
    from wids.publish.rewriting.rewrite import prepare_rewrite

    function = (
        None if options.map is None else shared.named_object(options.map, "--map", "function")
    )
    if not (function is None or callable(function)):
        # An error of the command line, whatever the type of the object.
        raise ValueError(f"--map: expected a function, found {options.map!r}")
    with shared.opened(options.spec, options, raw="bytes", fields=_fields(options)) as dataset:
        view = shared.selected(dataset, options)
        job = prepare_rewrite(
            view,
            _pattern(options.output),
            *(options.maxcount, options.maxsize, function, None, options.name),
            version=options.version,
            keep_shards=options.keep_shards,
            resume=not options.restart,
            storage_options=server_options.storage_options(options),
            shuffle=options.shuffle,
        )
        with printed(logging.WARNING if options.merge else logging.INFO):
            shards = shared.done(job, options)
    shared.print_counts(options.output, shards, options.part)
    if options.keep_shards and options.part is None:
        _name_replaced(dataset.spec, job.output, options.spec)
    return 0


def _name_replaced(old: DatasetSpec, output: Output, document: str) -> None:
    """Print the names of the files of the input that are not part of the new dataset."""
    from wids.publish.output import left_behind

    files = left_behind(old, output.spec_at(output.spec_path), document)
    if not files:
        return
    shared.print_note(
        "not part of the new dataset, with what it leaves out or changes: "
        f"{count_text(len(files), 'file')} of {urls.redact(document)}"
    )
    for url in files:
        print(f"  {printable(urls.redact(url))}", file=sys.stderr)


def _run_streams(options: argparse.Namespace) -> int:
    """Write the samples of files without random access into plain tars."""
    from wids.publish.rewriting.old_streams import rewrite_streams
    from wids.shards.specs.naming import tar_urls
    from wids.storage.fetch import Fetcher

    shared.refuse(
        *(options, ["shuffle", "where", "map", "keep_shards", "part", "merge"]),
        f"expected a dataset with random access, found {urls.redact(options.spec)}; write it into "
        "plain tars without this option first, and rewrite these",
    )
    servers = server_options.storage_options(options)
    spec = rewrite_streams(
        tar_urls([options.spec], Fetcher(servers)),
        _pattern(options.output),
        maxcount=options.maxcount,
        maxsize=options.maxsize,
        fields=_fields(options),
        name=options.name,
        resume=not options.restart,
        storage_options=servers,
    )
    shared.print_counts(options.output, spec.shards)
    return 0


def _fields(options: argparse.Namespace) -> list[str] | None:
    return None if options.fields is None else options.fields.split(",")


def _pattern(output: str) -> str:
    from wids.publish.output import prefix_of

    return output if "%" in os.path.basename(output) else prefix_of(output) + "-%06d.tar"
