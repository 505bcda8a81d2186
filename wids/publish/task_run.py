"""Write the shards of tasks, then their pack and their spec; resume after an interruption.

A journal has the complete shards, each with a digest of what it was made from. A shard is written
under a free name, or over its own bytes; another file is overwritten on request only.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from wids.errors import PackError, SpecError
from wids.publish.describe import ShardRecord
from wids.publish.journal import Journal, Task
from wids.publish.new_shard import Publishing, ShardTask
from wids.publish.only_writer import only_writer
from wids.publish.output import Output
from wids.publish.results import results_of
from wids.shards.indexes.pack_writer import write_pack
from wids.shards.specs.model import DatasetSpec, ShardSpec
from wids.shards.tars.member_names import KeySplit
from wids.storage import abandoned, upload
from wids.storage.progress import Bar
from wids.storage.transport import urls

_KEY_SPLIT: Final[KeySplit] = "first"
"""How readers split the names of members."""


NO_SAMPLE: Final = "{}: expected samples to write, found none: no sample is left"

_NOT_RESUMED: Final = (
    "%s: started over: an interrupted run left complete shards (%d), which may have been written "
    "by other functions; pass version= (--version) to resume"
)

_logger = logging.getLogger("wids")


class WriteShard(Protocol):
    """Writes a shard, on the workers of an executor."""

    def __call__(self, task: Any, *, how: Publishing) -> ShardRecord:
        """Write a shard and return its description; that of no samples if it was left out."""


def run_tasks(
    tasks: Sequence[ShardTask],
    output: Output,
    write: WriteShard,
    *,
    extras: Mapping[str, Any] | None = None,
    resume: bool = True,
    is_comparable: bool = True,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> DatasetSpec:
    """Write the shards that are missing, then the pack and the spec.

    Args:
        tasks: The shards.
        output: Where they are written.
        write: Writes one of them.
        extras: Further entries of the spec.
        resume: False to write again what an interrupted run has left.
        is_comparable: False if the tasks do not state by which functions shards are made; then
            what an interrupted run of the same tasks has left is written again too.
        executor: Where to write; None for this thread.
        progress: Whether to show a progress bar.

    Raises:
        FileExistsError: The output exists, or the journal is of other tasks.
    """
    plan = plan_of(tasks)

    def unwanted(log: Journal) -> Iterable[str] | None:
        if not resume:
            return [path for path, _ in log]
        if is_comparable or log.plan != plan:
            return None
        _logger.warning(_NOT_RESUMED, urls.redact(output.spec_path), len(log))
        # All of them, since one may be published and not noted.
        return [task.path for task in tasks]

    if output.is_local:
        os.makedirs(output.names.folder, exist_ok=True)
    with (
        only_writer(output.names, output.spec_path, output.pack_path),
        # Under the locks, so that a run that is not interrupted keeps its journal.
        unfinished_run(output, plan, unwanted, is_alone=executor is None) as (log, target),
    ):
        missing = missing_tasks(tasks, log, target)
        replaced = target.replaced() if target.if_exists == "replace" else None
        with replaced.aside() if replaced and missing else nullcontext():
            write_all(tasks, missing, write, log, executor, progress, target)
            spec = _publish(tasks, extras or {}, log, target)
        if replaced:
            replaced.remove_others({shard.url for shard in spec.shards})
    return spec


@contextmanager
def _full_disk_explained(output: Output) -> Iterator[None]:
    """Name the output in the system's error about a full disk, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not output.is_local:
            raise
        raise OSError(
            error.errno,
            f"{output.names.folder}: expected space for all shards, found: {error.strerror}; "
            "complete shards are kept: make space, and run the same again to resume",
        ) from error


def journal_mode(output: Output) -> int:
    """Return the permissions of journals, which for a URL contain the passwords in it."""
    return 0o666 if output.is_local else 0o600


def plan_of(tasks: Sequence[ShardTask]) -> str:
    """Return the digest of what all shards are made from."""
    return hashlib.sha256("".join(task.source for task in tasks).encode("ascii")).hexdigest()


def place_of(task: ShardTask) -> Task:
    """Return the key of a shard in a journal."""
    return task.path, _KEY_SPLIT


@contextmanager
def unfinished_run(
    output: Output,
    plan: str,
    unwanted: Callable[[Journal], Iterable[str] | None],
    *,
    is_alone: bool = True,
) -> Iterator[tuple[Journal, Output]]:
    """Keep the journal of a run until the block ends and the dataset is complete.

    Args:
        output: Where it writes.
        plan: Digest of what the dataset is made from.
        unwanted: Takes the journal of an interrupted run; returns the shards of that run to delete,
            or None to resume it.
        is_alone: Whether no task still writes shards after an error, as one on an executor may.

    Yields:
        The journal, and the output, which overwrites what an interrupted run has left if it is not
        resumed.

    Raises:
        FileExistsError: The output exists, or is of an interrupted run on other samples.
    """
    with (
        _full_disk_explained(output),
        Journal(output.journal_path, mode=journal_mode(output)) as log,
    ):
        try:
            # A merge that was killed has noted records, and no plan yet.
            shards = None if log.plan is None and not len(log) else unwanted(log)
            if shards is not None:
                output = _starting_over(shards, log, output)
            _begin(plan, log, output)
            yield log, output
        except BaseException:
            # What fails before the first shard, such as a file that is locked, leaves nothing.
            with suppress(OSError):
                if is_alone and not output.existing_shards():
                    log.delete()
            raise
        # Last of all: until then, an interrupted run resumes from it.
        log.delete()


