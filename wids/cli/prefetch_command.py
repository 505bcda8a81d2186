"""``wids prefetch``: fetch the shards of a dataset, or of one rank, into the cache."""

from __future__ import annotations

import argparse
from typing import Final

from wids.cli.shared import add_reading, add_spec, loaded_spec, opened, positive, print_note
from wids.storage.sizes import count_text, parse_nbytes
from wids.storage.transport import urls

EXAMPLE: Final = (
    "  wids prefetch https://example.com/train.json --limit 200GB\n"
    "  wids prefetch train.json --rank 3 --num-replicas 8   # the share of one rank"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_spec(parser)
    parser.add_argument("--cache-dir", help="the cache folder (default: $WIDS_CACHE)")
    parser.add_argument("--limit", metavar="SIZE", help="maximum size of shards, such as 200GB")
    parser.add_argument("--rank", type=int, help="only the fixed share of this rank")
    parser.add_argument("--num-replicas", type=positive, help="the number of ranks")
    parser.add_argument("-j", "--jobs", type=positive, default=4, help="downloads at a time (4)")
    add_reading(parser)


def run(options: argparse.Namespace) -> int:
    """Fetch what is missing; return 1 if the limit left out a shard."""
    from wids.dataset import fetch_window
    from wids.shards.costs import download_cost
    from wids.shards.counting import fetch_all

    if (options.rank is None) != (options.num_replicas is None):
        raise ValueError("expected --rank and --num-replicas together")
    limit_nbytes = parse_nbytes(options.limit, "--limit")
    spec = loaded_spec(options.spec, options)
    # Checked before the dataset is opened, which would fetch such shards to count them.
    if any(shard.num_samples is None for shard in spec.shards):
        raise ValueError(
            f"{urls.redact(options.spec)}: expected the number of samples of each shard; to count "
            "them, all shards would be fetched; `wids create` states it"
        )
    # One bar for all shards is shown; a bar for each download would write over it.
    with opened(spec, options, cache_dir=options.cache_dir, progress=False) as dataset:
        numbers = list(range(len(dataset.lengths)))
        if options.rank is not None:
            numbers = fetch_window.rank_shards(dataset, options.rank, options.num_replicas)
        missing, num_left_out = fetch_window.select_missing(dataset.reader, numbers, limit_nbytes)
        shards = [spec.shards[number] for number in missing]
        cost = download_cost(shards, dataset.reader.store.fetcher)
        if missing:
            print_note(f"downloading {cost}")
        nbytes_of = {number: cost.nbytes_of[spec.shards[number].url] for number in missing}
        fetch_all(dataset.reader.fetch, nbytes_of, num_threads=options.jobs)
    available = count_text(len(numbers) - num_left_out, "shard")
    print(f"{available} available locally, {len(missing):,} fetched now")
    if num_left_out:
        left_out = count_text(num_left_out, "shard")
        verb = "does" if num_left_out == 1 else "do"
        print_note(f"{left_out} {verb} not fit into {options.limit}")
    return 1 if num_left_out else 0
