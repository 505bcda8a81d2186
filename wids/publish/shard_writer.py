"""Write samples to numbered tar shards, then the spec and the dataset index that describe them.

Decides which shard gets a sample, and what happens to existing shards.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, ClassVar, Literal, get_args

from wids.publish.appending import publish_appended, published
from wids.publish.describe import ShardRecord
from wids.publish.journal import APPENDING, ShardTask, opened_journal
from wids.publish.new_shard import written_record
from wids.publish.new_spec import described, new_dataset_index
from wids.publish.output import Output, ShardNames, only_writer
from wids.publish.problems import log_problem, repeated_keys
from wids.publish.tar_writer import BlockWriter, Encoder, TarWriter, check_target, member_encoder
from wids.shards.specs.model import DatasetSpec, ShardSpec
from wids.storage import fetch, upload
from wids.storage.progress import Bar
from wids.storage.sizes import count_text
from wids.storage.transport import urls

IfExists = Literal["error", "resume", "append", "replace"]

_logger = logging.getLogger(__name__)


class ShardWriter(BlockWriter):
    """Writes samples into numbered shards, and at the end their spec and their dataset index.

    Use it as a context manager. A shard appears under its name when it is complete. If the block
    ends with an exception, or the process is killed, only complete shards stay. To resume,
    run the program again with ``if_exists="resume"`` and skip the first ``writer.num_samples``
    samples, as in the example.

    Not safe to share between threads. Give each of several processes its own pattern: a second
    writer of a pattern is an error while the first one is open.

    Args:
        pattern: Path or URL of the shards, with a ``%06d`` for their number.
        maxcount: Maximum number of samples in a shard.
        maxsize: Maximum length of a shard in bytes, unless a single sample is larger.
        post: Called with the path of each complete shard.
        start_shard: Number of the first shard.
        spec: Where to write the spec; True for the pattern without its number, ``train.json``;
            False for none. The dataset index is written beside it, ``train.index``.
        name: Name of the dataset in the spec; None for the stem of the spec's file name.
        if_exists: What to do if shards or the spec exist already: ``"error"``, ``"resume"`` to keep
            the shards and continue after them, ``"append"`` to add shards to a published dataset,
            or ``"replace"`` to overwrite them: from the first new shard to the last there is no
            spec, and at the end the other shards of the previous one are deleted. Resuming finishes
            an interrupted run of the same program: it reads the shards that exist, and writes a
            spec of all shards. Appending begins new shards after the last number, and does not read
            the earlier ones, which another program may have written; see `append_shards`. The
            dataset is unchanged until the writer is closed.
        encoder, mode, user, group, mtime, compress, storage_options: As for `TarWriter`.

    Attributes:
        num_samples: Samples in all shards so far, including those that were resumed, but not
            those of a dataset that is appended to.
        shards: The complete shards, as the spec will describe them, with the same exception.

    Raises:
        FileExistsError: A shard or the spec exists already.
        FileNotFoundError: There is no spec to append to.
        SpecError: Nothing can be appended to the spec.
        OSError: Another writer of the same pattern is open.
        ValueError: An argument is invalid.

    Examples:
        >>> import itertools, wids
        >>> samples = [{"__key__": f"{n:06d}", "txt": f"text {n}"} for n in range(250)]
        >>> with wids.ShardWriter("train-%06d.tar", maxcount=100, if_exists="resume") as writer:
        ...     for sample in itertools.islice(samples, writer.num_samples, None):
        ...         nbytes = writer.write(sample)
        >>> with wids.ShardListDataset("train.json") as dataset:
        ...     dataset.lengths, dataset[249][".txt"]
        ([100, 100, 50], 'text 249')
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        maxcount: int = 100_000,
        maxsize: float = 3e9,
        post: Callable[[str], Any] | None = None,
        start_shard: int = 0,
        *,
        spec: str | os.PathLike[str] | bool = True,
        name: str | None = None,
        if_exists: IfExists = "error",
        encoder: Encoder = None,
        mode: int = 0o444,
        user: str = "",
        group: str = "",
        mtime: float = 0,
        compress: bool | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_target(pattern, compress)
        super().__init__()
        names = ShardNames.from_pattern(pattern)
        self._title = urls.redact(os.fspath(pattern))
        _check_options(if_exists, maxcount, maxsize)
        self.maxcount = maxcount
        self.maxsize = maxsize
        self.post = post
        self.num_samples = 0
        self.shards: list[ShardSpec] = []
        self._number = start_shard
        self._output = Output(
            *(names, names.spec_path(spec), "", "writing", if_exists, storage_options, start_shard)
        )
        self._dataset_name = name
        self._extras: Mapping[str, Any] = {}
        self._to_members = member_encoder(encoder)
        self._tar_options = {"mode": mode, "user": user, "group": group, "mtime": mtime}
        self._has_failed = False
        self._writer: TarWriter | None = None
        self._stack = ExitStack()
        try:
            self._stack.enter_context(only_writer(self._output))
            # On the disk of the shards, since the system's folder may have less space.
            folder = names.folder if self._output.is_local else None
            self._journal = self._stack.enter_context(opened_journal(None, folder=folder))
            if if_exists == "error":
                self._output.check_absent(names.path(start_shard))
                self._output.check_unpublished()
            elif if_exists == "resume":
                self._resume()
            elif if_exists == "append":
                self._check_appending()
        except BaseException:
            self._stack.close()
            raise

    def write(self, sample: Mapping[str, Any]) -> int:
        """Append a sample as `TarWriter.write` does, to the next shard if this one is full."""
        if not self._is_open:
            raise ValueError("a sample: expected an open writer, found one that was closed")
        self._check_process()  # before another shard begins or ends
        self._check_not_failed()
        key, members = self._to_members(sample)
        nbytes = sum(map(len, members.values()))
        writer = self._writer
        if writer is not None and (
            writer.num_samples >= self.maxcount or writer.nbytes_with(members) > self.maxsize
        ):
            self._finish_shard(writer)
        if self._writer is None:
            output = self._output
            path, is_new = output.names.path(self._number), output.if_exists != "replace"
            if is_new:
                output.check_absent(path)
            if output.if_exists == "append":  # deleted by the next one, unless it is published
                output.journal.add(ShardRecord(path, "first", None, 0, 0, None, b"", self._plan))
            self._writer = _NumberedTar(
                path,
                is_new=is_new,
                storage_options=output.storage_options,
                **self._tar_options,  # type: ignore[arg-type]
            )
        self._writer.append(key, members)
        self.num_samples += 1
        return nbytes

    def _publish(self) -> None:
        """Publish the last shard, the dataset index and the spec."""
        self._check_process()
        self._check_not_failed()
        if self._writer is not None:
            self._finish_shard(self._writer)
        if self._output.spec_path and self.shards:
            self._publish_spec()
        self._stack.close()

    def _drop(self, *failure: Any) -> None:
        if os.getpid() != self._process:  # forked since: all that was written is its parent's
            return
        with suppress(OSError):  # a full disk: what could not be written is not needed
            try:
                if self._writer is not None:
                    self._writer.__exit__(*failure)
                if self._output.if_exists == "append" and not self.shards:
                    self._output.journal.delete()
            finally:
                self._stack.__exit__(*failure)

    def _check_not_failed(self) -> None:
        if self._has_failed:
            raise OSError(
                'an earlier shard could not be completed; run again with if_exists="resume"'
            )

    def _finish_shard(self, writer: TarWriter) -> None:
        # Until everything for the shard is done: after an error in between, the next shard would
        # overwrite a published one.
        self._has_failed = True
        output = self._output
        if output.if_exists == "replace" and output.spec_path and not self.shards:
            self._stack.enter_context(self._output.aside())
        writer.close()
        self._writer = None
        path = output.names.path(self._number)
        self._add(written_record(writer, path))
        self._has_failed = False
        if self.post is not None:
            self.post(path)

    def _add(self, record: ShardRecord) -> None:
        """Take a published shard into the spec and the dataset index."""
        self.shards.append(record.spec())
        self._number += 1
        self._journal.add(record)

    def _resume(self) -> None:
        """Take over the shards that exist, and what their spec says of the dataset."""
        output = self._output
        if output.spec_path and output.is_unfinished():
            raise FileExistsError(
                f"{urls.redact(self._output.aside_path)}: expected shards of one run, found a "
                "dataset that an interrupted run was replacing, so that shards may be of both; "
                'run again with if_exists="replace"'
            )
        fetcher = fetch.Fetcher(output.storage_options)
        numbers = output.names.existing(self._number, output.storage_options)
        with Bar("reading existing shards", len(numbers), "shard") as bar:
            for count, number in enumerate(numbers, start=1):
                path = output.names.path(number)
                record = described(fetcher, ShardTask(path, None, None, ""))
                self._add(record)
                self.num_samples += record.num_samples
                bar.reach(count)
        if output.spec_path and upload.exists(output.spec_path, output.storage_options):
            spec = output.spec_at(output.spec_path)
            self._extras = spec.extras
            if self._dataset_name is None:
                self._dataset_name = spec.name

    def _check_appending(self) -> None:
        """Begin after the last shard of a published dataset."""
        output = self._output
        if not output.spec_path:
            raise ValueError('if_exists="append": expected a spec to append to, found spec=False')
        old = published(output.spec_path, output.storage_options)
        if old.key_split != "first":
            raise ValueError(
                f'{urls.redact(output.spec_path)}: expected key_split="first" as this writer '
                f'dataset indexes, found "{old.key_split}"'
            )
        listed = {shard.url for shard in old.spec.shards}
        numbers = output.names.existing_numbers(output.start, output.storage_options)
        # A spec that has changed since may list what an append left, or a rewrite replaced it.
        self._plan = f"{APPENDING}{hashlib.sha256(old.data).hexdigest()}"
        log = self._output.journal
        self._stack.enter_context(log.alone())
        own = {record.url for record in log if record.source == self._plan}
        if not (log.plan or APPENDING).startswith(APPENDING):
            log.check_plan(self._plan)
        for number in sorted(numbers):
            path = output.names.path(number)
            if path in listed or urls.join(old.base, os.path.basename(path)) in listed:
                continue
            if path not in own:
                raise FileExistsError(
                    f"{urls.redact(path)}: exists, but {urls.redact(output.spec_path)} does not "
                    "list it, and no append to it as it is now has left it; if it is new, add it "
                    "with `wids create --append`; if rewrite(keep_shards=True) replaced it, write "
                    "new shards under another pattern"
                )
            upload.remove(path, output.storage_options)  # of an append that was interrupted
            numbers.remove(number)
        log.clear()
        log.begin(self._plan)
        self._number = max(numbers, default=self._number - 1) + 1

    def _publish_spec(self) -> None:
        path, options = self._output.spec_path, self._output.storage_options
        indexes = self._journal.indexes(
            ShardTask(shard.url, shard.nbytes, shard.num_samples, "") for shard in self.shards
        )
        if self._output.if_exists == "append":
            with new_dataset_index(None, indexes) as dataset_index:
                publish_appended(path, tuple(self.shards), dataset_index, storage_options=options)
            self._output.journal.delete()
            return
        if self._output.if_exists == "error":
            self._output.check_unpublished()
        with new_dataset_index(self._output.dataset_index_path, indexes, options) as dataset_index:
            for problem in repeated_keys(dataset_index, self.shards):
                log_problem(problem)
        name = self._dataset_name
        if name is None:
            name = os.path.splitext(os.path.basename(path))[0]
        spec = DatasetSpec(tuple(self.shards), name, self._output.dataset_index_path, self._extras)
        spec.save(path, storage_options=options)
        if self._output.if_exists == "replace":
            kept = {shard.url for shard in self.shards}
            self._output.remove_others(kept)
            if remark := self._output.remark_on_others(kept):
                _logger.warning("%s: %s", urls.redact(path), remark)

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        samples, shards = count_text(self.num_samples, "sample"), len(self.shards)
        counts = f"{samples}, {count_text(shards, 'complete shard')}"
        return f"<ShardWriter {self._title!r}: {counts}, {state}>"


class _NumberedTar(TarWriter):
    """A shard of a `ShardWriter`, which swept the folder once: it may have 100,000 shards."""

    _sweeps: ClassVar[bool] = False


def _check_options(if_exists: str, maxcount: int, maxsize: float) -> None:
    if if_exists not in get_args(IfExists):
        raise ValueError(
            f'if_exists: expected "error", "resume", "append" or "replace", found {if_exists!r}'
        )
    if not (maxcount >= 1 and maxsize >= 1):  # also NaN
        raise ValueError(
            f"expected a maxcount and a maxsize of at least 1, found {maxcount} and {maxsize}"
        )
