"""``wids cache``: show, clear or check the copies of remote shards."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from wids.cli.shared import add_reading, add_yes, ask, loaded_spec, print_note, with_bold_header
from wids.errors import printable
from wids.storage.sizes import count_text, nbytes_text
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.storage.cache.eviction import CacheFile


EXAMPLE: Final = (
    "  wids cache\n  wids cache show train.json\n"
    "  wids cache clear train.json\n  wids cache clear\n"
    "  wids cache check train.json --sample 5%"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "action",
        nargs="?",
        default="show",
        choices=["show", "clear", "check"],
        help="(%(default)s)",
    )
    parser.add_argument("spec", nargs="?", help="the spec whose copies to show, clear or check")
    parser.add_argument(
        "--sample",
        metavar="SHARE",
        help="check only this share of the samples of each copy, such as 5%%, by checksums",
    )
    add_yes(parser, "clear the copies of all datasets")
    parser.add_argument("--cache-dir", help="the cache folder (default: $WIDS_CACHE)")
    add_reading(parser)


def run(options: argparse.Namespace) -> int:
    """Do what the action says; return 1 if a copy has a problem."""
    from wids.storage.cache.cache_names import default_folder

    folder = os.path.abspath(options.cache_dir or default_folder())
    if options.action == "check":
        return _check(options, folder)
    if options.action == "clear":
        return _clear(options, folder)
    if options.spec is not None:
        return _show_dataset(options, folder)
    return _show(folder)


def _show_dataset(options: argparse.Namespace, folder: str) -> int:
    """Print how much of one dataset has been fetched."""
    from wids.shards.copied_shards import cached_files
    from wids.shards.policy import remote_file
    from wids.storage import fetch
    from wids.storage.cache.store import Cache

    cache, spec = Cache(folder, fetch.Fetcher()), loaded_spec(options.spec, options)
    num_copies = sum(cache.find(remote_file(shard)) is not None for shard in spec.shards)
    found = f"{num_copies:,} of {count_text(len(spec.shards), 'shard')} in {folder}"
    files = cached_files(spec, folder)
    size = nbytes_text(sum(file.nbytes for file in files))
    print(f"{urls.redact(options.spec)}: {found}, {count_text(len(files), 'file')}, {size}")
    return 0


def _show(folder: str) -> int:
    from wids.storage.cache.eviction import clearable

    files = clearable(folder)
    if files:
        print(_table_of_datasets(files))
    total_nbytes = sum(file.nbytes for file in files)
    print(f"{nbytes_text(total_nbytes):>8}  in {count_text(len(files), 'file')} in {folder}")
    return 0


def _table_of_datasets(files: Iterable[CacheFile]) -> str:
    """Return a line for the copies of each dataset, grouped by name: `train-*.tar`."""
    from wids.look.text import table
    from wids.storage.cache.cache_names import dataset_pattern

    groups: dict[str, list[CacheFile]] = {}
    for file in sorted(files, key=lambda file: file.used_ns):
        groups.setdefault(dataset_pattern(file.name), []).append(file)
    rows = []
    # The most recently used comes last, next to the prompt.
    for pattern, group in sorted(groups.items(), key=lambda item: item[1][-1].used_ns):
        copies = [f for f in group if not (f.is_temporary or f.name.endswith(".index"))]
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(group[-1].used_ns / 1e9))
        nbytes = nbytes_text(sum(file.nbytes for file in group))
        rows.append((f"{len(copies):,}", nbytes, used, pattern))
    found = table(["copies", "size", "last used", "shards"], rows, right=(0, 1))
    return with_bold_header(found)


def _clear(options: argparse.Namespace, folder: str) -> int:
    from wids.storage.cache import eviction

    if options.spec is not None:
        from wids.shards.copied_shards import cached_files

        files = cached_files(loaded_spec(options.spec, options), folder)
        label = f"{urls.redact(options.spec)}, in {folder}"
    else:
        files, label = eviction.clearable(folder), folder
        if files:
            size = nbytes_text(sum(file.nbytes for file in files))
            what = f"{count_text(len(files), 'file')} of all datasets, {size}"
            ask(f"wids: deleting {what}, in {folder}", options, "wids: nothing was deleted")
    num_files, nbytes, num_used = eviction.clear(files)
    print(f"{label}: deleted {count_text(num_files, 'file')}, {nbytes_text(nbytes)}")
    if num_used:
        verb = "is" if num_used == 1 else "are"
        print_note(f"{count_text(num_used, 'file')} {verb} in use and not deleted")
    return 0


def _check(options: argparse.Namespace, folder: str) -> int:
    from wids.publish.verification import check_copies, parse_share

    if options.spec is None:
        raise ValueError("wids cache check: expected a spec whose copies to check, found none")
    spec = loaded_spec(options.spec, options)
    share = None if options.sample is None else parse_share(options.sample, "--sample")
    num_copies, num_samples, problems = check_copies(spec, folder, share)
    for problem in problems:
        print(printable(str(problem)))
    samples = count_text(num_samples, "sample")
    what = "copies" if share is None else f"{samples} in copies"
    counts = f"{num_copies:,} of {len(spec.shards):,} shards"
    print(f"checked {what} of {counts}", file=sys.stderr)
    return 1 if problems else 0
