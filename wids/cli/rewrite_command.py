"""``wids rewrite``: write new shards and a spec of a dataset: shuffled, filtered, cut or mapped."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from wids.cli import shared
from wids.cli.log_output import printed
from wids.errors import printable
from wids.storage.sizes import count_text
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.publish.output import Output
    from wids.shards.sample_access import IndexedDataset
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
    shared.add_flag(
        parser,
        "--delete-replaced",
        "with --keep-shards: delete the files of the input that are not part of the new dataset, "
        "once it is published",
    )
    shared.add_yes(parser, "delete them")
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
    from wids.publish.executors import start_early
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
    if options.delete_replaced:
        _check_deleting(options)
    if not options.merge:
        start_early(
            options.jobs, ["wids.dataset.shard_list", "wids.publish.rewriting.rewritten_shard"]
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
            storage_options=shared.storage_options(options),
            shuffle=options.shuffle,
        )
        # The same command deletes later what an earlier run of it has replaced; one that was killed
        # before it deleted its journal is resumed, and deletes that too.
        is_done = job.output.journal.plan is None
        later = options.delete_replaced and function is None and is_done
        published = job.published() if later else None
        if published is not None and not _is_written(published, view, options):
            published = None
        with printed(logging.WARNING if options.merge else logging.INFO):
            shards = shared.done(job, options) if published is None else published.shards
        replaced = dataset.spec
    shared.print_counts(options.output, shards, options.part)
    if options.keep_shards and options.part is None:
        return _handle_replaced(replaced, job.output, options)
    return 0


def _is_written(published: DatasetSpec, view: IndexedDataset, options: argparse.Namespace) -> bool:
    """Whether the samples of a dataset, of which shards are kept, are those of a view."""

    def stored(sample: Mapping[str, Any]) -> dict[str, Any]:
        return {name: sample[name] for name in sample if name[:1] != "_" or name == "__key__"}

    kept, start = {shard.url for shard in view.spec.shards}, 0
    with shared.opened(published, options, raw="bytes") as there:
        for shard in published.shards:
            stop = start + (shard.num_samples or 0)
            # Other options, or another input, may have made as many samples of the same keys.
            for index in () if shard.url in kept else range(start, stop):
                if stored(there[index]) != stored(view[index]):
                    return False
            start = stop
    return True


def _check_deleting(options: argparse.Namespace) -> None:
    """Refuse to delete where not all has been written, or nobody could be asked."""
    if not options.keep_shards:
        raise ValueError(
            "--delete-replaced: expected it beside --keep-shards; without that the input stays"
        )
    shared.refuse(
        options, ["part"], "expected it without --delete-replaced, which belongs to --merge"
    )
    shared.check_terminal("wids: --delete-replaced asks before it deletes", options)


def _handle_replaced(old: DatasetSpec, output: Output, options: argparse.Namespace) -> int:
    """Name the files of the input that are not part of the new dataset; delete them on request."""
    from wids.publish.output import left_behind, remove_left_behind

    # As it was published, since nothing is deleted before.
    files = left_behind(old, output.spec_at(output.spec_path), options.spec)
    if not files:
        return 0
    count, name = count_text(len(files), "file"), urls.redact(options.spec)
    shared.print_note(
        f"not part of the new dataset, with what it leaves out or changes: {count} of {name}"
    )
    for url in files:
        link = " (a link: the file that it leads to stays)" * os.path.islink(url)
        print(f"  {printable(urls.redact(url))}{link}", file=sys.stderr)
    if not options.delete_replaced:
        # What another map has written looks the same.
        place = "" if options.map is None else ", and another output,"
        shared.print_note(f"run the same again with --delete-replaced{place} to delete them")
        return 0
    shared.ask(f"wids: deleting {count} of {name}", options, "wids: nothing was deleted")
    problems = remove_left_behind(files, output.storage_options)
    for problem in problems:
        shared.print_problem(problem)
    shared.print_note(
        f"{name} still names them: delete it, or put the new spec in its place; first run "
        f"`wids cache clear {name}` where it was read, for copies in caches"
    )
    return 1 if problems else 0


def _run_streams(options: argparse.Namespace) -> int:
    """Write the samples of files without random access into plain tars."""
    from wids.publish.rewriting.old_streams import rewrite_streams
    from wids.shards.specs.naming import tar_urls
    from wids.storage.fetch import Fetcher

    shared.refuse(
        *(options, ["shuffle", "where", "map", "keep_shards", "delete_replaced", "part", "merge"]),
        f"expected a dataset with random access, found {urls.redact(options.spec)}; write it into "
        "plain tars without this option first, and rewrite these",
    )
    given = shared.storage_options(options)
    spec = rewrite_streams(
        tar_urls([options.spec], Fetcher(given)),
        _pattern(options.output),
        maxcount=options.maxcount,
        maxsize=options.maxsize,
        fields=_fields(options),
        name=options.name,
        resume=not options.restart,
        storage_options=given,
    )
    shared.print_counts(options.output, spec.shards)
    return 0


def _fields(options: argparse.Namespace) -> list[str] | None:
    return None if options.fields is None else options.fields.split(",")


def _pattern(output: str) -> str:
    from wids.publish.output import prefix_of

    return output if "%" in os.path.basename(output) else prefix_of(output) + "-%06d.tar"
