"""Make spec and dataset index of shards: in one run, in parts, or appended to another dataset.

The descriptions stay in a journal until the spec is saved, so that an interrupted run can be
resumed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import numpy as np

from wids.errors import SpecError
from wids.publish.appending import append_shards
from wids.publish.journal import APPENDING, JobPart, Journal
from wids.publish.new_spec import Describer, build_spec, first_look, first_places
from wids.publish.output import unfinished_path
from wids.publish.problems import Problem
from wids.shards.costs import DownloadCost, download_cost
from wids.shards.foreign.foreign_counts import with_stated_counts
from wids.shards.specs.loader import load_with
from wids.shards.specs.model import COUNTS_FROM, DatasetSpec, ShardSpec, check_references
from wids.shards.specs.naming import dataset_name, is_document, is_list, tar_urls
from wids.shards.specs.saved_document import private_mode, save_document
from wids.shards.specs.saving import name_with_query
from wids.shards.specs.shard_columns import columns_of
from wids.storage import upload
from wids.storage.arrays import LazySequence
from wids.storage.fetch import Fetcher
from wids.storage.files import sweep_beside
from wids.storage.remote_lengths import known_lengths
from wids.storage.sizes import count_text
from wids.storage.transport import urls

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpecJob:
    """Shards, and the spec that describes them in the end.

    Attributes:
        named: The shards.
        output: Absolute path or URL of the spec.
        base: Folder or URL where the shards will be published; None if they stay where they are.
        options: What describing shards takes, as `build_spec`: ``key_split``, ``repeated``,
            ``digests`` and ``on_cost``.
        storage_options: For servers.
        previous: Which file a local output was when the work began; None for none.
    """

    named: DatasetSpec
    output: str
    base: str | None
    options: Mapping[str, Any]
    storage_options: Mapping[str, Any]
    previous: tuple[int, int] | None

    @property
    def journal(self) -> Journal:
        """The journal of an unfinished run."""
        return Journal(unfinished_path(self.output), self._mode)

    def shards(self, part: JobPart | None = None) -> Sequence[ShardSpec]:
        """Return the shards of a part; None for all."""
        return self.named.shards if part is None else part.of(self._distinct)

    @cached_property
    def _describer(self) -> Describer:
        fetcher = Fetcher(self.storage_options)
        fetcher.bind_options(self.named.origin)
        return Describer(fetcher, **self.options)

    def measured(self, ask: Callable[[DownloadCost], None], part: JobPart | None = None) -> SpecJob:
        """Return the same job with the lengths of its shards, after servers were asked for them.

        Args:
            ask: Called with what will be downloaded at first; an exception from it ends the work.
                Shards in the journal of an interrupted run cost nothing.
            part: The part whose shards are measured; None for all.
        """
        shards = self.shards(part)
        remote = [ShardSpec(shard.url) for shard in shards if not urls.is_local(shard.url)]
        if not remote:
            return self
        describer = self._describer
        found = download_cost(remote, describer.fetcher).nbytes_of
        shards = describer.missing(shards, self.journal)
        left = DownloadCost({s.url: found[s.url] for s in shards if s.url in found})
        ask(left if describer.digests else first_look(left))
        # What is stated stays: it also says to which version a stated digest belongs.
        measured = (
            s if s.nbytes is not None else replace(s, nbytes=found.get(s.url))
            for s in self.named.shards
        )
        shards = columns_of(measured)
        return replace(self, named=replace(self.named, shards=shards))

    def run(
        self,
        executor: Executor | None,
        on_problem: Callable[[Problem], None],
        *,
        name: str | None,
        info: str | None,
        has_index: bool,
    ) -> DatasetSpec:
        """Describe the shards, and save spec and dataset index.

        Args:
            executor: Where to do the work.
            on_problem: Called with what is wrong with the dataset.
            name: Name of the dataset; None for that of the document, or of the first shard.
            info: A description for the spec.
            has_index: Whether to write the dataset index.
        """
        dataset_index = os.path.splitext(self.output)[0] + ".index"
        for path in (self.output, dataset_index) if urls.is_local(self.output) else ():
            # Whatever their age: the journal lets only one process at a time get here.
            sweep_beside(path, min_age_s=0)
        default = self.named.name or dataset_name(self.named.shards[0].url)
        with self._journalled() as options:
            spec = build_spec(
                self.named,
                name=default if name is None else name,
                dataset_index=dataset_index if has_index else None,
                executor=executor,
                on_problem=on_problem,
                **options,
            )
            self._save(spec, info, dataset_index)
        return spec

    def run_as_stated(self, *, name: str | None, info: str | None) -> DatasetSpec:
        """Save a spec of what the document, or files beside the shards, state; read no shard.

        Args:
            name: As for `run`.
            info: As for `run`.

        Raises:
            SpecError: Nothing states the number of samples of a shard.
            MismatchError: Two files state different ones.
            NotFoundError: A shard does not exist.
        """
        fetcher, shards = self._describer.fetcher, self.named.shards
        # Also those with a count: another file may state another count.
        shards = with_stated_counts(shards, range(len(shards)), fetcher)
        missing = [shard.url for shard in shards if shard.num_samples is None]
        if missing:
            more = f" and {count_text(len(missing) - 1, 'more shard')}" if missing[1:] else ""
            raise SpecError(
                f"{urls.redact(missing[0])}{more}: expected the number of samples in a file beside "
                "it, such as sizes.json, found none; run without --as-stated, which reads shards"
            )
        sizes = known_lengths(fetcher, {shard.url: shard.nbytes for shard in shards})
        default = self.named.name or dataset_name(shards[0].url)
        published = (_as_published(shard, sizes[shard.url]) for shard in shards)
        stated = columns_of(published)
        spec = replace(self.named, shards=stated, name=default if name is None else name)
        self._save(spec, info, "")
        return spec

    def _save(self, spec: DatasetSpec, info: str | None, dataset_index: str) -> None:
        """Save a spec with a description, and where its shards will be published."""
        document = spec.lazy_document(urls.parent(self.output))
        if info is not None:
            document["info"] = info
        if self.base is not None:
            self._set_base(document, self.base, dataset_index)
        if _file_at(self.output) != self.previous:
            _logger.warning(
                "%s: another process wrote it while this one described the shards; this one "
                "replaces it",
                urls.redact(self.output),
            )
        save_document(self.output, document, self._mode, storage_options=self.storage_options)

    def append(
        self, executor: Executor | None, on_problem: Callable[[Problem], None]
    ) -> DatasetSpec:
        """Add the shards to the dataset that the output describes; see `run`."""
        with self._journalled() as options:
            return append_shards(
                *(self.output, self.named),
                base=self.base,
                executor=executor,
                on_problem=on_problem,
                **options,
            )

    @contextmanager
    def _journalled(self) -> Iterator[dict[str, Any]]:
        """Provide the arguments of all work that a journal resumes, and delete it at the end."""
        log = self.journal
        if not (log.plan or _WORK).startswith((_WORK, APPENDING)):
            log.check_plan(_WORK)
        with log.alone():
            yield {**self.options, "journal": log, "storage_options": self.storage_options}
            # Last of all: until the spec is saved, an interrupted run resumes from it.
            log.delete()

    def _set_base(self, document: dict[str, Any], base: str, dataset_index: str) -> None:
        """State in a document where its shards will be published."""
        document["shardlist"] = LazySequence(_without_folder, document["shardlist"])
        document["base"] = base
        is_local = urls.is_local(self.output)
        if "index" in document and (urls.is_local(base) or not is_local):
            # A relative name would be looked for in the base. If only the base is remote, that is
            # where the dataset index will be published.
            document["index"] = dataset_index if is_local else urls.relative(dataset_index, base)

    def run_part(self, part: JobPart, executor: Executor | None) -> Sequence[ShardSpec]:
        """Describe a part of the shards, and return what was found.

        Raises:
            FileExistsError: There is a journal of this part for other shards or options.
            WidsError: A shard cannot be read.
        """
        own, describer = part.of(self._distinct), replace(self._describer, executor=executor)
        log = self.journal
        with log.part(part, self._plan):
            describer.describe(own, log)
            records = map(log.record, describer.tasks(own))
            return columns_of(record.spec() for record in records)

    def merge(self) -> None:
        """Take over the descriptions of all parts, so that `run` describes nothing again.

        Raises:
            FileNotFoundError: A part is missing.
            FileExistsError: A part is of other shards or options.
            ValueError: A shard has changed since its part was made.
        """
        tasks = self._describer.tasks(self._distinct)
        self.journal.check_parts(self._plan, tasks, lambda task: (task, ""))

    @cached_property
    def _mode(self) -> int:
        """The permissions of new files with the URLs of the shards."""
        return private_mode(chain([self.base or ""], (shard.url for shard in self.named.shards)))

    @cached_property
    def _distinct(self) -> Sequence[ShardSpec]:
        """The shards, each once."""
        return self._describer.distinct(self.named.shards)

    @property
    def _plan(self) -> str:
        """Digest of what all parts are made from: of a JSON list of the tasks and `digests`."""
        digest, start = hashlib.sha256(), "[["
        for task in self._describer.tasks(self._distinct):
            digest.update((start + json.dumps(task)).encode("ascii"))
            start = ", "
        digest.update(f"], {json.dumps(self._describer.digests)}]".encode("ascii"))
        return _WORK + digest.hexdigest()


_WORK: Final = "describing "
"""The beginning of the plans of all such jobs."""


def prepare_spec(
    names: Sequence[str],
    output: str,
    *,
    base: str | None,
    is_new: bool,
    storage_options: Mapping[str, Any],
    split: str | None = None,
    **options: Any,
) -> SpecJob:
    """Return the job of describing shards; reject now what would fail after reading all of them.

    Args:
        names: Shards, patterns, URLs or folders, each shard once; or one document, for its shards
            in order.
        output: Path or URL of the spec.
        base: See `SpecJob`.
        is_new: Whether the output is a new spec, and not one to append to.
        storage_options: See `SpecJob`.
        split: The only split of the one name; see `load_spec`.
        options: See `SpecJob`.

    Raises:
        FileNotFoundError: No shards are named, or there is no folder for the output.
        ValueError: The output has another ending than ``.json``; or readers could not follow the
            references of the spec.
    """
    check_output(output, ".json")
    target = upload.absolute(output)
    named = _named_shards(names, Fetcher(storage_options), split)
    files: Sequence[str] = LazySequence(attrgetter("url"), named.shards)
    if base is not None:
        _check_names(files)
    if is_new:
        check_references(target, files if base is None else [base])
    return SpecJob(named, target, base, options, storage_options, _file_at(target))


def _named_shards(names: Sequence[str], fetcher: Fetcher, split: str | None) -> DatasetSpec:
    if len(names) == 1 and (split is not None or is_document(names[0]) or is_list(names[0])):
        return load_with(fetcher, names[0], None, allow_pipe=False, split=split)
    if split is not None:
        raise ValueError(f"--split: expected one dataset, found {len(names)} names")
    # Sorted, because folders list their files in any order, and the order of shards is the order of
    # samples.
    return DatasetSpec(columns_of(map(ShardSpec, tar_urls(names, fetcher))))


def check_output(output: str, ending: str) -> None:
    """Reject now what would fail after all shards were read.

    Args:
        output: Path or URL of a file.
        ending: How its name has to end.

    Raises:
        ValueError: It ends in another way.
        FileNotFoundError: There is no such folder.
    """
    if not output.endswith(ending):
        found = repr(urls.redact(output))
        raise ValueError(f"--output: expected a name that ends in {ending}, found {found}")
    folder = os.path.dirname(os.path.abspath(urls.local_path(output)))
    if urls.is_local(output) and not os.path.isdir(folder):
        raise FileNotFoundError(f"{folder}: no such folder, for --output")


def _file_at(output: str) -> tuple[int, int] | None:
    """Return what tells a local file from another of its name; None if there is none."""
    try:
        status = os.stat(urls.local_path(output)) if urls.is_local(output) else None
    except FileNotFoundError:
        return None
    return status and (status.st_ino, status.st_mtime_ns)


def _check_names(files: Sequence[str]) -> None:
    """Raise ValueError for files that cannot be in one folder."""
    names: Sequence[str] = LazySequence(name_with_query, files)
    places = first_places(names)
    if len(places) < len(names):
        repeated = names[int(np.setdiff1d(np.arange(len(names)), places)[0])]
        raise ValueError(
            f"--base: expected shards with different names for one folder, found {repeated} more "
            "than once"
        )


def _without_folder(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "url": name_with_query(entry["url"])}


def _as_published(shard: ShardSpec, nbytes: int | None) -> ShardSpec:
    """Return a shard with its length; of the file that counts its samples only the name stays."""
    extras = dict(shard.extras)
    if COUNTS_FROM in extras:
        extras[COUNTS_FROM] = os.path.basename(extras[COUNTS_FROM])
    return replace(shard, nbytes=nbytes, extras=extras)
