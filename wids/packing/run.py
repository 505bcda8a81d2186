"""Shard tasks → the shards, their pack and their spec; resumed after an interruption.

A journal has the shards that are complete, each with a digest of what it was made from. A shard is
written under a free name, or over its own bytes; another file is overwritten on request only. Knows
nothing of how samples were found, or how a shard is written.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, wait
from contextlib import suppress
from functools import partial
from typing import Final

from wids.errors import SpecError
from wids.files import abandoned
from wids.files.progress import Bar
from wids.packing.output import Output, already_exists
from wids.packing.plan import Plan
from wids.packing.report import PackReport
from wids.packing.shard_file import write_shard
from wids.packing.shard_tasks import ShardTask
from wids.specs.model import DatasetSpec, ShardSpec
from wids.tars.names import KeySplit
from wids.tars.pack import write_pack
from wids.transport import upload
from wids.writing.describe import ShardRecord
from wids.writing.journal import Journal, Task
from wids.writing.only_writer import only_writer

_KEY_SPLIT: Final[KeySplit] = "first"
"""How readers split the names of members."""
_POLL_S: Final = 0.5
"""How often progress is read from the lengths of unfinished shards."""


def write_dataset(
    plan: Plan,
    tasks: list[ShardTask],
    output: Output,
    *,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> PackReport:
    """Write the shards that are missing, then the pack and the spec; see `wids.pack_folder`."""
    if output.is_local:
        os.makedirs(output.names.folder, exist_ok=True)
    with only_writer(output.names), Journal(output.journal_path) as log:
        try:
            _begin(tasks, log, output)
            _write_all(tasks, log, executor, progress, output)
            spec = _publish(plan, tasks, log, output)
        except BaseException:
            # What fails before the first shard, such as a file that is locked, leaves nothing.
            with suppress(OSError):
                if not output.existing_shards():
                    os.unlink(output.journal_path)
            raise
        # Last of all: until the spec is saved, it is what an interrupted run resumes from.
        os.unlink(output.journal_path)
    counts = Counter(field for sample in plan.samples for field, _ in sample.members)
    return PackReport(
        output.prefix + ".json",
        spec,
        dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        plan.skipped,
        (*plan.remarks, *_remarks_of_leftovers(tasks, output)),
    )


def _begin(tasks: list[ShardTask], log: Journal, output: Output) -> None:
    """Note in the journal what it is a journal of, before the first shard.

    Raises:
        FileExistsError: The output exists, or the journal is of other files or options.
    """
    whole: Task = (output.spec_path, _KEY_SPLIT)
    source = hashlib.sha256("".join(task.source for task in tasks).encode("ascii")).hexdigest()
    if whole in log and log.record(whole).source == source:
        return
    if output.if_exists == "error":
        if whole in log and output.existing_shards():
            raise FileExistsError(
                f"{output.journal_path}: is of an interrupted run with other files or options; "
                "run that again to finish it, choose another output, or pass "
                'if_exists="replace" (--replace) to start over'
            )
        output.check_absent()
    log.add(ShardRecord(*whole, None, 0, 0, "", b"", source))


def _write_all(
    tasks: list[ShardTask],
    log: Journal,
    executor: Executor | None,
    progress: bool | None,
    output: Output,
) -> None:
    """Write the missing shards, each of which is in the journal as soon as it is complete."""
    missing = _missing(tasks, log, output)
    write = partial(
        write_shard,
        is_new=output.if_exists == "error",
        storage_options=output.storage_options,
    )
    with Bar("packing", sum(task.nbytes for task in tasks), "B", wanted=progress) as bar:
        done = (bar.total or 0) - sum(task.nbytes for task in missing)
        if executor is not None:
            _write_on(executor, write, missing, log, bar, done)
            return
        for task in missing:
            log.add(write(task, advance=partial(_advance, bar, done)))
            done += task.nbytes


def _missing(tasks: list[ShardTask], log: Journal, output: Output) -> list[ShardTask]:
    """Return the shards that are not in the journal, or were made from something else."""
    # The journal compares the times of local shards only.
    existing = None if output.is_local else set(output.existing_shards())
    return [
        task
        for task in tasks
        if (task.path, _KEY_SPLIT) not in log
        or log.record((task.path, _KEY_SPLIT)).source != task.source
        or not (existing is None or task.path in existing)
    ]


def _advance(bar: Bar, done: int, nbytes: int) -> None:
    bar.reach(done + nbytes)


def _write_on(
    executor: Executor,
    write: Callable[[ShardTask], ShardRecord],
    tasks: list[ShardTask],
    log: Journal,
    bar: Bar,
    done: int,
) -> None:
    futures = {executor.submit(write, task): task for task in tasks}
    pending = set(futures)
    try:
        while pending:
            finished, pending = wait(pending, _POLL_S, FIRST_COMPLETED)
            # All that are complete first, so that an error in one of them loses no other.
            for future in sorted(finished, key=lambda future: future.exception() is not None):
                log.add(future.result())
                done += futures[future].nbytes
            unfinished = (futures[future].path for future in pending if future.running())
            bar.reach(done + sum(map(_unfinished_nbytes, unfinished)))
    finally:
        for future in pending:
            future.cancel()


def _unfinished_nbytes(path: str) -> int:
    return sum(nbytes for _, nbytes, _ in abandoned.temporary_files(path))


def _publish(plan: Plan, tasks: list[ShardTask], log: Journal, output: Output) -> DatasetSpec:
    records = [log.record((task.path, _KEY_SPLIT)) for task in tasks]
    spec = DatasetSpec(
        tuple(ShardSpec(r.url, r.num_samples, r.nbytes, sha256=r.sha256) for r in records),
        output.name,
        output.pack_path,
        {"classes": list(plan.classes)} if plan.classes else {},
    )
    options = output.storage_options
    if output.if_exists == "error" and upload.exists(output.spec_path, options):
        _check_same_spec(spec, output)
    with upload.publishing(output.pack_path, storage_options=options) as file:
        write_pack(file, log.indexes((task.path, _KEY_SPLIT) for task in tasks))
    spec.save(output.spec_path, storage_options=options)
    return spec


def _check_same_spec(spec: DatasetSpec, output: Output) -> None:
    """Raise FileExistsError unless the spec that exists is the one that an earlier run saved."""
    from wids.specs.loader import load_spec
    from wids.transport.fetch import Fetcher

    try:
        found = load_spec(output.spec_path, read=Fetcher(output.storage_options).read)
    except SpecError:  # another document
        raise already_exists(output.spec_path) from None
    if (found.name, found.shards) != (spec.name, spec.shards):
        raise already_exists(output.spec_path)


def _remarks_of_leftovers(tasks: list[ShardTask], output: Output) -> list[str]:
    """Return a remark on shards of an earlier dataset that was replaced by a smaller one."""
    written = {task.path for task in tasks}
    others = [path for path in output.existing_shards() if path not in written]
    if not others:
        return []
    first = os.path.basename(others[0])
    count = "1 shard" if len(others) == 1 else f"{len(others):,} shards"
    return [f"{count} of an earlier dataset, from {first} on, not in the spec: move them away"]
