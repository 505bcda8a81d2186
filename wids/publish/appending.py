"""Append described shards to a published dataset.

The old shards are not read: their entries in the spec and their indexes are copied as
they are. The new dataset index begins like the old one, so a reader with the old spec can use it;
it is published first, and the spec, which names the new shards, last.

What is published is checked first, by its spec and dataset index, before anything is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from wids.errors import SpecError
from wids.publish.new_spec import Describer, log_cost, new_dataset_index
from wids.publish.problems import Problem, dataset_problems, log_problem
from wids.shards.costs import DownloadCost
from wids.shards.indexes.dataset_index import DatasetIndex, LocalDatasetIndex, load_dataset_index
from wids.shards.specs.loader import Shards, load_spec, load_with
from wids.shards.specs.model import DatasetSpec, ShardSpec, check_references, common_classes
from wids.shards.specs.parsing import parse
from wids.shards.specs.saved_document import save_document
from wids.shards.specs.saving import name_with_query
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import Repeated
from wids.storage import files, locks, upload
from wids.storage.fetch import Fetcher
from wids.storage.sizes import first_of
from wids.storage.transport import urls
from wids.storage.transport.object_store import ReplacedError


@dataclass(frozen=True)
class Published:
    """A published dataset, as it was when it was read.

    Attributes:
        target: Absolute path or URL of its spec.
        data: The bytes of the spec.
        version: Their version, if the server can compare it.
        document: The values of the spec.
        spec: The spec, resolved.
        base: Absolute path or URL that its references start from.
        key_split: Where all of its member names are split.
    """

    target: str
    data: bytes
    version: str | None
    document: Mapping[str, Any]
    spec: DatasetSpec
    base: str
    key_split: KeySplit

    @property
    def dataset_index(self) -> str | None:
        """Absolute path or URL of its dataset index; None if it has none."""
        index = self.spec.index
        if index is None or urls.is_local(self.target) == urls.is_local(index):
            return index
        # The base is where the dataset will be, and the dataset index still lies beside the spec.
        return urls.join(urls.parent(self.target), os.path.basename(urls.path_of(index)))


def published(target: str, storage_options: upload.Options = None) -> Published:
    """Read a published dataset, to which shards can be appended.

    Args:
        target: Absolute path or URL of its spec.
        storage_options: As for `ShardListDataset`.

    Raises:
        FileNotFoundError: There is no spec.
        SpecError: Nothing can be appended to it.
    """
    name = urls.redact(target)
    try:
        data, version = upload.read(target, storage_options)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{name}: expected the spec of a published dataset to append to, found none; create it "
            "without appending"
        ) from error
    document = parse(data, name)
    if not isinstance(document, Mapping) or not isinstance(document.get("shardlist"), list):
        raise SpecError(
            f"{name}: expected a shardlist of its own to append to; append to the spec that lists "
            "the shards, or write this one again with `wids create`"
        )
    if document.get("datasets"):
        raise SpecError(
            f"{name}: expected one dataset, found a spec that consists of others; append to the "
            "spec of the one that the shards belong to"
        )
    spec = load_spec(target, read=lambda _, __: data)
    for shard in spec.shards:
        if shard.num_samples is None:
            raise SpecError(
                f"{name}: expected the number of samples of every shard, found none for "
                f"{urls.redact(shard.url)}; run `wids create` for all shards"
            )
    rules = {shard.key_split or "first" for shard in spec.shards}
    if len(rules) > 1:
        raise SpecError(f"{name}: expected one key_split for all shards, found both")
    folder = urls.parent(target)
    stated = document.get("base") or document.get("base_path")
    base = urls.join(folder, stated) if stated else folder
    return Published(target, data, version, document, spec, base, rules.pop())


def num_fitting(indexes: DatasetIndex, shards: Sequence[ShardSpec]) -> int:
    """Return how many of the first shards it has, with their names, lengths and counts."""
    for number, shard in enumerate(shards):
        name = os.path.basename(urls.path_of(shard.url))
        is_fitting = (
            number < len(indexes)
            and (indexes.is_named(number, name) or indexes.is_named(number, urls.unquoted(name)))
            and shard.nbytes in (None, indexes.tar_nbytes(number))
            and shard.num_samples == indexes.num_samples[number]
        )
        if not is_fitting:
            return number
    return len(shards)


def entries(
    old: Published, shards: Sequence[ShardSpec], base: str | os.PathLike[str] | None
) -> list[dict[str, Any]]:
    """Return the entries of new shards in the document of the old ones.

    Raises:
        ValueError: A shard is there already, or twice, or would be named by a local path.
    """
    name = urls.redact(old.target)
    if base is not None and urls.join(urls.parent(old.target), os.fspath(base)) != old.base:
        raise ValueError(
            f"{name}: expected its base {urls.redact(old.base)}, found "
            f"{urls.redact(os.fspath(base))!r}"
        )
    old_urls = {shard.url for shard in old.spec.shards}
    is_default = old.key_split == (old.document.get("key_split") or "first")
    new_entries = []
    for shard in shards:
        if base is None and urls.is_local(shard.url) and not urls.is_local(old.base):
            raise ValueError(
                f"{name}: expected shards in its base {urls.redact(old.base)}, found {shard.url}; "
                "state with --base (base=) that they will be there"
            )
        reference = name_with_query(shard.url) if base is not None else shard.url
        reference = urls.relative(reference, old.base)
        url = urls.join(old.base, reference)
        if url in old_urls:
            raise ValueError(
                f"{name}: expected new shards, found {urls.redact(url)}, which it already lists"
            )
        old_urls.add(url)
        rule = None if is_default else old.key_split
        new_entries.append(replace(shard, key_split=rule, index=None).entry() | {"url": reference})
    check_references(old.target, [urls.join(old.base, entry["url"]) for entry in new_entries])
    return new_entries


_MAX_ATTEMPTS: Final = 5
_WAIT_S: Final = 600.0
"""How long to wait for another appending process, which may have to copy an index of a gigabyte."""


def append_shards(
    spec: str | os.PathLike[str],
    shards: Shards,
    *,
    base: str | os.PathLike[str] | None = None,
    key_split: KeySplit | None = None,
    repeated: Repeated = "error",
    executor: Executor | None = None,
    journal: str | os.PathLike[str] | None = None,
    digests: bool = False,
    on_cost: Callable[[DownloadCost], object] = log_cost,
    on_problem: Callable[[Problem], None] = log_problem,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> DatasetSpec:
    """Add shards to the end of a published dataset, without reading its shards again.

    Spec and dataset index are replaced, the dataset index first: at any moment readers see the old
    dataset or the new one. Several processes may append to a local spec at once; they wait for one
    another. Sampler states saved earlier belong to the old order: they fit a dataset of the first
    shards, as the example shows.

    Args:
        spec: Path or URL of the spec.
        shards: The new shards, in any form that a dataset takes.
        base: Where the new shards will be, if they are elsewhere now: the ``base`` of the spec.
        key_split: As for `build_spec`, but it must be the rule of the dataset; None for that rule.
        repeated: As for `build_spec`.
        executor: As for `build_spec`, for the new shards.
        journal: The same.
        digests: The same.
        on_cost: The same.
        on_problem: As for `build_spec`, for the whole dataset.
        storage_options: As for `ShardListDataset`.
        progress: Whether to show a progress bar; None for in terminals and notebooks only.

    Returns:
        The new spec.

    Raises:
        FileNotFoundError: There is no spec.
        SpecError: The spec consists of other specs, or does not state all counts; or its dataset
            index is missing or of another dataset.
        ValueError: A shard is in the dataset already, has another ``key_split``, or would be named
            by a path that readers do not have.
        FetchError, ShardFormatError, UploadError: As for `build_spec`.
        OSError: Another process is appending, and did not finish in ten minutes.

    Examples:
        >>> import wids
        >>> for name in ("cats", "dogs"):
        ...     with wids.TarWriter(f"{name}.tar") as writer:
        ...         nbytes = writer.write({"__key__": name, "txt": name})
        >>> wids.build_spec(["cats.tar"], name="pets", dataset_index="pets.index").save("pets.json")
        >>> spec = wids.append_shards("pets.json", ["dogs.tar"])
        >>> [shard.num_samples for shard in spec.shards]
        [1, 1]
        >>> from dataclasses import replace
        >>> with wids.ShardListDataset(replace(spec, shards=spec.shards[:1])) as before:
        ...     len(before)
        1
    """
    fetcher = Fetcher(storage_options)
    return append_described(
        *(upload.absolute(spec), load_with(fetcher, shards, None, allow_pipe=False), base),
        *(Describer(fetcher, key_split, repeated, digests, on_cost, progress), executor, journal),
        *(on_problem, storage_options),
    )


def append_described(
    target: str,
    new: DatasetSpec,
    base: str | os.PathLike[str] | None,
    describer: Describer,
    executor: Executor | None,
    journal: str | os.PathLike[str] | None,
    on_problem: Callable[[Problem], None],
    storage_options: upload.Options,
) -> DatasetSpec:
    """Describe the shards of a spec, and append them to a target; see `append_shards`."""
    old, name = published(target, storage_options), urls.redact(target)
    if describer.key_split not in (None, old.key_split):
        raise ValueError(
            f'{name}: expected key_split="{old.key_split}" as in its shards, found '
            f'"{describer.key_split}"; pack the new shards again, or make a dataset of their own'
        )
    for shard in new.shards:
        if shard.key_split not in (None, old.key_split):
            raise ValueError(
                f'{urls.redact(shard.url)}: expected key_split="{old.key_split}" as in {name}, '
                f'found "{shard.key_split}"'
            )
    # Mistakes are reported before the shards are read.
    entries(old, new.shards, base)
    _classes(old, new.classes)
    if old.spec.classes and not new.classes:
        text = (
            f"the new shards state no classes, so their numbers are those of {name}: "
            f"{first_of(old.spec.classes)}; append the spec of the shards to compare them"
        )
        on_problem(Problem(old.spec.name, text, "remark"))
    describer = replace(describer, key_split=old.key_split)
    with describer.indexed(new.shards, executor, journal) as (described, indexes):
        return publish_appended(
            *(target, described, indexes, new.classes),
            base=base,
            on_problem=on_problem,
            storage_options=storage_options,
        )


def publish_appended(
    target: str,
    shards: Sequence[ShardSpec],
    indexes: LocalDatasetIndex,
    classes: Sequence[str] = (),
    *,
    base: str | os.PathLike[str] | None = None,
    on_problem: Callable[[Problem], None] = log_problem,
    storage_options: upload.Options = None,
) -> DatasetSpec:
    """Publish a dataset with more shards at its end: first the dataset index, then the spec.

    Args:
        target: Absolute path or URL of its spec.
        shards: The new shards, described.
        indexes: Their dataset index.
        classes: Names of the classes of the new shards, if they are stated.
        base: As for `append_shards`.
        on_problem: As for `build_spec`.
        storage_options: As for `ShardListDataset`.

    Returns:
        The new spec.
    """
    with _one_at_a_time(target):
        for _ in range(_MAX_ATTEMPTS):
            old = published(target, storage_options)
            document = {
                **old.document,
                **_classes(old, classes),
                "shardlist": [*old.document["shardlist"], *entries(old, shards, base)],
            }
            # Another process may have been faster: start again from its result.
            with suppress(ReplacedError):
                return _publish(old, document, indexes, on_problem, storage_options)
    raise OSError(f"{urls.redact(target)}: others replaced it {_MAX_ATTEMPTS} times meanwhile")


def _classes(old: Published, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the entry for the classes of old and new shards, if the old ones state theirs.

    Raises:
        SpecError: The lists differ (SPEC-62).
    """
    both = (urls.redact(old.target), old.spec.classes), ("the new shards", names)
    return {"classes": common_classes(both)} if old.spec.classes else {}


