"""``wids pack``: pack a folder of files into shards, with a spec and their index."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING, Final

import wids
from wids.cli.server_options import add_storage, storage_options
from wids.cli.shared import add_processes, positive
from wids.errors import printable
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.publish.packing.pack_plan import PackReport


EXAMPLE: Final = (
    "  wids pack photos -o train\n"
    "  wids pack photos -o out/train --maxsize 500MB --jobs 4\n"
    "Files of one stem are a sample: 0001.jpg and 0001.txt. Folders of classes and tables\n"
    "(metadata.csv, metadata.jsonl) become labels. After an interruption, run it again to\n"
    "resume."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("folder", help="the folder of files")
    parser.add_argument(
        "-o",
        "--output",
        metavar="PREFIX",
        help="beginning of the names to write: train for train-000000.tar, … and train.json "
        "(default: the name of the folder)",
    )
    parser.add_argument("-n", "--name", help="name of the dataset (default: from the output)")
    parser.add_argument(
        "--maxcount", type=positive, default=10_000, help="most samples in a shard (%(default)s)"
    )
    parser.add_argument(
        "--maxsize", default="1GB", metavar="SIZE", help="largest shard (%(default)s)"
    )
    parser.add_argument("--replace", action="store_true", help="overwrite an earlier dataset")
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--seed", type=int, default=0, help="chooses the order (%(default)s)")
    order.add_argument("--sorted", action="store_true", help="order samples by key")
    classes = parser.add_mutually_exclusive_group()
    classes.add_argument(
        "--classes",
        metavar="LIST",
        nargs="?",
        const=True,
        help="folders are classes (default: by their content), by their sorted names, or in the "
        "order of a list: names with commas, a file with one in each line, or the spec of another "
        "split",
    )
    classes.add_argument(
        "--no-classes", action="store_false", dest="classes", default=None, help="they are not"
    )
    parser.add_argument(
        "--key-split", choices=["last", "first"], default="last", help="dot before the field (last)"
    )
    add_processes(parser)
    add_storage(parser)


def run(options: argparse.Namespace) -> int:
    """Pack the folder and print what to do next; return 1 if a file could not be read."""
    from wids.publish.executors import process_pool
    from wids.publish.packing.folder_listing import UNREADABLE

    with process_pool(options.jobs) as executor:
        report = wids.pack_folder(
            options.folder,
            options.output or os.path.basename(os.path.abspath(options.folder)),
            maxcount=options.maxcount,
            maxsize=options.maxsize,
            seed=None if options.sorted else options.seed,
            classes=_classes(options),
            key_split=options.key_split,
            name=options.name,
            if_exists="replace" if options.replace else "error",
            storage_options=storage_options(options),
            executor=executor,
        )
    print(report_text(report))
    print("\nNext:\n" + next_steps(report))
    return int(any(skipped.reason == UNREADABLE for skipped in report.skipped))


def _classes(options: argparse.Namespace) -> bool | list[str] | None:
    """Return the names of classes that ``--classes`` lists, or whether folders are classes."""
    value: bool | str | None = options.classes
    if not isinstance(value, str):
        return value
    from wids.shards.specs.documents import is_document
    from wids.shards.specs.loader import load_spec

    if is_document(value):
        names = load_spec(value, storage_options=storage_options(options)).classes
    elif os.path.isfile(value):
        with open(value, encoding="utf-8-sig") as file:
            names = [line.strip() for line in file if line.strip()]
    else:
        names = value.split(",")
    if not names:
        raise ValueError(f"--classes: expected names of classes, found none in {value!r}")
    return names


def report_text(report: PackReport) -> str:
    """Return the counts as text: samples, fields, classes, and what was left out."""
    from wids.look.text import class_names, classes_text, table

    lines = [str(report)]
    rows = [(printable(field), f"{count:,}") for field, count in report.fields.items()]
    lines += table(["field", "samples"], rows).splitlines()
    if report.spec.classes:
        lines.append(f"classes, in the spec: {classes_text(class_names(report.spec))}")
    lines += [f"left out: {skipped}" for skipped in report.skipped]
    lines += [f"note: {remark}" for remark in report.remarks]
    return "\n".join(map(printable, lines))


def next_steps(report: PackReport) -> str:
    """Return the two things to do next, as a command and as lines of Python."""
    from wids.shards.fields.codecs import media_kind

    name = urls.redact(report.spec_path)
    media = {
        "audio": 'audio="torch"',  # samples and their rate
        "video": "video=wids.Clips(16, at=0)",  # the first 16 frames
    }
    kinds = set(map(media_kind, report.fields))
    options = ", ".join(text for kind, text in media.items() if kind in kinds)
    transformations = f'[wids.Decoder("torch", {options})]' if options else '"torch"'
    values = _values_of(report)
    choices = ", ".join(f"{';'.join(fields)!r}" for _, fields in values)
    lines = [
        f"    wids browse {shlex.quote(name)}",
        "",
        "    import wids",
        "    from torch.utils.data import DataLoader",
        "",
        f"    dataset = wids.ShardListDataset({name!r}, transformations={transformations})",
        *([f"    dataset = dataset.to_tuple({choices})"] * _are_tuples(report, values)),
        "    sampler = wids.DistributedChunkedSampler(dataset)",
        "    loader = DataLoader(",
        "        dataset, batch_size=32, sampler=sampler, collate_fn=list, num_workers=2",
        "    )",
        "    for batch in loader:  # a list of samples, which may differ in size",
    ]
    return "\n".join([*lines, *(f"        {line}" for line in _lines_of_values(report, values))])


def _values_of(report: PackReport) -> list[tuple[str, list[str]]]:
    """Return names for pictures, audio, video and one more value, each with the fields it is in."""
    from wids.publish.packing.pack_plan import role
    from wids.shards.fields.codecs import media_kind

    kinds = {field: media_kind(field) or role(field) for field in report.fields}
    values = []
    for kind, name in (("image", "images"), ("audio", "audio"), ("video", "clips")):
        if fields := [field for field in report.fields if kinds[field] == kind]:
            values.append((name, fields))
    everywhere = [f for f, count in report.fields.items() if count == report.num_samples]
    others = [field for field in everywhere if kinds[field] == field]
    names = {".cls": "labels", ".txt": "texts", ".json": "records"}
    best = sorted(others, key=lambda field: [*names, field].index(field))
    return values + [(names.get(field, "values"), [field]) for field in best[:1]]


def _are_tuples(report: PackReport, values: list[tuple[str, list[str]]]) -> bool:
    """Return whether a value is in several formats, and all samples have all values."""
    counts = [sum(report.fields[field] for field in fields) for _, fields in values]
    is_in_all = all(count == report.num_samples for count in counts)
    return is_in_all and any(len(fields) > 1 for _, fields in values)


def _lines_of_values(report: PackReport, values: list[tuple[str, list[str]]]) -> list[str]:
    """Return lines that take the values out of a batch."""
    if _are_tuples(report, values):
        return [f"{', '.join(name for name, _ in values)}{',' * (len(values) == 1)} = zip(*batch)"]
    lines = []
    for name, fields in values:
        value = "None"
        for field in reversed(fields):  # in some samples only
            value = f"sample.get({field!r}, {value})"
        if report.fields[fields[0]] == report.num_samples:
            value = f"sample[{fields[0]!r}]"
        lines.append(f"{name} = [{value} for sample in batch]")
    return lines or ['keys = [sample["__key__"] for sample in batch]']
