"""Write shards, then their dataset index and their spec: in one run or in parts, on any executor.

A journal has the complete shards, each with a digest of what it was made from, so that an
interrupted run can be resumed (`unfinished_run`). A shard is written under a free name, or over
its own bytes; another file is overwritten on request only.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from wids.errors import PackError
from wids.publish.describe import ShardRecord
from wids.publish.executors import runs_here
from wids.publish.job import Job, finish
from wids.publish.journal import JobPart, Journal, ShardTask
from wids.publish.new_shard import Publishing
from wids.publish.output import Output, only_writer, sweep
from wids.shards.indexes.dataset_index_writer import write_dataset_index
from wids.shards.specs.model import DatasetSpec, ShardSpec
from wids.shards.specs.shard_columns import columns_of
from wids.shards.tars.index import ShardIndex
from wids.storage import upload
from wids.storage.progress import PartsBar
from wids.storage.transport import urls

_logger = logging.getLogger(__name__)


@contextmanager
def unfinished_run(
    output: Output,
    plan: str,
    unwanted: Callable[[Journal], Iterable[str] | None],
    *,
    is_alone: bool = True,
) -> Iterator[Output]:
    """Keep the journal of a run until the block ends and the dataset is complete.

    Args:
        output: Where it writes.
        plan: Digest of what the dataset is made from.
        unwanted: Takes the journal of an interrupted run; returns the shards of that run to delete,
            or None to resume it.
        is_alone: Whether no task still writes shards after an error, as one on an executor may.

    Yields:
        The output, which overwrites what an interrupted run has left if it is not resumed.

    Raises:
        FileExistsError: The output exists, or is of an interrupted run on other samples.
    """
    log = output.journal
    with _full_disk_explained(output), log.alone():
        try:
            shards = None if log.plan is None else unwanted(log)
            if shards is not None:
                output = _starting_over(shards, log, output)
            _begin(plan, log, output)
            yield output
        except BaseException:
            # What fails before the first shard, such as a file that is locked, leaves nothing.
            with suppress(OSError):
                is_kept = any(record.num_samples for record in log)
                is_unused = is_alone and not is_kept and not output.existing_shards()
                if is_unused or log.plan is None:
                    log.delete()
            raise
        # Last of all: until then, an interrupted run resumes from it.
        log.delete()


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
    begun = log.plan
    if begun == plan:
        return
    if output.if_exists == "error":
        if begun is not None and output.existing_shards():
            raise output.of_another_run()
        output.check_unpublished()
        output.check_absent(*output.existing_shards()[:1])
    log.clear()  # of other work: its functions may have been others, too
    log.begin(plan)


def plan_of(tasks: Iterable[ShardTask]) -> str:
    """Return the digest of what all shards are made from."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(task.source.encode("ascii"))
    return digest.hexdigest()


_NOT_RESUMED: Final = (
    "%s: started over: an interrupted run left complete shards (%d), which may have been written "
    "by other functions; pass version= (--version) to resume"
)
_KEPT: Final = "%s: shards of the input that are kept where they are: %d of %d"
_MERGED: Final = "%s: already published, and no part is left to merge"


@dataclass(frozen=True)
class FinalShard:
    """A shard of the new dataset: one that was written, or one of the input that stays.

    Attributes:
        spec: Its entry in the new spec.
        index: Returns its index with checksums, and its length in bytes.
    """

    spec: ShardSpec
    index: Callable[[], tuple[ShardIndex, int]]


