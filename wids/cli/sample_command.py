"""``wids sample``: print one sample of a dataset as text, or write the bytes of one field."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from wids.cli import shared
from wids.errors import printable
from wids.storage.sizes import nbytes_text
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.shards.sample_access import ReadableDataset
    from wids.shards.specs.model import DatasetSpec


EXAMPLE: Final = (
    "  wids sample train.json 17\n  wids sample train.json n01440764_10026\n"
    "  wids sample train.json 17 --cat .jpg > 17.jpg\n"
    "  wids sample 's3://bucket/train-{000000..000146}.tar' 17 --shard 3"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    shared.add_spec(parser)
    parser.add_argument(
        "sample", nargs="?", help="its number, negative from the end (default: 0), or its key"
    )
    parser.add_argument("-k", "--key", help="its key, if that could be a number")
    parser.add_argument(
        "-s", "--shard", type=int, help="number of a shard, whose samples are counted from 0"
    )
    parser.add_argument("-c", "--cat", metavar="FIELD", help="write the bytes of this field")
    parser.add_argument("-r", "--raw", action="store_true", help="show bytes, not decoded values")
    parser.add_argument("-p", "--python", action="store_true", help="show a Python dict of bytes")
    parser.add_argument(
        "-w", "--width", type=shared.positive, help="columns (default: the window's)"
    )
    shared.add_reading(parser)


def run(options: argparse.Namespace) -> int:
    """Print the sample, or write the bytes of a field; return 1 if they are damaged."""
    index, key = _index_or_key(options)
    field = options.cat if options.cat is None or options.cat[:1] == "." else "." + options.cat
    spec, shards = shared.spec_and_peek(options, wanted=options.shard is not None)
    unread: dict[str, int] = {}
    if shards is None:
        sample, damage = _from_dataset(spec, options, index if key is None else key, field)
    else:
        from wids.dataset.peeking import find_sample
        from wids.look.field_facts import field_sizes
        from wids.look.text import MAX_SHOWN_NBYTES

        here, local_index = find_sample(shards, index, key, options.shard)
        fields = None if field is None else [field]
        if field is None and not (options.raw or options.python):
            sizes = field_sizes(here.reader.index(), local_index)
            unread = {name: size for name, size in sizes.items() if size > MAX_SHOWN_NBYTES}
            fields = [name for name in sizes if name not in unread]
        sample = here.only(fields)[local_index]
        damage = _damage(here, local_index, sample)
    if field is None:
        print(_text(sample, options, unread, spec))
    elif field in sample:
        # Bypasses the text layer, which would encode the bytes, and on Windows change line ends.
        sys.stdout.buffer.write(sample[field])
    else:
        place = f'{urls.redact(options.spec)}: sample "{sample["__key__"]}"'
        raise KeyError(f"{place}: it has no field {field}")
    if damage:
        shared.print_note(damage)
    return 1 if damage else 0


def _index_or_key(options: argparse.Namespace) -> tuple[int, str | None]:
    """Return the number of the sample that is asked for, or 0 and its key."""
    text = options.sample
    if options.key is not None:
        if text is not None:
            raise ValueError("expected an index or --key, found both")
        return 0, options.key
    # As Python writes integers: "000123" is a key in many datasets.
    if text is None or re.fullmatch(r"0|-?[1-9][0-9]*", text):
        return int(text or 0), None
    return 0, text


def _from_dataset(
    spec: DatasetSpec, options: argparse.Namespace, wanted: int | str, field: str | None
) -> tuple[dict[str, Any], str]:
    """Return a sample, and what is damaged in it."""
    fields = None if field is None else [field]
    with shared.opened(spec, options, raw="bytes", fields=fields) as dataset:
        sample: dict[str, Any]
        sample = dataset.get_by_key(wanted) if isinstance(wanted, str) else dataset[wanted]
        return sample, _damage(dataset, sample["__index__"], sample)


def _damage(dataset: ReadableDataset, index: int, sample: dict[str, Any]) -> str:
    """Return which fields of a sample are not as its index states, in a sentence; else ``""``."""
    from wids.look.field_facts import damage_text
    from wids.look.preview import damage_of

    damage = damage_text(damage_of(dataset, index, sample))
    place = f'{urls.redact(sample["__shard__"])}: sample "{sample["__key__"]}"'
    return f"{place}: {damage}" if damage else ""


def _text(
    sample: dict[str, Any],
    options: argparse.Namespace,
    unread: Mapping[str, int],
    spec: DatasetSpec,
) -> str:
    """Return a sample as text; of fields that were not read, their lengths in bytes."""
    from wids.look.text import class_names, sample_text, shortened

    # A terminal's history, a log or a bug report is no place for a signed URL.
    sample = {**sample, "__shard__": urls.redact(sample["__shard__"])}
    width = options.width or shared.output_width()
    if options.python:
        return repr(sample)
    if options.raw:
        raw = (f"{printable(name)} {value!r}" for name, value in sample.items())
        return "\n".join(shortened(line, width) for line in raw)
    more = [f"{name} {nbytes_text(size)}, not read: see --cat" for name, size in unread.items()]
    shown = sample_text(sample, width, class_names(spec))
    lines = [*shown.split("\n"), *(shortened(printable(line), width) for line in more)]
    return "\n".join(_with_bold_name(line) for line in lines)


def _with_bold_name(line: str) -> str:
    name, space, value = line.partition(" ")
    return shared.styled(name, "bold", sys.stdout) + space + value
