"""What commands share: their arguments, and loading a spec.

Imported by every command, so it imports little itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from wids.dataset.peeking import Peek
    from wids.dataset.shard_list import ShardListDataset
    from wids.publish.journal_parts import Part
    from wids.shards.specs.loader import Shards
    from wids.shards.specs.model import DatasetSpec
    from wids.storage.transport.storage_options import Assignment

Parsed = TypeVar("Parsed")


def add_spec(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the dataset."""
    parser.add_argument(
        "spec", help="a JSON spec or its URL, a .tar, a pattern of tars, or a folder"
    )


def add_flag(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add an option without a value."""
    parser.add_argument(name, action="store_true", help=text)


def refuse(options: argparse.Namespace, names: Iterable[str], text: str) -> None:
    """Raise `ValueError` with a text if one of some options was passed."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value is not False and value != "":  # 0 is a value
            raise ValueError(f"--{name.replace('_', '-')}: {text}")


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the options for reading a dataset: see `loaded_spec` and `opened`."""
    parser.add_argument("--allow-pipe", action="store_true", help="run commands that a spec names")
    add_storage(parser)


def add_storage(parser: argparse.ArgumentParser) -> None:
    """Add the options for servers: headers and what drivers take; see `storage_options`."""
    group = parser.add_argument_group(
        "servers", "Other users can see a command line: WIDS_STORAGE_OPTIONS keeps secrets out."
    )
    group.add_argument(
        "--header",
        metavar="'NAME: VALUE'",
        action="append",
        default=[],
        type=_header,
        help="send this HTTP header; can be repeated",
    )
    group.add_argument(
        "--storage-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=_assignment,
        help="pass this to the driver of a scheme; can be repeated; a dot leads into a dict: "
        "client_kwargs.region_name=eu-west-1 (default: the JSON in $WIDS_STORAGE_OPTIONS)",
    )


def storage_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options for servers, from the environment and the arguments of `add_storage`."""
    from wids.storage.transport.storage_options import from_environment, merged

    return merged(from_environment(), [*options.storage_option, *options.header])


def _header(text: str) -> Assignment:
    from wids.storage.transport.storage_options import header

    return _without_quoting(header, text)


def _assignment(text: str) -> Assignment:
    from wids.storage.transport.storage_options import assignment

    return _without_quoting(assignment, text)


def _without_quoting(parse: Callable[[str], Parsed], text: str) -> Parsed:
    """Parse an argument; after a plain ValueError, argparse would quote it with its secrets."""
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Add the option for the number of processes."""
    parser.add_argument(
        "-j", "--jobs", type=positive, default=None, help="processes (default: one per core)"
    )


def add_parts(parser: argparse.ArgumentParser) -> None:
    """Add the options for one part of the work, and for merging all parts."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--part",
        metavar="K/N",
        type=_part,
        help="do part K of N, such as 3/16, which other machines may do at the same time",
    )
    group.add_argument(
        "--merge",
        action="store_true",
        help="publish what all parts have made; give the same arguments as for each part",
    )


def _part(text: str) -> Part:
    from wids.publish.journal_parts import Part

    return _without_quoting(Part.parse, text)


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add the option that names columns."""
    parser.add_argument(
        "-c",
        "--columns",
        action="append",
        required=True,
        help="NAME=PATH, separated by commas, such as height=.json/height; can be repeated",
    )


def named_columns(texts: list[str]) -> dict[str, str]:
    """Return the paths of columns by their names; a path without a name is its own.

    Raises:
        ValueError: A name is repeated.
    """
    columns: dict[str, str] = {}
    for item in filter(None, ",".join(texts).split(",")):
        name, mark, path = item.partition("=")
        if name in columns:
            raise ValueError(f"--columns: expected names that differ, found {name!r} twice")
        columns[name] = path if mark else name
    return columns


def positive(text: str) -> int:
    """Return the number in an argument; it must be at least 1."""
    return _at_least(1, text)


def not_negative(text: str) -> int:
    """Return the number in an argument; it must be at least 0."""
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"expected at least {least}, found {number}")
    return number


def loaded_spec(path: str, options: argparse.Namespace) -> DatasetSpec:
    """Load the spec at a path or URL."""
    from wids.shards.specs.loader import load_spec

    return load_spec(path, allow_pipe=options.allow_pipe, storage_options=storage_options(options))


def opened(shards: Shards, options: argparse.Namespace, **more: Any) -> ShardListDataset:
    """Open the dataset that a command reads; its samples are left as they are stored by default."""
    from wids.dataset.shard_list import ShardListDataset

    arguments = {"transformations": None, "storage_options": storage_options(options), **more}
    return ShardListDataset(shards, allow_pipe=options.allow_pipe, **arguments)


def spec_and_peek(
    options: argparse.Namespace, *, wanted: bool = False
) -> tuple[DatasetSpec, Peek | None]:
    """Load the spec that a command names; return it, and a look at its shards.

    Without an index of each shard, a dataset could only be opened by downloading whole shards.

    Args:
        options: The arguments of the command.
        wanted: Whether to look at the shards in any case; otherwise None is returned if a dataset
            can be opened without downloading a shard.
    """
    from wids.dataset.peeking import create_command, peek

    spec = loaded_spec(options.spec, options)
    # Packs are trusted, so that the command opens them only once.
    num_packed = sum(pack.stop - pack.start for pack in spec.all_packs())
    if num_packed == len(spec.shards) and not wanted:
        return spec, None
    shards = peek(
        spec,
        transformations=None,
        allow_pipe=options.allow_pipe,
        storage_options=storage_options(options),
    )
    shards.create_command = create_command(options.spec, spec)
    return spec, shards if wanted or not shards.has_all_indexes else None
