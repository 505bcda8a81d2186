"""``wids table``: save fields of all samples in a Parquet file, and name it in the spec."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final

from wids.cli import shared
from wids.errors import printable
from wids.storage.sizes import count_text
from wids.storage.transport import urls

if TYPE_CHECKING:
    import pyarrow as pa


EXAMPLE: Final = (
    "  wids table train.json --columns label=.cls,height=.json/height --output train.parquet\n"
    "In Python, wids.load_table('train.json') reads it back, and dataset[mask] filters by it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    shared.add_spec(parser)
    parser.add_argument(
        "-c",
        "--columns",
        action="append",
        required=True,
        help="NAME=PATH, separated by commas, such as height=.json/height; can be repeated",
    )
    parser.add_argument("-o", "--output", required=True, help="the Parquet file")
    parser.add_argument(
        "--errors",
        choices=["raise", "null"],
        default="raise",
        help="null: for values that cannot be read, or have another type than most (raise)",
    )
    shared.add_processes(parser)
    shared.add_yes(parser)
    shared.add_reading(parser)


def run(options: argparse.Namespace) -> int:
    """Read the columns, save them, and name the file in the spec."""
    from wids.publish.executors import process_pool
    from wids.shards.specs.saving import is_local_document, name_table
    from wids.tables.column_values import parse_columns
    from wids.tables.table import check_arrow
    from wids.tables.table_file import save_table

    check_arrow()
    columns = shared.named_columns(options.columns)
    parse_columns(columns)  # before fetching a spec or looking for a folder
    output = _checked_output(options.output)
    with shared.opened(options.spec, options) as dataset:
        shared.ask_to_fetch(dataset, options)
        with process_pool(options.jobs) as executor:
            table = dataset.table(columns, errors=options.errors, executor=executor)
        saved = save_table(table, dataset, output, columns).table
    assert saved is not None  # noqa: S101 - it was saved just now
    advice = ""
    if is_local_document(options.spec):
        name_table(options.spec, saved)
        advice = f"\n\nIn Python: wids.load_table({printable(options.spec)!r})"
    else:
        shared.print_note(
            f"{urls.redact(options.spec)}: no JSON spec on this machine, so it does not name the "
            "table; load_table needs one: make it with `wids create`"
        )
    print(_text(options.output, table) + advice)
    return 0


def _checked_output(output: str) -> str:
    """Return the absolute path of the output; reject now what would fail after reading."""
    from wids.publish.spec_job import check_output

    if not urls.is_local(output):
        raise ValueError(
            f"--output: expected a file on this machine, found {urls.redact(output)}; write it "
            "here and copy it beside the published spec"
        )
    check_output(output, ".parquet")
    return os.path.abspath(urls.local_path(output))


def _text(output: str, table: pa.Table) -> str:
    """Return what was saved: rows, and for each column its type and its nulls."""
    from wids.look.text import table as text_table

    rows = [
        (name, column.type, f"{column.null_count:,} null" if column.null_count else "")
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    heading = f"{output}: {count_text(len(table), 'row')}, {count_text(len(rows), 'column')}"
    return f"{printable(heading)}\n{text_table(['column', 'type', ''], rows)}"
