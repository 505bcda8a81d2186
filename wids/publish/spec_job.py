"""Make spec and dataset index of shards: in one run, in parts, or appended to another dataset.

The descriptions stay in a journal until the spec is saved, so that an interrupted run can be
resumed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import numpy as np

from wids.errors import SpecError
from wids.publish.appending import append_described
from wids.publish.job import Job
from wids.publish.journal import APPENDING, JobPart, Journal, ShardTask
from wids.publish.new_spec import Describer, described_spec, first_places, log_cost
from wids.publish.output import unfinished_path
from wids.publish.problems import Problem, log_problem
from wids.shards.costs import DownloadCost
from wids.shards.foreign.foreign_counts import with_stated_counts
from wids.shards.specs.documents import is_document, is_list
from wids.shards.specs.loader import load_with
from wids.shards.specs.model import COUNTS_FROM, DatasetSpec, ShardSpec, check_references
from wids.shards.specs.naming import dataset_name, tar_urls
from wids.shards.specs.saved_document import private_mode, save_document
from wids.shards.specs.saving import name_with_query
from wids.shards.specs.shard_columns import columns_of
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import Repeated
from wids.storage import upload
from wids.storage.arrays import LazySequence
from wids.storage.fetch import Fetcher
from wids.storage.files import sweep_beside
from wids.storage.remote_lengths import known_lengths
from wids.storage.sizes import count_text
from wids.storage.transport import urls

_PLAN: Final = "describing shards"
"""The plan of all such jobs: a record says itself which shard it is of."""


@dataclass(frozen=True)
class SpecJob(Job):
    """Describing shards, and the spec of them in the end.

    Attributes:
        named: The shards.
        output: Absolute path or URL of the spec.
        describer: Describes the shards.
        storage_options: For servers.
        is_new: Whether the output is a new spec, and not one to append to.
        base: Folder or URL where the shards will be published; None if they stay where they are.
        name: Name of the dataset; None for that of the document, or of the first shard.
        info: A description for the spec.
        on_problem: Called with what is wrong with the dataset.
    """

    named: DatasetSpec
    output: str
    describer: Describer
    storage_options: Mapping[str, Any]
    is_new: bool = True
    base: str | None = None
    name: str | None = None
    info: str | None = None
    on_problem: Callable[[Problem], None] = log_problem

    def run(self, executor: Executor | None) -> DatasetSpec:
        """Describe the shards, and save spec and dataset index; see `Job`."""
        log = self.journal
        if not (log.plan or _PLAN).startswith((_PLAN, APPENDING)):
            log.check_plan(_PLAN)
        with log.alone():
            if self.is_new:
                spec = self._save_new(executor)
            else:
                spec = append_described(
                    *(self.output, self.named, self.base, self.describer, executor, log),
                    *(self.on_problem, self.storage_options),
                )
            # Last of all: until the spec is saved, an interrupted run resumes from it.
            log.delete()
        return spec

    def run_part(self, part: JobPart, executor: Executor | None) -> Sequence[ShardSpec]:
        """Describe the shards of a part that are missing; see `Job`.

        Nothing is left if it fails before the first of them, as after the answer to a question.
        """
        try:
            return super().run_part(part, executor)
        except BaseException:
            self.journal.abandon()
            raise

    def _save_new(self, executor: Executor | None) -> DatasetSpec:
        dataset_index = os.path.splitext(self.output)[0] + ".index"
        for path in (self.output, dataset_index) if urls.is_local(self.output) else ():
            # Whatever their age: the journal lets only one process at a time get here.
            sweep_beside(path, min_age_s=0)
        spec = described_spec(
            *(replace(self.named, name=self._name), self.describer, executor, self.journal),
            *(dataset_index, self.on_problem, self.storage_options),
        )
        self._save(spec, dataset_index)
        return spec

    @property
    def _name(self) -> str:
        default = self.named.name or dataset_name(self.named.shards[0].url)
        return default if self.name is None else self.name

    def run_as_stated(self) -> DatasetSpec:
        """Save a spec of what the document, or files beside the shards, state; read no shard.

        Raises:
            SpecError: Nothing states the number of samples of a shard.
            MismatchError: Two files state different ones.
            NotFoundError: A shard does not exist.
        """
        fetcher, shards = self.describer.fetcher, self.named.shards
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
        published = (_as_published(shard, sizes[shard.url]) for shard in shards)
        stated = columns_of(published)
        spec = replace(self.named, shards=stated, name=self._name)
        self._save(spec, "")
        return spec

    def _save(self, spec: DatasetSpec, dataset_index: str) -> None:
        """Save a spec with a description, and where its shards will be published."""
        document = spec.lazy_document(urls.parent(self.output))
        if self.info is not None:
            document["info"] = self.info
        if self.base is not None:
            self._set_base(document, self.base, dataset_index)
        options = self.storage_options
        save_document(self.output, document, self.journal.mode, storage_options=options)

    def _set_base(self, document: dict[str, Any], base: str, dataset_index: str) -> None:
        """State in a document where its shards will be published."""
        document["shardlist"] = LazySequence(_without_folder, document["shardlist"])
        document["base"] = base
        is_local = urls.is_local(self.output)
        if "index" in document and (urls.is_local(base) or not is_local):
            # A relative name would be looked for in the base. If only the base is remote, that is
            # where the dataset index will be published.
            document["index"] = dataset_index if is_local else urls.relative(dataset_index, base)

    def _finish(self, tasks: Sequence[ShardTask], executor: Executor | None) -> None:
        self.describer.describe(tasks, self.journal, executor)


def prepare_spec(
    names: Sequence[str],
    output: str,
    *,
    storage_options: Mapping[str, Any],
    split: str | None = None,
    is_new: bool = True,
    base: str | None = None,
    key_split: KeySplit | None = None,
    repeated: Repeated = "error",
    digests: bool = False,
    on_cost: Callable[[DownloadCost], object] = log_cost,
    **options: Any,
) -> SpecJob:
    """Return the job of describing shards; reject now what would fail after reading all of them.

    Args:
        names: Shards, patterns, URLs or folders, each shard once; or one document, for its shards
            in order.
        output: Path or URL of the spec.
        storage_options: For servers.
        split: The only split of the one name; see `load_spec`.
        is_new: See `SpecJob`.
        base: The same.
        key_split: As for `build_spec`.
        repeated: The same.
        digests: The same.
        on_cost: The same.
        options: Other attributes of `SpecJob`.

    Raises:
        FileNotFoundError: No shards are named, or there is no folder for the output.
        ValueError: The output has another ending than ``.json``; or readers could not follow the
            references of the spec.
    """
    check_output(output, ".json")
    target, fetcher = upload.absolute(output), Fetcher(storage_options)
    named = _named_shards(names, fetcher, split)
    files: Sequence[str] = LazySequence(attrgetter("url"), named.shards)
    if base is not None:
        _check_names(files)
    if is_new:
        check_references(target, files if base is None else [base])
    fetcher.bind_options(named.origin)
    describer = Describer(fetcher, key_split, repeated, digests, on_cost)
    log = Journal(unfinished_path(target), private_mode(chain([base or ""], files)))
    plan = f"{_PLAN} with digests" if digests else _PLAN
    return SpecJob(
        *(describer.tasks(named.shards), log, plan, named, target, describer),
        *(storage_options, is_new, base),
        **options,
    )


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
