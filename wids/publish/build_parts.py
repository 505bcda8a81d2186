"""Describe a part of the shards into its own journal, and merge the journals of all parts.

`new_spec` describes the shards and publishes the result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from wids.publish.by_headers import IndexingCost
from wids.publish.describe import ShardRecord
from wids.publish.journal import Part, Task, collect_parts, part_journal
from wids.publish.new_spec import describe_all, tasks_of
from wids.shards.specs.model import DatasetSpec
from wids.shards.tars.member_names import KeySplit
from wids.storage import fetch


def build_part(
    spec: DatasetSpec,
    part: Part,
    journal: str,
    *,
    key_split: KeySplit | None,
    digests: bool,
    on_cost: Callable[[IndexingCost], None],
    executor: Executor | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> list[ShardRecord]:
    """Describe a part of the shards, resuming after an interruption; return the descriptions.

    Args:
        spec: All shards.
        part: The part.
        journal: Path of the journal of all parts.
        key_split: As for `build_spec`, like the arguments below.
        digests: Whether every shard must have a digest.
        on_cost: Called with what reading remote shards costs.
        executor: Where to do the work.
        storage_options: For servers.
        progress: Whether to show a progress bar.

    Raises:
        FileExistsError: There is a journal of this part for other shards or options.
        WidsError: A shard cannot be read.
    """
    fetcher = fetch.Fetcher(storage_options)
    fetcher.bind_options(spec.origin)
    tasks = _tasks(spec, key_split)
    own = part.of(tasks)
    with part_journal(journal, part, _plan(tasks, digests=digests)) as log:
        describe_all(own, spec.shards, log, fetcher, executor, progress, on_cost, digests=digests)
        return [log.record(task) for task in own]


def shards_of(spec: DatasetSpec, part: Part, key_split: KeySplit | None) -> set[str]:
    """Return the URLs of the shards of a part."""
    return {url for url, _ in part.of(_tasks(spec, key_split))}


def merge_parts(
    spec: DatasetSpec, journal: str, *, key_split: KeySplit | None, digests: bool
) -> None:
    """Copy the descriptions of all parts into the journal, for `build_spec`.

    Raises:
        FileNotFoundError: A part is missing.
        FileExistsError: A part is of other shards or options.
        ValueError: A shard has changed since its part was made.
    """
    tasks = _tasks(spec, key_split)
    collect_parts(journal, _plan(tasks, digests=digests), tasks)


def _tasks(spec: DatasetSpec, key_split: KeySplit | None) -> list[Task]:
    return list(dict.fromkeys(tasks_of(spec, key_split)))


def _plan(tasks: list[Task], *, digests: bool) -> str:
    return hashlib.sha256(json.dumps([tasks, digests]).encode("ascii")).hexdigest()
