"""``wids create``: shards → a JSON spec and the pack of their indexes."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wids.cli.arguments import (
    add_command,
    add_parts,
    add_processes,
    add_storage,
    storage_options,
)
from wids.cli.consent import add_yes, ask_consent
from wids.files.sizes import count_text

if TYPE_CHECKING:
    from wids.checking.problems import Problem
    from wids.describing.by_headers import IndexingCost
    from wids.fetching.fetch import Fetcher
    from wids.specs.model import DatasetSpec


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "create",
        run,
        "describe shards in a JSON spec, with their index beside it",
        "  wids create train-*.tar --output train.json\n"
        "  wids create 'https://example.com/train-{000000..000146}.tar' -o train.json\n"
        "  wids create s3://bucket/train/ -o train.json\n"
        "  wids create shards/ -o train.json --base https://example.com/train/\n"
        "  wids create https://example.com/old.json -o train.json   # its shards, with an index\n"
        "  wids create more-*.tar --append -o train.json\n"
        "  wids create shards/ -o train.json --part 3/16             # on one of 16 machines\n"
        "  wids create shards/ -o train.json --merge                 # after all 16 parts\n"
        "After an interruption, run it again to resume.",
    )
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
    parser.add_argument("--no-index", action="store_true", help="write the spec only")
    parser.add_argument(
        "--append",
        action="store_true",
        help="add the shards to the end of the dataset that the output describes",
    )
    parser.add_argument(
        "--digests",
        action="store_true",
        help="read all bytes of remote shards, for digests and checksums; otherwise only headers "
        "are read where members are large",
    )
    add_parts(parser)
    add_processes(parser)
    add_storage(parser)
    add_yes(parser)


def run(options: argparse.Namespace) -> int:
    """Describe the shards and write spec and pack."""
    from wids.describing.build import build_spec
    from wids.describing.build_parts import merge_parts
    from wids.engines.processes import process_pool
    from wids.fetching import upload
    from wids.fetching.fetch import Fetcher
    from wids.files import abandoned
    from wids.specs.model import check_references, save_document
    from wids.specs.naming import dataset_name
    from wids.transport import urls

    servers = storage_options(options)
    named = _named_shards(options.files, Fetcher(servers))
    files = [shard.url for shard in named.shards]
    _check_output(options.output, files, options.base)
    output = upload.absolute(options.output)
    if not options.append:
        check_references(output, files if options.base is None else [options.base], ())
    info = _text_of(options.info)  # an error now, and not after all shards were read
    # Before anything is read, so that a wrong bound of a pattern costs nothing.
    journal = _journal_path(output)
    if options.part is not None or options.merge:
        _check_not_appending(options)
    if options.part is not None:
        return _create_part(options, named, journal, servers)
    if options.merge:
        merge_parts(named, journal, key_split=options.key_split, digests=options.digests)
    else:
        named = _with_lengths(named, journal, options, servers)
    if options.append:
        return _append(options, output, named)
    stem = os.path.splitext(output)[0]
    problems: list[Problem] = []
    for path in (output, stem + ".index") if urls.is_local(output) else ():
        # Whatever its age: the journal lets one process at a time come so far.
        abandoned.sweep_beside(path, min_age_s=0)
    with process_pool(options.jobs, len(files)) as executor:
        spec = build_spec(
            named,
            name=(named.name or dataset_name(files[0])) if options.name is None else options.name,
            key_split=options.key_split,
            pack=None if options.no_index else stem + ".index",
            executor=executor,
            journal=journal,
            digests=options.digests,
            on_cost=partial(_state_cost, options),
            on_problem=partial(_print_problem, problems),
            storage_options=servers,
        )
    document = spec.document(urls.parent(output))
    if info is not None:
        document["info"] = info
    if options.base is not None:
        is_local = urls.is_local(output)
        _set_base(document, options.base, stem + ".index", is_local=is_local)
    save_document(output, document, storage_options=servers)
    # Last of all: until the spec is saved, the journal is what an interrupted run resumes from.
    with suppress(FileNotFoundError):
        os.unlink(journal)
    return _report(options.output, spec, problems)


def _check_not_appending(options: argparse.Namespace) -> None:
    if options.append:
        name = "merge" if options.part is None else "part"
        raise ValueError(f"--{name}: expected it without --append; create a dataset of the parts")


def _create_part(
    options: argparse.Namespace, named: DatasetSpec, journal: str, servers: dict[str, Any]
) -> int:
    """Describe a part of the shards."""
    from wids.describing.build_parts import build_part, shards_of
    from wids.describing.part_journals import path_of_part
    from wids.engines.processes import process_pool
    from wids.transport import urls

    part = options.part
    own = shards_of(named, part, options.key_split)
    asked = replace(named, shards=tuple(shard for shard in named.shards if shard.url in own))
    known = _with_lengths(asked, path_of_part(journal, part), options, servers) if own else asked
    nbytes = {shard.url: shard.nbytes for shard in known.shards}
    shards = (replace(s, nbytes=nbytes.get(s.url, s.nbytes)) for s in named.shards)
    with process_pool(options.jobs, len(own)) as executor:
        records = build_part(
            replace(named, shards=tuple(shards)),
            *(part, journal),
            key_split=options.key_split,
            digests=options.digests,
            on_cost=partial(_state_cost, options),
            executor=executor,
            storage_options=servers,
        )
    num_samples = sum(record.num_samples for record in records)
    counts = f"{count_text(len(records), 'shard')}, {count_text(num_samples, 'sample')}"
    print(f"{urls.redact(options.output)}: part {part}: {counts}")
    return 0


def _append(options: argparse.Namespace, output: str, named: DatasetSpec) -> int:
    """Add shards to a published dataset."""
    from wids.describing.appending import append_shards
    from wids.engines.processes import process_pool

    for name in ("name", "info", "no_index"):
        if getattr(options, name):
            option = name.replace("_", "-")
            raise ValueError(f"--{option}: expected it without --append, which keeps what is there")
    problems: list[Problem] = []
    journal = _journal_path(output)
    with process_pool(options.jobs, len(named.shards)) as executor:
        spec = append_shards(
            output,
            named,
            base=options.base,
            key_split=options.key_split,
            executor=executor,
            journal=journal,
            digests=options.digests,
            on_cost=partial(_state_cost, options),
            on_problem=partial(_print_problem, problems),
            storage_options=storage_options(options),
        )
    with suppress(FileNotFoundError):
        os.unlink(journal)
    return _report(options.output, spec, problems)


def _journal_path(output: str) -> str:
    """Return the path of the journal of an unfinished run."""
    from wids.transport import urls

    stem = os.path.splitext(output)[0]
    # It grows in small steps, so that of a remote spec is in the current folder.
    return (stem if urls.is_local(output) else os.path.abspath(os.path.basename(stem))) + ".partial"


def _report(output: str, spec: DatasetSpec, problems: list[Problem]) -> int:
    """Print what the dataset has, and return the exit status."""
    from wids.transport import urls

    num_samples = sum(shard.num_samples or 0 for shard in spec.shards)
    shards = count_text(len(spec.shards), "shard")
    print(f"{urls.redact(output)}: {shards}, {count_text(num_samples, 'sample')}")
    return 1 if any(problem.severity == "error" for problem in problems) else 0


def _text_of(path: str | None) -> str | None:
    if path is None:
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()


def _state_cost(options: argparse.Namespace, cost: IndexingCost) -> None:
    """Print what reading remote shards costs, and ask before many bytes of whole ones are read."""
    print(f"wids: {cost}", file=sys.stderr)
    if cost.unread.is_large:
        ask_consent(cost.unread, options, "reading remote shards whole")


def _print_problem(problems: list[Problem], problem: Problem) -> None:
    """Print what is wrong with the dataset, or a remark on it, and note it."""
    from wids.errors import printable

    problems.append(problem)
    kind = "remark: " if problem.severity == "remark" else ""
    print(f"wids: {kind}{printable(str(problem))}", file=sys.stderr)


def _set_base(document: dict[str, Any], base: str, pack: str, *, is_local: bool) -> None:
    """State in a document where its shards will be published."""
    from wids.specs.edit import name_with_query
    from wids.transport import urls

    for shard in document["shardlist"]:
        shard["url"] = name_with_query(shard["url"])
    document["base"] = base
    if "index" in document and (urls.is_local(base) or not is_local):
        # A relative name would be looked for in the base. If only the base is remote, that is where
        # the pack will be published.
        document["index"] = pack if is_local else urls.relative(pack, base)


def _with_lengths(
    named: DatasetSpec, journal: str, options: argparse.Namespace, servers: dict[str, Any]
) -> DatasetSpec:
    """Return the shards with their lengths, after asking servers for these and for consent.

    What a journal has of an interrupted run costs nothing.
    """
    from wids.describing.by_headers import first_look
    from wids.fetching.fetch import Fetcher
    from wids.reading.cost import DownloadCost, download_cost
    from wids.specs.model import ShardSpec
    from wids.transport import urls

    fetcher = Fetcher(servers)
    fetcher.bind_options(named.origin)
    remote = [ShardSpec(shard.url) for shard in named.shards if not urls.is_local(shard.url)]
    cost = download_cost(remote, fetcher)
    known = _known_to(journal, named, options) if remote else set()
    left = DownloadCost({url: nbytes for url, nbytes in cost.nbytes_of.items() if url not in known})
    if options.digests:
        ask_consent(left, options, "reading remote shards")
    else:
        ask_consent(first_look(left), options, "reading remote shards, at first a megabyte of each")
    found = cost.nbytes_of
    shards = (replace(shard, nbytes=found.get(shard.url, shard.nbytes)) for shard in named.shards)
    return replace(named, shards=tuple(shards))


def _known_to(path: str, named: DatasetSpec, options: argparse.Namespace) -> set[str]:
    """Return the shards that a journal describes as far as they are wanted."""
    from wids.describing.journal import Journal

    if not os.path.exists(path):
        return set()
    with Journal(path) as log:
        tasks = ((s.url, options.key_split or s.key_split or "first") for s in named.shards)
        found = [log.record(task) for task in tasks if task in log]
    return {record.url for record in found if record.sha256 is not None or not options.digests}


def _named_shards(names: list[str], fetcher: Fetcher) -> DatasetSpec:
    """Return the shards that the arguments name, each once; or those of one document, in order."""
    from wids.specs.loader import load_with
    from wids.specs.model import DatasetSpec, ShardSpec
    from wids.specs.naming import is_document, tar_urls

    if len(names) == 1 and is_document(names[0]):
        return load_with(fetcher, names[0], None, allow_pipe=False)
    if names == ["-"]:
        names = [line.strip() for line in sys.stdin if line.strip()]
    if not names:
        raise FileNotFoundError("standard input: expected shards, found none")
    # Sorted, because folders list their files in any order, and the order of shards is the order of
    # samples.
    return DatasetSpec(tuple(ShardSpec(url) for url in tar_urls(names, fetcher)))


def _check_output(output: str, files: list[str], base: str | None) -> None:
    """Refuse what would fail or do harm only after all shards have been read."""
    from wids.specs.edit import name_with_query
    from wids.transport import urls

    if not output.endswith(".json"):
        found = repr(urls.redact(output))
        raise ValueError(f"--output: expected a name that ends in .json, found {found}")
    folder = os.path.dirname(os.path.abspath(urls.local_path(output)))
    if urls.is_local(output) and not os.path.isdir(folder):
        raise FileNotFoundError(f"{folder}: no such folder, for --output")
    if base is None:
        return
    names = set()
    for name in map(name_with_query, files):
        if name in names:
            raise ValueError(
                f"--base: expected shards with different names for one folder, found {name} more "
                "than once"
            )
        names.add(name)
