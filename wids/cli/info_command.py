"""``wids info``: what specs say of their datasets, as text, table or JSON."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from wids.cli import server_options, shared
from wids.errors import NotFoundError, WidsError, printable
from wids.storage.sizes import nbytes_text
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.dataset.shard_list import ShardListDataset
    from wids.shards.sample_access import FieldStats
    from wids.shards.specs.model import DatasetSpec

_BAR_WIDTH: Final = 10
_MAX_ASKED: Final = 1_000
"""Remote shards that are looked for, which takes a request each."""
_RETRY_S: Final = 3.0
_MAX_TABLE_NBYTES: Final = 20_000_000
"""A larger table is read only if its columns are asked for."""


EXAMPLE: Final = (
    "  wids info train.json\n  wids info --json train.json | jq .num_samples\n"
    "  wids info --table *.json\n"
    "  wids info 's3://bucket/train-{000000..000146}.tar'\n"
    "  wids info train.json --columns\n"
    "  wids info train.json --columns label=.cls,height=.json/height"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("specs", nargs="+", help="JSON specs or their URLs, patterns, folders")
    parser.add_argument("-t", "--table", action="store_true", help="one line for each spec")
    shared.add_flag(parser, "--json", "for scripts: one JSON object on each line")
    parser.add_argument(
        "-c",
        "--columns",
        nargs="?",
        const="",
        help="after the specs: show distributions of columns, NAME=PATH or names of the saved "
        "table, separated by commas (default: all columns of the saved table)",
    )
    shared.add_yes(parser)
    shared.add_reading(parser)


def run(options: argparse.Namespace) -> int:
    """Print what each spec says; return 1 if shards that names stand for are missing."""
    from wids.look.text import shortened, spec_rows, spec_text, table

    if options.columns is not None and (options.json or options.table):
        raise ValueError("--columns: expected neither --json nor --table, found both")
    missing: list[str] = []
    # All are loaded before anything is printed, so that an error leaves no half of a table.
    specs = [
        (path, _found(path, shared.loaded_spec(path, options), options, missing))
        for path in options.specs
    ]
    facts = [(urls.redact(path), spec_rows(spec)) for path, spec in specs]
    if options.json:
        for name, rows in facts:
            print(printable(json.dumps({"file": name, **rows})))
    elif options.table:
        columns = ["name", "num_samples", "num_shards", "nbytes", "first", "last"]
        rows_of = ([name, *(rows[column] for column in columns)] for name, rows in facts)
        text = table(["file", *columns], rows_of)
        print("\n".join(shortened(line, shared.output_width()) for line in text.splitlines()))
    else:
        texts = []
        for (name, rows), (path, spec) in zip(facts, specs, strict=True):
            heading = f"{name}\n" if len(facts) > 1 else ""
            details = _fields_text(spec, options) or _glimpse_text(path, spec, options)
            text = heading + spec_text(rows, shared.output_width()) + details
            texts.append(text + _columns_text(spec, options))
        print("\n\n".join(texts))
    return int(bool(missing))


def _found(
    path: str, spec: DatasetSpec, options: argparse.Namespace, missing: list[str]
) -> DatasetSpec:
    """Return the spec with the shards that exist and their lengths, if names stand for shards.

    The names that stand for others are appended to ``missing``.

    Raises:
        NotFoundError: None of them exists.
    """
    from wids.shards.specs.documents import is_document
    from wids.storage.fetch import Fetcher
    from wids.storage.remote_lengths import ask_lengths, check_found

    names = [shard.url for shard in spec.shards if shard.nbytes is None]
    num_remote = sum(not urls.is_local(name) for name in names)
    # What a document says is shown as it is, and a listing has only files that exist.
    if is_document(path) or spec.all_dataset_indexes() or not names or num_remote > _MAX_ASKED:
        return spec
    answers = ask_lengths(Fetcher(_impatient(options)), names, is_tolerant=True)
    try:
        check_found(names, answers)
    except NotFoundError as error:
        if all(isinstance(answer, NotFoundError) for answer in answers):
            raise
        shared.print_note(error)
        missing.append(path)
    lengths = dict(zip(names, answers, strict=True))
    shards = []
    for shard in spec.shards:
        nbytes = lengths.get(shard.url, shard.nbytes)
        if not isinstance(nbytes, NotFoundError):
            shards.append(replace(shard, nbytes=nbytes))
    return replace(spec, shards=tuple(shards))


def _impatient(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options for servers, which need not answer for what is nice to know."""
    own = server_options.storage_options(options)
    is_by_url = any("://" in name for name in own)  # then times stand beside the other options
    return own if is_by_url else {"retry_s": _RETRY_S, **own}