@dataclass(frozen=True)
class ShardJob(Job):
    """Writing shards: all that is decided before the first one.

    Attributes:
        output: Where they are written.
        write: Writes one of them, on the workers of an executor, and returns its description; that
            of no samples if it was left out.
        extras: Further entries of the spec.
        resume: False to write again what an interrupted run has left.
        is_comparable: False if the tasks do not state which functions make the shards; then what an
            interrupted run of the same tasks has left is written again too.
        originals: For each task the shard of the input that is kept if the task finds nothing to
            write, or None. None of these is ever under a name of the output, so none is deleted or
            replaced.
        cut_short: Gets the pictures without their end that were written.
    """

    output: Output
    write: Callable[..., ShardRecord]
    extras: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = True
    is_comparable: bool = True
    originals: Sequence[FinalShard | None] = ()
    cut_short: list[str] = field(default_factory=list)

    def run(self, executor: Executor | None, progress: bool | None = None) -> DatasetSpec:
        """Write the shards that are missing, then the dataset index and the spec; see `Job`."""
        output, is_alone = self.output, runs_here(executor, self.tasks)
        output.make_folder()
        with (
            only_writer(output),
            # Under the locks, so that a run that is not interrupted keeps its journal.
            unfinished_run(output, self.plan, self._unwanted, is_alone=is_alone) as target,
        ):
            missing = self._missing(self.tasks, target)
            replaces = target.if_exists == "replace"
            with target.aside() if replaces and missing else nullcontext():
                self._write(missing, target, executor, progress)
                spec = self._publish(target)
            if replaces:
                target.remove_others({shard.url for shard in spec.shards})
        return spec

    def run_part(self, part: JobPart, executor: Executor | None) -> Sequence[ShardSpec]:
        """Write the shards of a part that are missing; see `Job`.

        What killed workers left is deleted once it is old, as others may work beside this part; the
        merge deletes the rest.
        """
        self.output.check_unpublished()
        existing: list[str] = []
        with suppress(FileNotFoundError):  # the folder is made below
            existing += self.output.existing_shards()[:1]
        if self.journal.plan is None:  # looked at last, since other parts may begin meanwhile
            self.output.check_absent(*existing)
        self.output.make_folder()
        if self.output.is_local:
            sweep(self.output)
        return super().run_part(part, executor)

    def merge(self) -> DatasetSpec:
        """Publish the shards of all parts; see `Job`.

        Nothing is done if they have been merged, or the merge was killed after it had saved the
        spec and deleted the journal's plan.
        """
        output = self.output
        if self.journal.plan is None and upload.exists(output.spec_path, output.storage_options):
            with only_writer(output):  # which deletes what a killed merge has left
                spec = output.saved_spec()
            if spec is not None and self._is_of_tasks(spec):
                _logger.warning(_MERGED, urls.redact(output.spec_path))
                return spec
        return super().merge()

    def _is_of_tasks(self, spec: DatasetSpec) -> bool:
        """Return whether a dataset has the names and counts of the tasks, and all its shards."""
        there = {*self.output.existing_shards()}
        counts = {shard.url: shard.num_samples for shard in spec.shards}
        kept_urls: set[str] = set()
        for number, task in enumerate(self.tasks):
            original = self.originals[number] if self.originals else None
            if original and counts.get(original.spec.url) == original.spec.num_samples:
                kept_urls.add(original.spec.url)  # one shard may be kept several times
                continue
            count = task.num_samples
            num_samples = counts.pop(task.path, None if count is None else 0)
            if count not in (None, num_samples) or (num_samples and task.path not in there):
                return False
        return counts.keys() <= kept_urls

    def _unwanted(self, log: Journal) -> Iterable[str] | None:
        """Return the shards of an interrupted run that are written again; None to resume it."""
        if not self.resume:
            return [record.url for record in log]
        if self.is_comparable or log.plan != self.plan:
            return None
        _logger.warning(_NOT_RESUMED, urls.redact(self.output.spec_path), len(list(log)))
        # All of them, since one may be published and not noted.
        return [task.path for task in self.tasks]

    def _finish(self, tasks: Sequence[ShardTask], executor: Executor | None) -> None:
        self._write(self._missing(tasks, self.output), self.output, executor)

    def _missing(self, tasks: Sequence[ShardTask], output: Output) -> Sequence[ShardTask]:
        """Return the tasks whose shards are not in the journal, or not where it says."""
        log = self.journal
        # The journal compares the times of local shards only.
        existing = None if output.is_local or not log.has_records else {*output.existing_shards()}

        def is_complete(record: ShardRecord) -> bool:
            return not record.nbytes or existing is None or record.url in existing

        missing = log.missing(tasks, is_complete)
        if len(missing) < len(tasks):
            kept, name = len(tasks) - len(missing), urls.redact(output.spec_path)
            _logger.info("%s: resumed; shards kept: %d of %d", name, kept, len(tasks))
        return missing

    def _write(
        self,
        tasks: Sequence[ShardTask],
        output: Output,
        executor: Executor | None,
        progress: bool | None = None,
    ) -> None:
        nbytes = sum(task.nbytes or 0 for task in tasks)
        how = Publishing(output.if_exists == "error", output.storage_options)
        write = partial(self.write, how=how)
        with PartsBar(output.work, len(tasks), nbytes, wanted=progress) as bar:
            finish(tasks, write, self.journal, executor, bar, workers_see_log=output.is_local)

    def _publish(self, output: Output) -> DatasetSpec:
        shards = columns_of(shard.spec for shard in self._final())
        if not shards:
            raise no_sample_error(output)
        num_kept = 0
        for record in map(self.journal.record, self.tasks):
            self.cut_short.extend(record.cut_short)
            num_kept += record.is_kept
        if self.originals:
            _logger.info(_KEPT, urls.redact(output.spec_path), num_kept, len(shards))
        spec = DatasetSpec(shards, output.name, output.dataset_index_path, self.extras)
        options = output.storage_options
        if output.if_exists == "error" and upload.exists(output.spec_path, options):
            # Only the spec that an earlier run saved may be there.
            there = output.saved_spec()
            if there is None or (there.name, there.shards) != (spec.name, spec.shards):
                raise output.already_exists(output.spec_path)
        with upload.publishing(output.dataset_index_path, storage_options=options) as file:
            write_dataset_index(file, map(_dataset_index_entry, self._final()))
        spec.save(output.spec_path, storage_options=options)
        return spec

    def _final(self) -> Iterator[FinalShard]:
        """Yield the shards that have samples."""
        for number, task in enumerate(self.tasks):
            record = self.journal.record(task)
            kept = self.originals[number] if record.is_kept else None
            if record.num_samples:
                yield kept or FinalShard(record.spec(), partial(self.journal.index, task))


def no_sample_error(output: Output) -> PackError:
    """Return the error for a dataset without samples."""
    name = urls.redact(output.spec_path)
    return PackError(f"{name}: expected samples to write, found none: no sample is left")


def _dataset_index_entry(shard: FinalShard) -> tuple[str, int, ShardIndex]:
    """Return base name, length and index of a shard, as a dataset index takes them."""
    shard_index, nbytes = shard.index()
    return os.path.basename(urls.path_of(shard.spec.url)), nbytes, shard_index
