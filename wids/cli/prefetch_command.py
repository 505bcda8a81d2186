"""``wids prefetch``: fetch the shards of a dataset into the cache."""

from __future__ import annotations

import argparse
from typing import Final

from wids.cli.shared import add_reading, add_spec, loaded_spec, opened, positive, print_note
from wids.storage.sizes import count_text
from wids.storage.transport import urls

EXAMPLE: Final = "  wids prefetch https://example.com/train.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_spec(parser)
    parser.add_argument("--cache-dir", help="the cache folder (default: $WIDS_CACHE)")
    parser.add_argument("-j", "--jobs", type=positive, default=4, help="downloads at a time (4)")
    add_reading(parser)


def run(options: argparse.Namespace) -> int:
    """Fetch what is missing."""
    from wids.shards.costs import download_cost
    from wids.shards.counting import fetch_all

    spec = loaded_spec(options.spec, options)
    # Checked before the dataset is opened, which would fetch such shards to count them.
    if any(shard.num_samples is None for shard in spec.shards):
        raise ValueError(
            f"{urls.redact(options.spec)}: expected the number of samples of each shard; to count "
            "them, all shards would be fetched; `wids create` states it"
        )
    # One bar for all shards is shown; a bar for each download would write over it.
    with opened(spec, options, cache_dir=options.cache_dir, progress=False) as dataset:
        reader = dataset.reader
        missing = [n for n in range(len(spec.shards)) if not reader.is_local(n)]
        cost = download_cost([spec.shards[n] for n in missing], reader.store.fetcher)
        if missing:
            print_note(f"downloading {cost}")
        nbytes_of = {number: cost.nbytes_of[spec.shards[number].url] for number in missing}
        fetch_all(reader.fetch, nbytes_of, num_threads=options.jobs)
    available = count_text(len(spec.shards), "shard")
    print(f"{available} available locally, {len(missing):,} fetched now")
    return 0