def _starting_over(unwanted: Iterable[str], log: Journal, output: Output) -> Output:
    """Delete the shards of an interrupted run; return the output that overwrites any others of it.

    A new run may have fewer shards, and those of the interrupted one would stay among them.
    """
    # With the spec, all of them are a dataset, which is moved aside before its shards change.
    is_published = upload.exists(output.spec_path, output.storage_options)
    existing = set() if is_published else set(output.existing_shards())
    for path in unwanted:
        if path in existing:
            upload.remove(path, output.storage_options)
    log.clear()
    return replace(output, if_exists="replace")


def _begin(plan: str, log: Journal, output: Output) -> None:
    """Note in the journal what it is a journal of, before the first shard.

    Raises:
        FileExistsError: The output exists, or the journal is of other files or options.
    """
    if log.plan == plan:
        return
    if output.if_exists == "error":
        if log.plan is not None and output.existing_shards():
            raise output.of_another_run()
        output.check_absent()
    log.begin(plan)


def write_all(
    tasks: Sequence[ShardTask],
    missing: Sequence[ShardTask],
    write_shard: WriteShard,
    log: Journal,
    executor: Executor | None,
    progress: bool | None,
    output: Output,
) -> None:
    """Write the missing shards, each of which is in the journal as soon as it is complete."""
    if len(missing) < len(tasks):
        kept = len(tasks) - len(missing)
        name = urls.redact(output.spec_path)
        _logger.info("%s: resumed; shards kept: %d of %d", name, kept, len(tasks))
    how = Publishing(output.if_exists == "error", output.storage_options)
    with Bar(output.work, sum(task.nbytes for task in tasks), "B", wanted=progress) as bar:
        done = (bar.total or 0) - sum(task.nbytes for task in missing)
        if executor is not None:
            _write_on(executor, partial(write_shard, how=how), missing, log, bar, done)
            return
        for task in missing:
            log.add(write_shard(task, how=replace(how, advance=partial(_advance, bar, done))))
            done += task.nbytes


def missing_tasks(tasks: Sequence[ShardTask], log: Journal, output: Output) -> list[ShardTask]:
    """Return the shards that are not in the journal, or were made from something else."""
    # The journal compares the times of local shards only.
    existing = None if output.is_local else set(output.existing_shards())
    missing = []
    for task in tasks:
        record = log.get(place_of(task))
        is_there = record is not None and (
            not record.num_samples or existing is None or task.path in existing
        )
        if record is None or record.source != task.source or not is_there:
            missing.append(task)
    return missing


def _advance(bar: Bar, done: int, nbytes: int) -> None:
    bar.reach(done + nbytes)


def _write_on(
    executor: Executor,
    write: Callable[[Any], ShardRecord],
    tasks: Sequence[ShardTask],
    log: Journal,
    bar: Bar,
    done: int,
) -> None:
    def watch(running: list[ShardTask]) -> None:
        bar.reach(done + sum(_unfinished_nbytes(task.path) for task in running))

    results = results_of(
        *(executor, write, tasks),
        lambda task: urls.redact(task.path),
        advice="run it again to resume: complete shards are kept",
        watch=watch,
    )
    with closing(results):
        for task, record in results:
            log.add(record)
            done += task.nbytes
    bar.reach(done)


def _unfinished_nbytes(path: str) -> int:
    return sum(nbytes for _, nbytes, _ in abandoned.temporary_files(path))


def _publish(
    tasks: Sequence[ShardTask], extras: Mapping[str, Any], log: Journal, output: Output
) -> DatasetSpec:
    records = [log.record(place_of(task)) for task in tasks]
    records = [record for record in records if record.num_samples]
    if not records:
        raise PackError(NO_SAMPLE.format(urls.redact(output.spec_path)))
    spec = DatasetSpec(
        tuple(ShardSpec(r.url, r.num_samples, r.nbytes, sha256=r.sha256) for r in records),
        output.name,
        output.pack_path,
        extras,
    )
    options = output.storage_options
    if output.if_exists == "error" and upload.exists(output.spec_path, options):
        _check_same_spec(spec, output)
    with upload.publishing(output.pack_path, storage_options=options) as file:
        write_pack(file, log.indexes((record.url, _KEY_SPLIT) for record in records))
    spec.save(output.spec_path, storage_options=options)
    return spec


def _check_same_spec(spec: DatasetSpec, output: Output) -> None:
    """Raise FileExistsError unless the spec that exists is the one that an earlier run saved."""
    found = published(output)
    if found is None or (found.name, found.shards) != (spec.name, spec.shards):
        raise output.already_exists(output.spec_path)


def published(output: Output) -> DatasetSpec | None:
    """Return the dataset whose spec exists; None if it is another document."""
    from wids.shards.specs.loader import load_spec
    from wids.storage.fetch import Fetcher

    try:
        return load_spec(output.spec_path, read=Fetcher(output.storage_options).read)
    except SpecError:
        return None
