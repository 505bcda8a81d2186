"""Pack a folder into shards, with their spec and pack, on any executor.

Plans first, so that what is wrong with the folder is an error before anything is written.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from wids.errors import PackError
from wids.publish.output import IfExists, Output, pattern_of, prefix_of
from wids.publish.packing.folder_listing import is_inside
from wids.publish.packing.pack_plan import Plan, plan_folder
from wids.publish.packing.pack_report import PackReport
from wids.publish.packing.shard_file import write_shard
from wids.publish.packing.shard_tasks import cut, make_task, ordered
from wids.publish.replaced import Replaced
from wids.publish.shard_job import ShardJob
from wids.shards.tars.member_names import KeySplit
from wids.storage.sizes import first_of, parse_nbytes
from wids.storage.transport import urls


def pack_folder(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    maxcount: int = 10_000,
    maxsize: int | str = "1GB",
    seed: int | None = 0,
    classes: bool | None = None,
    key_split: KeySplit = "last",
    name: str | None = None,
    if_exists: IfExists = "error",
    storage_options: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> PackReport:
    """Pack the files of a folder into shards, and write their spec and their pack.

    Files of one stem in one folder are a sample: ``a/1.jpg`` and ``a/1.txt`` are the fields
    ``.jpg`` and ``.txt`` of the sample ``a/1``. The bytes of files are copied as they are, and the
    same files make the same shards, byte for byte. docs/packing.md explains the rules for names,
    classes and metadata.

    After an interruption, call it again with the same arguments to resume.

    Args:
        folder: The folder.
        output: Beginning of the paths that are written: ``"out/train"`` for
            ``out/train-000000.tar``, …, ``out/train.json`` and ``out/train.index``. Missing folders
            are made. A URL, such as ``"s3://bucket/train"``, if fsspec can write it.
        maxcount: Maximum number of samples in a shard.
        maxsize: Maximum length of a shard, in bytes or as ``"500MB"``, unless a single sample is
            larger.
        seed: Chooses the order of the samples; None for that of their keys.
        classes: Whether the folders in the folder are classes, whose numbers become the field
            ``.cls`` and whose names become ``"classes"`` of the spec; None to decide by their
            content.
        key_split: Where names are split into key and field, at the ``"last"`` or the ``"first"``
            dot. With the last one, other dots become ``_`` in the key.
        name: Name of the dataset; None for the last part of ``output``.
        if_exists: What to do if shards or the spec exist already: ``"error"``, or ``"replace"`` to
            overwrite them.
        storage_options: As for `ShardListDataset`, for a URL.
        executor: Where to write shards; any `concurrent.futures.Executor` whose workers see the
            same folders. None for this thread.
        progress: Whether to show a progress bar; None for in terminals and notebooks only.

    Returns:
        What was packed, what was left out, and remarks.

    Raises:
        NotFoundError: There is no such folder.
        PackError: Its files cannot become samples as they are.
        FetchError: A file cannot be read, or changes while it is packed.
        FileExistsError: The output exists already, or is of an interrupted run on other files.
        ValueError: An argument is invalid.

    Examples:
        >>> import pathlib, wids
        >>> for name in ("cat/1", "cat/2", "dog/1"):
        ...     path = pathlib.Path("pets", name + ".txt")
        ...     path.parent.mkdir(parents=True, exist_ok=True)
        ...     nbytes = path.write_text("a " + name[:3])
        >>> report = wids.pack_folder("pets", "out/pets")
        >>> report.num_samples, dict(report.fields), report.spec.classes
        (3, {'.cls': 3, '.txt': 3}, ['cat', 'dog'])
        >>> with wids.ShardListDataset("out/pets.json") as dataset:
        ...     sample = dataset.get_by_key("dog/1")
        >>> sample[".txt"], sample[".cls"]
        ('a dog', 1)
    """
    job = prepare_job(
        *(folder, output, maxcount, maxsize, seed, classes, key_split, name, if_exists),
        storage_options=storage_options,
    )
    return job.run(executor=executor, progress=progress)


@dataclass(frozen=True)
class PackJob:
    """All that is decided before anything is written.

    Attributes:
        spec_path: Path or URL of the spec, as the caller named it.
        plan: The samples.
        writing: Writes the shards.
    """

    spec_path: str
    plan: Plan
    writing: ShardJob

    def run(self, *, executor: Executor | None, progress: bool | None = None) -> PackReport:
        """Write the dataset, or what is missing of it."""
        plan = self.plan
        spec = self.writing.run(executor=executor, progress=progress)
        others = Replaced(self.writing.output)
        remarks = list(plan.remarks)
        names = sorted(self.writing.cut_short)
        if names:
            verb = "picture ends" if len(names) == 1 else "pictures end"
            remarks.append(
                f"{len(names):,} {verb} early: {first_of(names)}; `wids verify --decode "
                f"{urls.redact(self.spec_path)}` names all that cannot be decoded"
            )
        remark = others.remark_on_others({shard.url for shard in spec.shards})
        counts = Counter(field for sample in plan.samples for field, _ in sample.members)
        return PackReport(
            self.spec_path,
            spec,
            dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
            plan.skipped,
            (*remarks, *([remark] if remark else [])),
        )


def prepare_job(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    maxcount: int,
    maxsize: int | str,
    seed: int | None,
    classes: bool | None,
    key_split: KeySplit,
    name: str | None,
    if_exists: IfExists,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> PackJob:
    """Decide what to write; the arguments are those of `wids.pack_folder`."""
    limit = parse_nbytes(maxsize, "maxsize")
    if not (maxcount >= 1 and limit):  # also NaN
        raise ValueError(
            f"expected a maxcount and a maxsize of at least 1, found {maxcount} and {maxsize}"
        )
    plan = plan_folder(folder, classes=classes, key_split=key_split)
    prefix = prefix_of(output)
    target = Output.for_pattern(
        *(pattern_of(prefix), "packing"),
        name=name,
        if_exists=if_exists,
        storage_options=storage_options,
    )
    if target.is_local and is_inside(target.names.folder, plan.root):
        raise PackError(
            f"{os.fspath(output)}: expected an output outside the folder that is packed, found one "
            f"in {plan.root}; the shards would be packed the next time"
        )
    shards = cut(ordered(plan.samples, seed), maxcount, limit)
    tasks = [
        make_task(target.names.path(number), plan.root, samples, nbytes)
        for number, (samples, nbytes) in enumerate(shards)
    ]
    extras = {"classes": list(plan.classes)} if plan.classes else {}
    return PackJob(prefix + ".json", plan, ShardJob(tasks, target, write_shard, extras))
