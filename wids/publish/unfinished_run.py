"""Keep the journal of a run until its dataset is complete, and resume or start over after a kill.

A shard is written under a free name, or over its own bytes; another file is overwritten on request
only.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from wids.publish.journal import Journal
from wids.publish.output import Output
from wids.storage import upload


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
        Journal(output.journal_path, mode=output.journal_mode) as log,
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
                is_kept = any(log.record(task).num_samples for task in log)
                if is_alone and not is_kept and not output.existing_shards():
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
    if log.plan == plan:
        return
    if output.if_exists == "error":
        if log.plan is not None and output.existing_shards():
            raise output.of_another_run()
        output.check_unpublished()
        output.check_absent(*output.existing_shards()[:1])
    if log.plan is not None:  # of other work: its functions may have been others, too
        log.clear()
    log.begin(plan)