def _publish(
    old: Published,
    document: dict[str, Any],
    new: LocalDatasetIndex,
    on_problem: Callable[[Problem], None],
    storage_options: upload.Options,
) -> DatasetSpec:
    """Write both files, unless the spec was replaced since it was read; return the new spec."""
    data = json.dumps(document).encode("ascii")
    spec = load_spec(old.target, read=lambda _, __: data)
    if old.dataset_index is not None:
        with ExitStack() as stack:
            with _old_dataset_indexes(old, storage_options) as parts:  # closed when they were read
                parts.append((new, len(new)))
                joined = stack.enter_context(
                    new_dataset_index(old.dataset_index, (), storage_options, parts=parts)
                )
            for problem in dataset_problems(joined, spec.shards, spec.name):
                on_problem(problem)
            if upload.read(old.target, storage_options)[0] != old.data:
                raise ReplacedError(old.target)
    else:
        text = "the spec names no dataset index, so keys of new and old shards were not compared"
        on_problem(Problem(spec.name, text, "remark"))
    save_document(old.target, document, replaces=old.version, storage_options=storage_options)
    return spec


@contextmanager
def _old_dataset_indexes(
    old: Published, storage_options: upload.Options
) -> Iterator[list[tuple[LocalDatasetIndex, int]]]:
    """Yield the dataset indexes with the indexes of the old shards, and how many to take from each.

    The dataset index may have more than the old shards if an append was interrupted before it
    published its spec, or fewer that fit if two appends to a URL collided. Missing ones are read
    again.
    """
    shards, target = old.spec.shards, old.dataset_index or ""
    if not upload.exists(target, storage_options):
        raise _wrong_dataset_index(old, target, "no file")
    with ExitStack() as stack:
        path = stack.enter_context(upload.local_copy(target, storage_options))
        indexes = load_dataset_index(path, None, len(shards))
        if indexes is None:
            raise _wrong_dataset_index(old, target, "no dataset index")
        stack.callback(indexes.close)
        num_shards = num_fitting(indexes, shards)
        if not num_shards:
            raise _wrong_dataset_index(old, target, "one of other shards")
        parts = [(indexes, num_shards)]
        missing = shards[num_shards:]
        if missing:
            rest = Describer(Fetcher(storage_options)).indexed(missing)
            parts.append((stack.enter_context(rest)[1], len(missing)))
        yield parts


def _wrong_dataset_index(old: Published, target: str, found: str) -> SpecError:
    return SpecError(
        f"{urls.redact(target)}: expected the dataset index of {urls.redact(old.target)}, "
        f"found {found}; make both again with `wids create`"
    )


@contextmanager
def _one_at_a_time(target: str) -> Iterator[None]:
    """Wait until no other process of this machine appends to a local spec.

    Servers compare versions instead. With a dataset index, the spec is compared before it is
    replaced, too.

    Raises:
        OSError: Another process did not finish.
    """
    if not urls.is_local(target):
        yield
        return
    folder, name = os.path.split(target)
    # Not deleted at the end, since others may be waiting for it.
    lock_path = os.path.join(folder, files.lock_name(name))
    with locks.lock_file(lock_path, mode=0o600, timeout_s=_WAIT_S) as is_held:
        if is_held is False:
            raise OSError(f"{target}: another process is appending to it; try again later")
        yield
