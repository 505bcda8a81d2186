"""Work on shards in pieces: whole, in parts on several machines, or merged from them.

A job has a task for each shard. A task makes one record, which is in the journal as soon as the
shard is complete, and what has none is still to be done. So resuming, working in parts and merging
are the same: a run of all tasks, or of those of a part, that does what is missing. At the end of
all tasks the job publishes what is made of their records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from wids.publish.describe import ShardRecord
from wids.publish.executors import results_of
from wids.publish.journal import AnyTask, JobPart, Journal, ShardTask
from wids.shards.specs.model import DatasetSpec, ShardSpec
from wids.shards.specs.shard_columns import columns_of
from wids.storage.progress import PartsBar
from wids.storage.transport import urls


@dataclass(frozen=True)
class Job:
    """Work on shards, and what is published of them in the end, which a subclass says.

    Attributes:
        tasks: One for each shard.
        journal: Where the records of finished shards are.
        plan: What all parts do: journals of other work are refused.
    """

    tasks: Sequence[ShardTask]
    journal: Journal
    plan: str

    def run(self, executor: Executor | None) -> DatasetSpec:
        """Do what is missing, and publish what is made of all records.

        Args:
            executor: Where to do it; None for this thread.

        Raises:
            FileExistsError: The output exists, or the journal is of other work.
            WidsError: A shard cannot be read.
        """
        raise NotImplementedError

    def run_part(self, part: JobPart, executor: Executor | None) -> Sequence[ShardSpec]:
        """Do what is missing of a part, and return all of its shards.

        Raises:
            FileExistsError: The output exists, or the journal is of other work.
            WidsError: A shard cannot be read.
        """
        own = part.of(self.tasks)
        with self.journal.part(part, self.plan):
            self._finish(own, executor)
            records = map(self.journal.record, own)
            return columns_of(each.spec() for each in records if each.num_samples or each.nbytes)

    def merge(self) -> DatasetSpec:
        """Publish what is made of the records of all parts.

        Raises:
            FileNotFoundError: A part is missing.
            FileExistsError: The output exists, or the journal is of other work.
            ValueError: A shard has changed since its part was finished.
        """
        self.journal.check_parts(self.plan, self.tasks)
        return self.run(None)  # as after an interruption: nothing is left to do

    def _finish(self, tasks: Sequence[ShardTask], executor: Executor | None) -> None:
        """Do what is missing of some tasks; each has a record then."""
        raise NotImplementedError


def finish(
    tasks: Sequence[AnyTask],
    function: Callable[[AnyTask], ShardRecord | None],
    log: Journal,
    executor: Executor | None,
    bar: PartsBar,
    *,
    workers_see_log: bool = False,
) -> None:
    """Do tasks on an executor, each of which is in the journal as soon as it is finished.

    Args:
        tasks: The tasks.
        function: Does a task on a worker; returns its record, None if the task is left to others.
        log: The journal.
        executor: Where to do them; None for this thread.
        bar: Shows what is finished.
        workers_see_log: Whether workers write the records, or else this process.
    """
    results = results_of(
        *(executor, partial(_recorded, log, function) if workers_see_log else function, tasks),
        lambda task: urls.redact(task.path),
        advice="run it again to resume: complete shards are kept if there is a journal",
    )
    with closing(results):
        for _, record in results:
            if record is not None:
                if not workers_see_log:
                    log.add(record)
                bar.finish(record.nbytes)


def _recorded(
    log: Journal, function: Callable[[AnyTask], ShardRecord | None], task: AnyTask
) -> ShardRecord | None:
    """Do a task and write its record on a worker, which sees the journal."""
    record = function(task)
    if record is None:
        return None
    try:
        log.add(record)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{log.path}: expected the journal of this run on the worker too, found no such folder;"
            " workers have to see the same files, under the same paths"
        ) from error
    return replace(record, blob=b"")
