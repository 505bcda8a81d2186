"""Write the shards of one part, and publish the dataset when all parts are written.

Parts are written by independent processes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from wids.publish.describe import ShardRecord
from wids.publish.journal import Part, collect_parts, has_parts, part_journal
from wids.publish.new_shard import ShardTask
from wids.publish.only_writer import only_writer
from wids.publish.output import Output
from wids.publish.task_run import (
    WriteShard,
    journal_mode,
    missing_tasks,
    place_of,
    plan_of,
    published,
    run_tasks,
    write_all,
)
from wids.shards.specs.model import DatasetSpec
from wids.storage import abandoned, upload
from wids.storage.complete_files import STEM_LENGTH
from wids.storage.transport import urls

_MERGED = "%s: already published, and no part is left to merge"

_logger = logging.getLogger("wids")


def run_part(
    tasks: Sequence[ShardTask],
    part: Part,
    output: Output,
    write: WriteShard,
    *,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> list[ShardRecord]:
    """Write the shards of a part that are missing, and return their descriptions.

    Args:
        tasks: All shards.
        part: The part.
        output: Where they are written.
        write: Writes one of them.
        executor: Where to write; None for this thread.
        progress: Whether to show a progress bar.

    Raises:
        FileExistsError: The output exists, or the journal of the part is of other tasks.
    """
    for path in (output.spec_path, output.pack_path):
        if upload.exists(path, output.storage_options):
            raise output.already_exists(path)
    if output.is_local:
        os.makedirs(output.names.folder, exist_ok=True)
    own = part.of(tasks)
    with part_journal(output.journal_path, part, plan_of(tasks), journal_mode(output)) as log:
        _sweep(own, output)
        missing = missing_tasks(own, log, output)
        write_all(own, missing, write, log, executor, progress, output)
        _sweep(own, output)
        return [log.record(place_of(task)) for task in own]


def merge_parts(
    tasks: Sequence[ShardTask],
    counts: Sequence[int | None],
    output: Output,
    write: WriteShard,
    *,
    extras: Mapping[str, Any] | None = None,
) -> DatasetSpec:
    """Publish the pack and the spec of the shards that all parts have written.

    A merge that was killed after it deleted the journals counts as complete.

    Args:
        tasks: All shards.
        counts: The number of samples of each; None where unknown.
        output: Where they are written.
        write: Writes one of them, if it is missing by now.
        extras: Further entries of the spec.

    Raises:
        FileNotFoundError: A part is missing.
        FileExistsError: The output exists, or a part is of other tasks.
        ValueError: A shard has changed since it was written.
    """
    if not has_parts(output.journal_path):
        spec = _merged(tasks, counts, output)
        if spec is not None:
            _logger.warning(_MERGED, urls.redact(output.spec_path))
            return spec
    places = [place_of(task) for task in tasks]
    collect_parts(output.journal_path, plan_of(tasks), places, journal_mode(output))
    # As after an interruption: nothing is left to write.
    return run_tasks(tasks, output, write, extras=extras)


def _merged(
    tasks: Sequence[ShardTask], counts: Sequence[int | None], output: Output
) -> DatasetSpec | None:
    """Return the dataset that is published, if its shards have these names and counts."""
    if not upload.exists(output.spec_path, output.storage_options):
        return None
    # This also deletes what a killed merge has left.
    with only_writer(output.names, output.spec_path, output.pack_path):
        spec = published(output)
        there = output.existing_shards()
    found = {} if spec is None else {shard.url: shard.num_samples for shard in spec.shards}
    for task, count in zip(tasks, counts, strict=True):
        num_samples = found.pop(task.path, None if count is None else 0)
        if count not in (None, num_samples) or (num_samples and task.path not in there):
            return None
    return None if found else spec


def _sweep(tasks: Sequence[ShardTask], output: Output) -> None:
    """Delete what killed workers left unfinished of the shards of a part."""
    for task in tasks if output.is_local else ():
        # Nobody else writes these shards. Those of other parts may have the same temporary names.
        is_own = len(os.path.basename(task.path)) <= STEM_LENGTH
        abandoned.sweep_beside(task.path, min_age_s=0 if is_own else None)
