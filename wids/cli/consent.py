"""State what a command would download or delete, and ask a person for consent if needed.

Downloads and deletes nothing itself.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from wids.dataset.shard_list import ShardListDataset
    from wids.shards.download_cost import DownloadCost

_WRONG_USAGE: Final = 2


def add_yes(parser: argparse.ArgumentParser, text: str = "download more than 1 GB") -> None:
    """Add the option to consent in advance."""
    parser.add_argument("--yes", action="store_true", help=f"{text} without asking")


def ask_consent(cost: DownloadCost, options: argparse.Namespace, purpose: str) -> None:
    """State what will be downloaded, and ask if it is more than a gigabyte.

    Args:
        cost: What will be downloaded.
        options: Arguments, with that of `add_yes`.
        purpose: What it is for, and what may reduce it; a part of a sentence.

    Raises:
        SystemExit: There is no consent: status 1 after the answer no, and status 2 where nobody can
            be asked.
    """
    if not cost.nbytes_of:
        return
    text = f"wids: {purpose}: {cost}"
    if not cost.is_large:
        print(text, file=sys.stderr)
        return
    ask(text, options, "wids: these bytes were not downloaded")


def ask(text: str, options: argparse.Namespace, refused: str) -> None:
    """State what a command will do, and ask unless ``--yes`` was passed.

    Args:
        text: What it will do.
        options: Arguments, with that of `add_yes`.
        refused: What to print after the answer no.

    Raises:
        SystemExit: As for `ask_consent`.
    """
    if options.yes:
        print(text, file=sys.stderr)
        return
    check_terminal(text, options)
    print(f"{text}. Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        print(refused, file=sys.stderr)
        raise SystemExit(1)


def check_terminal(text: str, options: argparse.Namespace) -> None:
    """End with status 2 where nobody can be asked and ``--yes`` was not passed."""
    if not (options.yes or (sys.stdin.isatty() and sys.stderr.isatty())):
        print(f"{text}; pass --yes to do it without a terminal to ask in", file=sys.stderr)
        raise SystemExit(_WRONG_USAGE)


def ask_to_fetch(dataset: ShardListDataset, options: argparse.Namespace, purpose: str) -> None:
    """Ask before fetching shards that cannot be read in any other way.

    They are remote, and have neither a local copy nor an index by which parts could be read.
    """
    from wids.shards.download_cost import DownloadCost

    reader, shards = dataset.reader, dataset.spec.shards
    missing = [
        shards[number]
        for number in range(len(shards))
        if not reader.is_local(number) and reader.index(number) is None
    ]
    ask_consent(DownloadCost({shard.url: shard.nbytes for shard in missing}), options, purpose)