def _fields_text(spec: DatasetSpec, options: argparse.Namespace) -> str:
    """Return the fields of a dataset as a table if it has a dataset index, else ``""``."""
    if not spec.all_dataset_indexes():
        return ""
    from wids.shards.sample_access import field_stats

    try:
        with shared.opened(
            spec, options, access="range", storage_options=_impatient(options), progress=False
        ) as dataset:
            stats = field_stats(dataset)
            facts = _media_text(dataset, stats)
    except WidsError:  # a damaged dataset index; what the spec says is shown anyway
        return ""
    return _table(stats) + facts


def _media_text(dataset: ShardListDataset, stats: Iterable[FieldStats]) -> str:
    """Return the length and rate of audio and video of the first sample, if it is local."""
    from wids.look import preview

    if not len(dataset):
        return ""
    lines = [
        f"{printable(each.field)} of the first sample: {facts}"
        for each in stats
        if (facts := preview.facts_of_field(dataset, 0, each.field))
    ]
    return "\n\n" + "\n".join(lines) if lines else ""


def _table(stats: Iterable[FieldStats]) -> str:
    from wids.look.text import bar_text, share_text, table

    rows = [
        (s.field, nbytes_text(s.median_nbytes), share_text(s.share), bar_text(s.share, _BAR_WIDTH))
        for s in stats
    ]
    found = table(["field", "typical size", "samples", ""], rows, right=(1, 2))
    return "\n\n" + shared.with_bold_header(found) if rows else ""


def _glimpse_text(path: str, spec: DatasetSpec, options: argparse.Namespace) -> str:
    """Return the fields at the beginning of the first shard, if shards were named directly."""
    from wids.dataset.peeking import create_command, peek
    from wids.look.notebook import known_text
    from wids.shards.sample_access import field_stats
    from wids.shards.specs.documents import is_document

    # What a document says is shown at once; its servers may be slow or down.
    if is_document(path) or spec.all_dataset_indexes():
        return ""
    shards = peek(spec, storage_options=server_options.storage_options(options))
    shards.read_on(1)
    stats = field_stats(shards)
    found = f"\n\nfirst shard: {known_text(shards)}"
    glimpse = shards.glimpse
    if glimpse is not None:
        remark = glimpse.remark()
        found += f" ({remark})" if remark else ""
        found += f"; {printable(create_command(path, spec))} counts all"
    return found + _table(stats)


def _saved_columns_text(spec: DatasetSpec) -> str:
    """Return a line for each column of a saved table, if it is local and small, else ``""``."""
    place = spec.table.url if spec.table else ""
    # Shown unasked, so it may cost neither a request nor a second.
    if not place or not urls.is_local(place) or not find_spec("pyarrow"):
        return ""
    from wids.look.page.tally import columns_text
    from wids.tables.table_file import load_table

    path = urls.path_of(place)
    try:
        if os.path.getsize(path) > _MAX_TABLE_NBYTES:
            return ""
        text = columns_text(load_table(spec), shared.output_width())
    except (OSError, WidsError):  # missing or stale; what the spec says is shown anyway
        return ""
    return f"\n\n{text}\n(--columns shows more)"


def _columns_text(spec: DatasetSpec, options: argparse.Namespace) -> str:
    """Return the distributions of columns if requested, from the saved table or else read."""
    if options.columns is None:
        return _saved_columns_text(spec)
    from wids.look.page.tally import distributions_text
    from wids.look.text import class_names
    from wids.tables.table_file import read_or_load

    with shared.opened(spec, options) as dataset:
        columns = shared.named_columns([options.columns])
        if columns and dataset.spec.table is None:
            shared.ask_to_fetch(dataset, options)
        table = read_or_load(dataset, columns)
    return "\n\n" + distributions_text(table, shared.output_width(), class_names(spec))
